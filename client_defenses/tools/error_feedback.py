"""Compression of gradients, with a memory of what it left out (Seide et al. 2014; Karimireddy et al. 2019, Algorithm 1)."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from client_defenses.base import Defense, Memory
from client_defenses.tools.precision import narrowed, widened
from fl_app.core.local import Tensors


@dataclass(frozen=True, kw_only=True)
class Compressor(Defense, ABC):
    """Sends C(g), or with `memory` C(g + e) where e is what all compressions before have left out."""

    memory: bool = False

    @abstractmethod
    def compress(self, grads: Tensors, memory: Memory) -> Tensors:
        """C: a pure function of the gradient in float32 and of draws from the memory's generator."""

    def transform(self, grads: Tensors, memory: Memory) -> Tensors:
        """Compress the gradient, and keep what is left out under `residual/<parameter>` in float32 if told to."""
        total = widened(grads)
        if self.memory:
            for name, value in total.items():
                left = memory.state.get(f"residual/{name}")
                total[name] = value if left is None else value + left.to(value.device)
        sent = narrowed(self.compress(total, memory), grads)
        if self.memory:
            for name, value in total.items():
                # Without the zeros one overflow would spoil every later round.
                memory.state[f"residual/{name}"] = (value - sent[name]).nan_to_num(nan=0, posinf=0, neginf=0)
        return sent


def straight_through(grads: Tensors, compressed: Tensors) -> Tensors:
    """The compressed values with the derivative of the identity, for compressions whose own is zero."""
    return {name: value + (compressed[name] - value).detach() for name, value in grads.items()}
