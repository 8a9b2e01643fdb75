"""A convolution, ReLU and max pooling taken apart: what entered them, from the gradient of the convolution's weight.

Given which position of each pooling window was the largest, that gradient is linear in the input, the largest outputs are the
pooled ones, and no other lies above them. Positions and input are found together by variational inference: the positions'
probabilities given the input, in which each filter's gradient is the strongest evidence, then the input's Gaussian given the
probabilities, with errors allowed for that shrink from step to step.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

STEPS = 30
WIDE, NARROW = 1.0, 0.02
"""Errors of the gradient allowed at first and at last, in units of its root mean square (ours, as all of these)."""
LOOSE, TIGHT = 0.5, 0.05
"""Errors of the outputs allowed at first and at last, in units of the pooled ones' root mean square."""
DOUBTS_EVERY = 3
"""Steps between two looks at how well the input is known, which takes as long as finding it."""
NOTHING = 1e-5
"""Pooled outputs below this share of the largest are zero."""
SAME = 1.0
"""By how much it is more likely, in its logarithm, that a window's position is the one of another step."""
COUNTS = 1e-2
"""Probability below which a position adds no equation."""


class Law(NamedTuple):
    """What is expected of an input: mean (unknowns,) + basis (inputs, unknowns) z with z in N(0, I)."""

    mean: Tensor
    basis: Tensor


class Evidence(NamedTuple):
    """What an update gives away: of each local step the pooled outputs, and the gradient by them; the sum of the weight's.

    Of the first step the input is searched; that of the others differs a little.
    """

    pooled: Tensor
    """(steps, outputs)."""
    slope: Tensor
    """(steps, outputs), each times the step's share in the sum."""
    gradient: Tensor
    error: float = 0.0
    """Relative error of the gradient, where its steps had not the same input."""


class PooledConvolution:
    """A convolution by its weight and bias, ReLU and max pooling by windows of `size`, for inputs of a shape."""

    def __init__(self, conv: nn.Conv2d, weight: Tensor, bias: Tensor, shape: torch.Size, size: int) -> None:
        self.shape, self.weight, self.bias, self.conv, self.size = shape, weight, bias, conv, size
        channels, cells = shape[0], shape[1:].numel()
        self.channels, self.cells = channels, cells
        # Which cell of the input lies under each offset of the kernel, from 1 on, as 0 is the padding.
        numbers = torch.arange(1.0, cells + 1, device=weight.device).view(1, 1, *shape[1:])
        padding = conv.padding if not isinstance(conv.padding, str) else (conv.kernel_size[0] // 2, conv.kernel_size[1] // 2)
        self.under = F.unfold(numbers, conv.kernel_size, padding=padding, stride=conv.stride)[0].long()
        self.padding = padding
        height, width = self._convolved(weight.new_zeros(1, *shape)).shape[2:]
        places = torch.arange(float(height * width), device=weight.device).view(1, 1, height, width)
        self.windows = F.unfold(places, size, stride=size)[0].long().T  # (windows, positions in one)

    def _convolved(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight, None, self.conv.stride, self.padding)

    def pooled(self, x: Tensor) -> Tensor:
        """What leaves for inputs (n, *shape)."""
        return F.max_pool2d((self._convolved(x) + self.bias[:, None, None]).relu(), self.size)

    def taken_apart(self, seen: Evidence, law: Law) -> Tensor:
        """The most likely input, (inputs,)."""
        return _Inference(self, seen, law).solved()


class _Inference:
    def __init__(self, block: PooledConvolution, seen: Evidence, law: Law) -> None:
        self.block, self.law = block, law
        self.narrow, self.tight = max(NARROW, seen.error), max(TIGHT, seen.error)
        (steps, _), filters, number = seen.pooled.shape, len(block.weight), law.basis.shape[1]
        self.pooled = seen.pooled.view(steps, filters, -1)
        self.active = self.pooled > NOTHING * self.pooled.max()
        self.slope = seen.slope.view(steps, filters, -1) * self.active
        # A window that is active in two steps has its position in both mostly at the same place.
        self.alike = SAME * (self.active[:, None] & self.active).float()  # (steps, steps, filters, windows)
        self.alike.diagonal(dim1=0, dim2=1).zero_()
        self.scale = self.pooled[self.active].square().mean().sqrt()
        # Outputs of later steps are compared with those of the first, from which they are about so far away.
        self.apart = (self.pooled - self.pooled[0]).square().mean((1, 2)).sqrt().view(-1, 1, 1, 1)
        self.gradient = seen.gradient.flatten(2)  # (filters, channels, offsets)
        self.unit = self.gradient.square().mean().sqrt()
        out = block._convolved(law.basis.T.reshape(number, *block.shape)).flatten(2).permute(1, 2, 0)
        self.rows = out[:, block.windows].contiguous()  # (filters, windows, positions in one, unknowns)
        base = block._convolved(law.mean.view(1, *block.shape))[0].flatten(1) + block.bias[:, None]
        self.base = base[:, block.windows]
        self.wanted = self.pooled[..., None].expand(*self.pooled.shape, block.windows.shape[1])
        self.under = block.under[:, block.windows]  # (offsets, windows, positions in one)
        self.share = torch.full_like(self.wanted, 1 / block.windows.shape[1]).contiguous()  # (steps, *those of base)

    def solved(self) -> Tensor:
        number = self.rows.shape[-1]
        z, spread = self.rows.new_zeros(number), torch.eye(number, dtype=self.rows.dtype, device=self.rows.device)
        doubt = self._doubts(spread)
        for step in range(STEPS):
            part = step / (STEPS - 1)
            error = self.unit * WIDE * (self.narrow / WIDE) ** part
            slack = self.scale * LOOSE * (self.tight / LOOSE) ** part
            self._look(z, doubt, error, slack)
            factor, right = self._equations(z, error, slack)
            z = torch.cholesky_solve(right[:, None], factor)[:, 0]
            if step % DOUBTS_EVERY == DOUBTS_EVERY - 1:
                doubt = self._doubts(torch.cholesky_inverse(factor))
        return self.law.mean + self.law.basis @ z

    def _doubts(self, spread: Tensor) -> tuple[Tensor, Tensor]:
        """Variances of the outputs (filters, windows, positions in one) and of the inputs, given those of the unknowns."""
        rows = self.rows.flatten(0, 2)
        outputs = ((rows @ spread) * rows).sum(1).clamp_min(0).view_as(self.base)
        return outputs, ((self.law.basis @ spread) * self.law.basis).sum(1)

    def _patches(self, inputs: Tensor) -> Tensor:
        """What lies under the kernel at each position: (windows, positions in one, channels * offsets)."""
        cells = F.pad(inputs.view(self.block.channels, -1), (1, 0))  # the padding is cell 0
        return cells[:, self.under].permute(2, 3, 0, 1).flatten(2)

    def _look(self, z: Tensor, doubt: tuple[Tensor, Tensor], error: Tensor, slack: Tensor) -> None:
        """How likely each position is the largest of its window in each step, given the input; one window after the other."""
        outputs = self.rows @ z + self.base
        deviation = (doubt[0] + slack.square() + self.apart.square()).sqrt()
        gap = (self.wanted - outputs) / deviation
        below: Tensor = torch.special.log_ndtr(gap)
        fits = -0.5 * gap.square() - deviation.log() + below.sum(-1, keepdim=True) - below
        patches = self._patches(self.law.mean + self.law.basis @ z)
        unsure = self._patches(doubt[1]).mean(2)
        noise = error.square() + (self.slope.square() * (self.share * unsure).sum(3)).sum((0, 2))
        sizes = patches.square().sum(2)
        rest = self.gradient.flatten(1) - torch.einsum("sfw,sfwj,wjd->fd", self.slope, self.share, patches)
        for window in range(len(patches)):
            patch = patches[window]
            for step in range(len(self.share)):
                own, share = self.slope[step, :, window, None], self.share[:, :, window]
                rest = rest + own * (share[step] @ patch)
                explained = (own * (rest @ patch.T) - 0.5 * own.square() * sizes[window]) / noise[:, None]
                others = (share * self.alike[step, :, :, window, None]).sum(0)
                self.share[step, :, window] = (fits[step, :, window] + explained + others).softmax(1)
                rest = rest - own * (self.share[step, :, window] @ patch)

    def _routed(self) -> Tensor:
        """The gradient by each output of the convolution, as expected, of all steps: (filters, outputs)."""
        routed = self.share.new_zeros(self.share.shape[1], self.block.under.shape[1])
        routed[:, self.block.windows.flatten()] = (self.share * self.slope[..., None]).sum(0).flatten(1)
        return routed

    def _equations(self, z: Tensor, error: Tensor, slack: Tensor) -> tuple[Tensor, Tensor]:
        """(Cholesky factor, right side) of the unknowns' normal equations: the law, the outputs and the gradient."""
        matrix, right = torch.eye(len(z), dtype=z.dtype, device=z.device), torch.zeros_like(z)
        # The largest of a window is its pooled output, if that is not 0; any other position that lies above it is pulled down.
        largest = self.share[0] * self.active[0][..., None]
        weight = largest + (1 - largest) * (self.rows @ z + self.base > self.wanted[0])
        counts = weight > COUNTS
        rows, kept = self.rows[counts], weight[counts] / slack.square()
        matrix += rows.T @ (rows * kept[:, None])
        right += rows.T @ (kept * (self.wanted[0] - self.base)[counts])
        # The gradient of each filter, with the doubt that the positions leave as noise.
        patches = self._patches(self.law.mean + self.law.basis @ z)
        mean = torch.einsum("sfwj,wjd->sfwd", self.share, patches)
        varied = (self.share * patches.square().sum(2)).sum(3) - mean.square().sum(3)
        noise = error.square() + (self.slope.square() * varied).sum((0, 2)) / patches.shape[2]
        counted = (1 / noise).repeat_interleave(self.gradient.shape[2])
        equations = torch.zeros(len(noise), len(self.under), self.block.cells + 1, dtype=z.dtype, device=z.device)
        routed = self._routed()
        for offset, under in enumerate(self.block.under):
            equations[:, offset].index_add_(1, under, routed)
        flat = equations[:, :, 1:].flatten(0, 1)
        for channel in range(self.block.channels):
            cells = slice(channel * self.block.cells, (channel + 1) * self.block.cells)
            linear = flat @ self.law.basis[cells]
            left = self.gradient[:, channel].flatten() - flat @ self.law.mean[cells]
            matrix += linear.T @ (linear * counted[:, None])
            right += linear.T @ (counted * left)
        return torch.linalg.cholesky(matrix), right
