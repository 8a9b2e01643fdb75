"""A generator of its own for each reconstruction: codes stay, and weights are searched."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import functional_call, vmap

from adversary.base import AttackError
from adversary.spaces.base import Free, Variables
from adversary.spaces.latent import Codes, Generated, like_codes
from fl_app.core.local import Tensors
from fl_app.core.observation import Task
from fl_app.models.generator import Generator

PREFIX = "weights."


@dataclass(frozen=True, kw_only=True)
class GeneratorWeights(Generated):
    """x = G_w(z, y): z stays, and w is searched from the generator's own on (GIAS, Jeon et al. 2021, section 4.2)."""

    def bind(self, task: Task, classes: Tensor | None = None, learned: Tensors | None = None) -> Variables:
        """The weights of a task's generators."""
        return PrivateCopies(self.network(task, learned), classes)


class PrivateCopies(Free, Codes):
    """The weights of a copy of the generator for each target and seed, under names with a prefix."""

    def __init__(self, network: Generator, classes: Tensor | None) -> None:
        Codes.__init__(self, network, classes)

    def draw(self, seeds: int, examples: int, stream: torch.Generator) -> Tensors:
        """Random codes, and the generator as it is."""
        return self.codes(seeds, examples, stream) | self._copies(seeds)

    def _copies(self, *number: int) -> Tensors:
        return {
            f"{PREFIX}{name}": value.detach().cpu().expand(*number, *value.shape).clone()
            for name, value in self.network.named_parameters()
        }

    def continued(self, z: Tensors, before: Variables) -> Tensors:
        """The codes that were found, with a copy of the generator for each."""
        if not isinstance(before, Codes) or "z" not in z or before.network.design != self.network.design:
            raise AttackError(
                "generator_weights goes on from a search in the latent of the same generator: put latent before it"
            )
        device = z["z"].device
        return z | {name: value.to(device) for name, value in self._copies(*z["z"].shape[:2]).items()}

    def inputs(self, z: Tensors) -> Tensor:
        """The images; codes and classes are read and not moved."""
        codes, told = z["z"].detach().flatten(0, 1), self.shares(z).detach().flatten(0, 1)
        weights = {name.removeprefix(PREFIX): value.flatten(0, 1) for name, value in z.items() if name.startswith(PREFIX)}

        def images(own: Tensors, code: Tensor, y: Tensor) -> Tensor:
            found: Tensor = functional_call(self.network, own, (code, y))
            return found

        found: Tensor = vmap(images)(weights, codes, told)
        return like_codes(found.flatten(0, 1), z["z"])
