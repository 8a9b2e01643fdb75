"""What a defense is: settings, and hooks around local training that are the identity unless overridden."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, final

import torch
from torch import Tensor, nn

from client_defenses.tools.noise import Noise
from fl_app.core import halfprecision
from fl_app.core.local import Step, Tensors
from fl_app.core.space import Space
from fl_app.core.spec import Checked, SpecError


@dataclass
class Memory:
    """What a defense remembers and draws from; it never leaves the client.

    `state` is kept from round to round, `round` until the round ends: a client makes a new memory in each round from the
    state of the last one, or calls `next_round`.
    """

    state: Tensors
    rng: torch.Generator
    round: Tensors = field(default_factory=dict)

    @classmethod
    def fresh(cls, seed: int) -> "Memory":
        """An empty memory with its own generator."""
        return cls({}, torch.Generator().manual_seed(seed))

    def uniform(self, like: Tensor) -> Tensor:
        """Draws from U(0, 1) in float32, of a tensor's shape and on its device."""
        return torch.rand(like.shape, generator=self.rng).to(like.device)

    def normal(self, like: Tensor) -> Tensor:
        """Draws from N(0, 1) in float32, of a tensor's shape and on its device."""
        return torch.randn(like.shape, generator=self.rng).to(like.device)

    def next_round(self) -> None:
        """Forget what lasts for one round; for training loops whose memory lives longer than that."""
        self.round = {}

    def part(self, name: str) -> "Memory":
        """A view for one part of a chain: its own names, the same generator."""
        return Memory(_below(name, self.state), self.rng, _below(name, self.round))

    def keep(self, name: str, part: "Memory") -> None:
        """Take back what a part remembers."""
        prefix = f"{name}/"
        for ours, theirs in ((self.state, part.state), (self.round, part.round)):
            for key in [key for key in ours if key.startswith(prefix)]:
                del ours[key]
            ours.update({prefix + key: value for key, value in theirs.items()})


def _below(name: str, tensors: Tensors) -> Tensors:
    """Those whose names begin with `name/`, without that."""
    prefix = f"{name}/"
    return {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}


@dataclass(frozen=True, kw_only=True)
class Defense(Checked):
    """A transform of what a client learns from or sends; no hook may change its inputs in place."""

    informed_by: ClassVar[str] = ""
    """`module:function` that gives the informed attackers of this defense; empty: they match through `expected`."""

    def within(self, space: Space) -> "Defense":
        """The defense for examples of a space, which names of columns may be looked up in."""
        return self

    def on_start(self, step: Step, memory: Memory) -> None:
        """Learn from all examples of a client, which are the step's x and y, before its first round; the memory keeps it."""

    def on_batch(self, step: Step, memory: Memory) -> Step:
        """Transform the data."""
        return step

    def gradient(self, step: Step, memory: Memory) -> Tensors:
        """Take the gradient."""
        return step.gradient()

    def transform(self, grads: Tensors, memory: Memory) -> Tensors:
        """Transform the gradient of one step by itself: all that a defense may do to be used on messages too."""
        return grads

    def on_gradient(self, grads: Tensors, step: Step, memory: Memory) -> Tensors:
        """Transform the gradient of one step, with a look at what it was taken of."""
        return self.transform(grads, memory)

    def expected(self, grads: Tensors) -> Tensors:
        """What an informed attacker expects to see of a gradient: without draws, and usefully differentiable.

        It runs under vmap and is differentiated; a transform whose own derivative is zero (rounding, signs) has that of the
        identity here.
        """
        return grads

    def noise_multiplier(self) -> float | None:
        """Noise / sensitivity of the Gaussian mechanism that each step is, for an accountant; None: it promises no epsilon."""
        return None

    def noise_law(self) -> Noise | None:
        """The law of the noise that a step adds to `before_noise`; None where that is not all that it does, or is no noise."""
        return None

    def before_noise(self, step: Step, memory: Memory) -> Tensors:
        """What a step adds its noise to, for `noise_law`: differentiable by the step's x; draws but for the noise are made."""
        return self.expected(step.differentiable_gradient())

    @final
    def protect(self, step: Step, memory: Memory) -> Tensors:
        """The protected gradient of one step."""
        step = self.on_batch(step, memory)
        return self.on_gradient(self.gradient(step, memory), step, memory)

    @final
    def backward(self, model: nn.Module, x: Tensor, y: Tensor, memory: Memory | None = None) -> None:
        """Fill `.grad` with the protected gradient: stands in for `loss.backward()` in any training loop.

        Without a memory the draws are seeded by the operating system and nothing is remembered: each call is a round.
        """
        memory = memory or Memory.fresh(secrets.randbits(63))
        params = {name: value for name, value in model.named_parameters() if value.requires_grad}
        halfprecision.require(params.values())
        grads = self.protect(Step({k: v.detach() for k, v in params.items()}, model, x, y), memory)
        for name, value in params.items():
            value.grad = grads[name].detach().clone() if value.grad is None else value.grad + grads[name].detach()


def overrides(defense: Defense, hook: str) -> bool:
    """Whether a defense changes a hook."""
    if isinstance(defense, Chain):
        return any(overrides(part, hook) for part in defense.parts)
    return getattr(type(defense), hook) is not getattr(Defense, hook)


BEYOND_MESSAGES = ("on_start", "on_batch", "gradient", "on_gradient")


def beyond_messages(defense: Defense) -> list[str]:
    """The hooks by which a defense looks at data or model; without any it can transform a message by itself."""
    if isinstance(defense, Chain):
        return [hook for part in defense.parts for hook in beyond_messages(part)]
    return [hook for hook in BEYOND_MESSAGES if overrides(defense, hook)]


@dataclass(frozen=True, kw_only=True)
class Chain(Defense):
    """Several defenses, applied in order."""

    parts: Sequence[Defense] = field(default=())

    def __post_init__(self) -> None:
        takers = [type(part).__name__ for part in self.parts if overrides(part, "gradient")]
        if len(takers) > 1:
            raise SpecError(
                f"{' and '.join(takers)} each define how the gradient is taken, so they cannot be chained; keep one of them"
            )

    def within(self, space: Space) -> "Chain":
        """Each part for examples of a space."""
        return replace(self, parts=tuple(part.within(space) for part in self.parts))

    def _each(self, memory: Memory) -> list[tuple[str, Defense, Memory]]:
        return [(str(i), part, memory.part(str(i))) for i, part in enumerate(self.parts)]

    def on_start(self, step: Step, memory: Memory) -> None:
        """Let each part learn from the examples as they are."""
        for name, part, own in self._each(memory):
            part.on_start(step, own)
            memory.keep(name, own)

    def on_batch(self, step: Step, memory: Memory) -> Step:
        """Pass the data through each part."""
        for name, part, own in self._each(memory):
            step = part.on_batch(step, own)
            memory.keep(name, own)
        return step

    def gradient(self, step: Step, memory: Memory) -> Tensors:
        """Let the one part that defines the gradient take it."""
        for name, part, own in self._each(memory):
            if overrides(part, "gradient"):
                grads = part.gradient(step, own)
                memory.keep(name, own)
                return grads
        return step.gradient()

    def on_gradient(self, grads: Tensors, step: Step, memory: Memory) -> Tensors:
        """Pass the gradient through each part."""
        for name, part, own in self._each(memory):
            grads = part.on_gradient(grads, step, own)
            memory.keep(name, own)
        return grads

    def transform(self, grads: Tensors, memory: Memory) -> Tensors:
        """Pass the gradient through each part."""
        for name, part, own in self._each(memory):
            grads = part.transform(grads, own)
            memory.keep(name, own)
        return grads

    def expected(self, grads: Tensors) -> Tensors:
        """What each part in turn is expected to make of a gradient."""
        for part in self.parts:
            grads = part.expected(grads)
        return grads

    def noise_multiplier(self) -> float | None:
        """That of its first part, if the others only process what it gave and none looks at data again."""
        promising = [part for part in self.parts if part.noise_multiplier() is not None]
        return self.parts[0].noise_multiplier() if len(promising) == 1 and self._only_first_looks() else None

    def noise_law(self) -> Noise | None:
        """That of its first part, if the others only process what it gave: they can only take information away."""
        return self.parts[0].noise_law() if self._only_first_looks() else None

    def before_noise(self, step: Step, memory: Memory) -> Tensors:
        """What its first part adds noise to."""
        return self.parts[0].before_noise(step, memory.part("0"))

    def _only_first_looks(self) -> bool:
        """Whether all parts but the first only process what they are given."""
        return bool(self.parts) and not any(beyond_messages(part) for part in self.parts[1:])
