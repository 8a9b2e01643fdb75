"""Refiner (Fan et al. 2025): the gradient of robust data that look like noise in place of the gradient of the data."""

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from client_defenses.base import Defense, Memory
from client_defenses.tools import evaluator as evaluation
from client_defenses.tools.precision import narrowed, widened
from client_defenses.tools.robust import Pixels, Robust, robust_of
from fl_app.core.local import Step, Tensors

Count = Annotated[int, Field(ge=0, le=10**6)]
HASH_SEED = 0x5EED
IMAGES = Pixels()


class Trial(NamedTuple):
    """A candidate for the robust data: x (batch, *shape), its gradient, and the objective, which can be differentiated."""

    x: Tensor
    grads: Tensors
    objective: Tensor


@dataclass(frozen=True, kw_only=True)
class Refiner(Defense):
    """Sends the gradient of robust data x* = argmin UM(x*, x) - beta D(x*), at most eps from the true one (Eq. 2, App. J).

    The whole batch is refined at once: UM compares the batch's gradients, and D is summed over its images, so that the
    pull towards noise does not depend on the batch size. Of text (Appendix F) robust data are word vectors, noise is random
    words, and the word table must be frozen.
    """

    alpha: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Share of uniform noise, or of random words, in the start (section 3.4)."""
    beta: Annotated[float, Field(ge=0)] = 1.0
    iterations: Count = 10
    """Steps per batch, t."""
    warm_iterations: Count = 5
    """Steps per batch if at least half of its images are known: robust data of earlier rounds are reused (section 6.3).

    Each known image starts from its robust data, every other one from noise blended in; that half decides is ours.
    """
    tau: Annotated[float, Field(ge=0, le=1)] = 0.95
    """The weight of layer i is tau^i."""
    eps: Annotated[float, Field(gt=0)] | None = None
    """Bound on the distance of what is sent to the true gradient, as one vector; None: no bound."""
    lr: Annotated[float, Field(gt=0)] = 1.0
    """Step of the gradient descent; 1 is named in Figure 5 only."""
    backtrack: bool = True
    """Take back and halve a step that made the objective worse (ours: at batch 1 a step of 1 overshoots)."""
    relative: bool = False
    """Divide UM by its value for a zero gradient, so that beta means the same for small gradients (ours)."""
    remember: Annotated[int, Field(ge=0)] | None = None
    """Of how many images the robust data are kept, the newest; None: all of them; 0: none, so no warm start.

    An image takes a byte per pixel and channel, and 8 more: 15 MB for 5,000 images of CIFAR-10. A word takes two bytes per
    float: 8 kB for 32 words of width 128.
    """
    evaluator: str = ""
    """The evaluation network, by its name in the cache or the path of its file.

    Runs make one where this is empty, from photos that are nobody's data, or from public text.
    """

    def gradient(self, step: Step, memory: Memory) -> Tensors:
        """Refine the batch and send the gradient of what came of it."""
        network, keys = evaluation.load(self.evaluator, step.x.device), keys_of(step.x)
        step, kind = robust_of(step, network)
        true = step.gradient()
        start, warm = self._start(step.x, memory, keys, kind)
        robust, grads = self.refine(step, true, start, self.warm_iterations if warm else self.iterations, network, kind)
        self._keep(keys, kind.packed(robust), memory)
        return grads if self.eps is None else project(grads, true, self.eps)

    def refine(
        self, step: Step, true: Tensors, start: Tensor, iterations: int, network: evaluation.Evaluator, kind: Robust = IMAGES
    ) -> tuple[Tensor, Tensors]:
        """(robust data, their gradient) after some steps of gradient descent on Eq. 2 from `start`."""
        weights = weights_of(true, step.params, self.tau)
        if self.relative:
            scale = mismatch(weights, true, {name: torch.zeros_like(value) for name, value in true.items()})
            weights = {name: value / scale.clamp_min(torch.finfo(scale.dtype).tiny) for name, value in weights.items()}
        true, lr = widened(true), self.lr
        best, by_x = self._trial(step, true, weights, start, network, final=iterations == 0), None
        for left in reversed(range(iterations)):
            if by_x is None:
                (by_x,) = torch.autograd.grad(best.objective, best.x)
            x = kind.allowed(best.x.detach() - lr * by_x)
            trial = self._trial(step, true, weights, x, network, final=left == 0)
            if not self.backtrack or bool(trial.objective < best.objective):  # False for NaN
                best, by_x = trial, None
            else:
                lr /= 2
        return best.x.detach(), {name: value.detach() for name, value in best.grads.items()}

    def _trial(
        self, step: Step, true: Tensors, weights: Tensors, x: Tensor, network: evaluation.Evaluator, *, final: bool
    ) -> Trial:
        x = x.detach().requires_grad_(not final)
        here = step._replace(x=x.to(step.x.dtype))
        # Autograd with create_graph instead of torch.func was within 15 % of this, at batch 8 faster, at 128 slower.
        grads = here.gradient() if final else here.differentiable_gradient()
        return Trial(x, grads, mismatch(weights, widened(grads), true) - self.beta * network(x).sum())

    def _start(self, x: Tensor, memory: Memory, keys: Tensor | None = None, kind: Robust = IMAGES) -> tuple[Tensor, bool]:
        """(where each image starts: robust data of an earlier round, or itself with noise blended in; is it a warm start)."""
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        blended = kind.allowed(evaluation.mix(wide, self.alpha, kind.noise(wide, memory)))
        before, robust = memory.state.get("keys"), memory.state.get("robust")
        if before is None or robust is None or robust.shape[1:] != x.shape[1:]:
            return blended, False
        same = (keys_of(x) if keys is None else keys)[:, None] == before.to(x.device)
        known, place = same.any(1), same.int().argmax(1)
        kept = kind.unpacked(robust.to(x.device)[place].to(wide))
        return torch.where(known.view(-1, *[1] * (x.ndim - 1)), kept, blended), bool(2 * known.sum() >= len(x))

    def _keep(self, keys: Tensor, robust: Tensor, memory: Memory) -> None:
        """Remember the newest robust data, packed, by the keys of what they stand for."""
        if self.remember == 0:
            return
        keys, robust = keys[: self.remember], robust[: self.remember]
        if "keys" in memory.state and memory.state["robust"].shape[1:] == robust.shape[1:]:
            before = memory.state["keys"].to(keys.device)
            others = (~torch.isin(before, keys)).nonzero().flatten()
            if self.remember is not None:
                others = others[: self.remember - len(keys)]
            keys = torch.cat([keys, before[others]])
            robust = torch.cat([robust, memory.state["robust"].to(robust.device)[others]])
        memory.state["keys"], memory.state["robust"] = keys, robust


def layers_of(names: list[str]) -> dict[str, int]:
    """Parameter name -> number of its layer, from 1; the weight and the bias of a module share one."""
    modules = list(dict.fromkeys(name.rpartition(".")[0] for name in names))
    return {name: modules.index(name.rpartition(".")[0]) + 1 for name in names}


def weights_of(grads: Tensors, params: Tensors, tau: float) -> Tensors:
    """|gradient x value x tau^layer| of every entry (Eq. 3)."""
    layers, values = layers_of(list(grads)), widened(params)
    return {name: (grad * values[name]).abs() * tau ** layers[name] for name, grad in widened(grads).items()}


def mismatch(weights: Tensors, grads: Tensors, true: Tensors) -> Tensor:
    """UM: the weighted sum of the squared differences.

    Eq. 4 prints the norm of a sum over layers of different shapes, which is not defined; this is what its text says.
    """
    return torch.stack([(weight * (grads[name] - true[name]).square()).sum() for name, weight in weights.items()]).sum()


def project(grads: Tensors, true: Tensors, eps: float) -> Tensors:
    """The point nearest to `grads` whose distance to `true` is at most eps (Appendix J); exact but for the type's rounding."""
    gap = {name: grads[name].double() - true[name].double() for name in true}
    distance = torch.stack([value.square().sum() for value in gap.values()]).sum().sqrt()
    if bool(distance <= eps):
        return grads
    factor = eps / distance
    return narrowed({name: true[name].double() + factor * value for name, value in gap.items()}, grads)


def keys_of(x: Tensor) -> Tensor:
    """A number for what each image or text holds, int64 (batch,): a random linear map of its bits, the same everywhere."""
    plain = x.detach().cpu().flatten(1)
    bits = plain.float().view(torch.int32).long() if plain.is_floating_point() else plain.long()
    rng = torch.Generator().manual_seed(HASH_SEED)
    factors = torch.randint(-(2**62), 2**62, (bits.shape[1],), generator=rng)
    return (bits * (2 * factors + 1)).sum(1).to(x.device)
