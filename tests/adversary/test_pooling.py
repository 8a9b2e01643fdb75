"""A convolution, ReLU and max pooling taken apart: its equations against those of autograd, and its positions by hand."""

import pytest
import torch
from torch import nn
from torch.distributions import Normal
from torch.nn import functional as F

from adversary.exact.pooling import Evidence, Law, PooledConvolution, _Inference

SHAPE = torch.Size((2, 6, 6))


def scene(filters=5, size=2, shape=SHAPE, padding=1, stride=1, steps=1, seed=0):
    """(block, input, evidence, law): one convolution whose input is a draw from the law, and the gradients of its steps."""
    rng = torch.Generator().manual_seed(seed)
    conv = nn.Conv2d(shape[0], filters, 3, padding=padding, stride=stride)
    weight, bias = (torch.randn(value.shape, generator=rng).double() / 3 for value in (conv.weight, conv.bias))
    block = PooledConvolution(conv, weight, bias, shape, size)
    basis = torch.randn(shape.numel(), shape.numel(), generator=rng).double() / 9 + 0.5 * torch.eye(shape.numel())
    law = Law(torch.rand(shape.numel(), generator=rng).double(), basis)
    x = law.mean + basis @ torch.randn(shape.numel(), generator=rng).double()
    pooled, slopes, total = [], [], torch.zeros_like(weight)
    for step in range(steps):
        moved = (x + 0.01 * step).view(1, *shape)
        leaf = weight.clone().requires_grad_()
        out = F.max_pool2d((F.conv2d(moved, leaf, bias, stride, padding)).relu(), size)
        slope = torch.randn(out.shape, generator=rng).double()
        total += torch.autograd.grad((out * slope).sum(), leaf)[0]
        pooled.append(out.detach().flatten())
        slopes.append(slope.flatten())
    return block, x, Evidence(torch.stack(pooled), torch.stack(slopes), total), law


def positions(block, x):
    """Which position of its window is the largest, as a share of one (filters, windows, positions)."""
    out = block._convolved(x.view(1, *block.shape))[0].flatten(1)[:, block.windows]
    return F.one_hot(out.argmax(2), block.windows.shape[1]).double()


@pytest.mark.parametrize(("padding", "stride", "size"), [(1, 1, 2), (0, 1, 1), (1, 2, 3)])
def test_outputs_and_patches_are_those_of_the_convolution(padding, stride, size):
    block, x, seen, law = scene(padding=padding, stride=stride, size=size)
    at = _Inference(block, seen, law)
    z = torch.linalg.solve(law.basis, x - law.mean)
    plain = F.conv2d(x.view(1, *SHAPE), block.weight, block.bias, stride, padding)
    windows = F.unfold(plain.transpose(0, 1), size, stride=size).transpose(1, 2)  # (filters, windows, positions)
    torch.testing.assert_close(at.rows @ z + at.base, windows)
    patches = F.unfold(x.view(1, *SHAPE), 3, padding=padding, stride=stride)[0].T
    torch.testing.assert_close(at._patches(x), patches[block.windows])
    torch.testing.assert_close(block.pooled(x.view(1, *SHAPE)).flatten(), seen.pooled[0])


@pytest.mark.parametrize("kernel", [3, 5, (5, 3), (3, 5)])
def test_padding_by_name_keeps_the_size(kernel):
    conv = nn.Conv2d(2, 3, kernel, padding="same")
    block = PooledConvolution(conv, conv.weight.detach(), conv.bias.detach(), SHAPE, 2)
    x = torch.rand(1, *SHAPE)
    with torch.no_grad():
        torch.testing.assert_close(block.pooled(x), F.max_pool2d(conv(x).relu(), 2))


def test_what_is_known_at_first_of_several_steps():
    block, _, seen, law = scene(steps=3)
    at = _Inference(block, seen._replace(error=0.3), law)
    assert (at.narrow, at.tight) == (0.3, 0.3)
    assert (_Inference(block, seen, law).narrow, _Inference(block, seen, law).tight) == (0.02, 0.05)
    torch.testing.assert_close(at.active.flatten(1), seen.pooled > 0)
    assert at.scale.item() == pytest.approx(seen.pooled[seen.pooled > 0].square().mean().sqrt().item())
    apart = (seen.pooled - seen.pooled[0]).square().mean(1).sqrt()
    torch.testing.assert_close(at.apart.flatten(), apart)
    assert at.unit.item() == pytest.approx(seen.gradient.square().mean().sqrt().item())
    torch.testing.assert_close(at.slope.flatten(1), seen.slope * (seen.pooled > 0))
    assert (at.share == 0.25).all()
    # Positions speak for each other in different steps where the window is active in both.
    for one in range(3):
        for other in range(3):
            expected = (at.active[one] & at.active[other]).double() * (one != other)
            torch.testing.assert_close(at.alike[one, other].double(), expected)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_windows_far_below_the_largest_are_not_active_on_any_scale(scale):
    block, _, seen, law = scene()
    pooled = scale * torch.linspace(0, 2, seen.pooled.numel()).double().view_as(seen.pooled)
    pooled[0, 1:3] = scale * torch.tensor([1.9e-5, 2.1e-5]).double()
    active = _Inference(block, seen._replace(pooled=pooled), law).active.flatten()
    assert active[:4].tolist() == [False, False, True, True]


def test_doubts_are_the_variances_of_outputs_and_inputs():
    block, _, seen, law = scene()
    at = _Inference(block, seen, law)
    rng = torch.Generator().manual_seed(1)
    root = torch.randn(SHAPE.numel(), SHAPE.numel(), generator=rng).double()
    outputs, inputs = at._doubts(root @ root.T)
    torch.testing.assert_close(inputs, (law.basis @ root).square().sum(1))
    torch.testing.assert_close(outputs, (at.rows @ root).square().sum(-1))


def test_with_the_right_positions_the_routed_gradient_is_that_of_autograd():
    block, x, seen, law = scene(steps=2)
    at = _Inference(block, seen, law)
    at.share = torch.stack([positions(block, x + 0.01 * step) for step in range(2)])
    routed = at._routed()
    gradient = torch.zeros_like(routed)
    for step in range(2):
        out = F.conv2d((x + 0.01 * step).view(1, *SHAPE), block.weight, block.bias, padding=1).requires_grad_()
        slope = seen.slope[step].view(1, len(routed), 3, 3)
        gradient += torch.autograd.grad((F.max_pool2d(out.relu(), 2) * slope).sum(), out)[0][0].flatten(1)
    torch.testing.assert_close(routed, gradient)


def test_with_the_right_positions_the_equations_lead_to_the_input():
    block, x, seen, law = scene(filters=24)
    at = _Inference(block, seen, law)
    at.share = positions(block, x)[None]
    true = torch.linalg.solve(law.basis, x - law.mean)
    factor, right = at._equations(true, torch.tensor(1e-5), torch.tensor(1e-5))
    found = torch.cholesky_solve(right[:, None], factor)[:, 0]
    torch.testing.assert_close(found, true, rtol=1e-3, atol=1e-3)


def test_the_equations_are_those_of_a_gaussian_with_these_errors():
    """The law's, one for each output that is the largest or lies above it, and one for each entry of the gradient."""
    block, _, seen, law = scene()
    at = _Inference(block, seen, law)
    at.share = torch.rand(at.share.shape, generator=torch.Generator().manual_seed(2)).double().softmax(-1)
    error, slack = torch.tensor(0.3), torch.tensor(0.2)
    z = torch.zeros(SHAPE.numel()).double()
    factor, right = at._equations(z, error, slack)
    largest = at.share[0] * at.active[0][..., None]
    weight = largest + (1 - largest) * (at.base > at.wanted[0])
    rows, wanted = at.rows.flatten(0, 2), (at.wanted[0] - at.base).flatten()
    weight = weight.flatten() * (weight.flatten() > 0.01) / slack**2
    routed = at._routed().view(1, -1, 6, 6)

    def gradient(inputs):
        """Of the weight, given the gradient by the convolution's outputs: linear in the input."""
        return nn.grad.conv2d_weight(inputs.view(1, *SHAPE), block.weight.shape, routed, padding=1)

    linear = torch.stack([gradient(column).flatten() for column in law.basis.T], 1)
    patches = at._patches(law.mean)
    mean = torch.einsum("fwj,wjd->fwd", at.share[0], patches)
    varied = (at.share[0] * patches.square().sum(2)).sum(2) - mean.square().sum(2)
    noise = error**2 + (at.slope[0].square() * varied).sum(1) / patches.shape[2]
    counted = (1 / noise).repeat_interleave(18)
    left = (seen.gradient - gradient(law.mean)).flatten()
    matrix = torch.eye(len(z)).double() + rows.T @ (weight[:, None] * rows) + linear.T @ (counted[:, None] * linear)
    torch.testing.assert_close(factor @ factor.T, matrix)
    torch.testing.assert_close(right, rows.T @ (weight * wanted) + linear.T @ (counted * left))


def test_the_likeliest_position_of_one_window_by_hand():
    """Its output is the pooled one, no other lies above, and the gradient is the slope times what lies under the kernel."""
    shape = torch.Size((1, 4, 4))
    block, x, seen, law = scene(filters=2, shape=shape, padding=0)
    at = _Inference(block, seen, law)
    rng = torch.Generator().manual_seed(4)
    doubt = (torch.rand(at.base.shape, generator=rng).double(), torch.rand(16, generator=rng).double())
    error, slack = torch.tensor(0.7).double(), torch.tensor(0.4).double()
    z = torch.linalg.solve(law.basis, x + 0.3 - law.mean)
    before = at.share.clone()
    at._look(z, doubt, error, slack)
    patches, unsure = at._patches(x + 0.3)[0], at._patches(doubt[1])[0].mean(1)
    outputs = (at.rows @ z + at.base)[:, 0]
    for one in range(2):
        wanted, own = seen.pooled[0, one], at.slope[0, one, 0]
        law_of = Normal(outputs[one], (doubt[0][one, 0] + slack**2).sqrt())
        noise = error**2 + own**2 * (before[0, one, 0] * unsure).sum()
        rest = seen.gradient[one].flatten()
        scores = torch.stack(
            [
                law_of.log_prob(wanted)[j]
                + sum(law_of.cdf(wanted)[k].log() for k in range(4) if k != j)
                - 0.5 * (rest - own * patches[j]).square().sum() / noise
                for j in range(4)
            ]
        )
        torch.testing.assert_close(at.share[0, one, 0], scores.softmax(0))


def test_positions_are_certain_where_the_input_is():
    block, x, seen, law = scene(steps=2)
    at = _Inference(block, seen, law)
    nothing = (torch.zeros_like(at.base), torch.zeros(SHAPE.numel()).double())
    at._look(torch.linalg.solve(law.basis, x - law.mean), nothing, at.unit * 100, at.scale * 1e-3)
    assert ((at.share[0] * positions(block, x)).sum(2)[at.active[0]] > 0.8).all()
    torch.testing.assert_close(at.share.sum(-1), torch.ones_like(at.share[..., 0]))


def test_errors_that_are_allowed_shrink_and_doubts_are_looked_at_now_and_then(monkeypatch):
    block, _, seen, law = scene()
    at = _Inference(block, seen._replace(error=0.2), law)
    allowed, doubts = [], []
    monkeypatch.setattr(at, "_look", lambda z, doubt, error, slack: allowed.append((error.item(), slack.item())))
    monkeypatch.setattr(at, "_doubts", doubts.append)
    number = SHAPE.numel()
    factor, right = 2 * torch.eye(number).double(), torch.arange(float(number)).double()
    monkeypatch.setattr(at, "_equations", lambda z, error, slack: (factor, right))
    torch.testing.assert_close(at.solved(), law.mean + law.basis @ (right / 4))
    parts = torch.linspace(0, 1, 30).double()
    torch.testing.assert_close(torch.tensor([one for one, _ in allowed]).double(), at.unit * 0.2**parts, rtol=1e-5, atol=0)
    torch.testing.assert_close(
        torch.tensor([one for _, one in allowed]).double(), at.scale * 0.5 * 0.4**parts, rtol=1e-5, atol=0
    )
    assert len(doubts) == 11
    assert torch.equal(doubts[0], torch.eye(number).double())
    torch.testing.assert_close(doubts[1], torch.eye(number).double() / 4)


@pytest.mark.parametrize(("size", "filters", "error"), [(1, 8, 0.02), (2, 32, 0.1)])
def test_the_input_is_found(size, filters, error):
    block, x, seen, law = scene(filters=filters, size=size)
    found = block.taken_apart(seen, law)
    assert (found - x).norm() < error * x.norm() < 0.5 * (law.mean - x).norm()
