"""Images as a generator draws them: the search is for codes."""

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from adversary import generators
from adversary.base import AttackError, Public
from adversary.learned.decoder_training import GeneratorTraining, trained
from adversary.spaces.base import Parametrisation, Variables
from fl_app.core.local import Tensors
from fl_app.core.observation import Task
from fl_app.models.generator import Design, Generator, design_of

OWN = GeneratorTraining(steps=150, batch_size=64)
"""Of a small generator that is learned on the spot, where none is named (ours)."""


@dataclass(frozen=True, kw_only=True)
class Generated(Parametrisation):
    """Images of a generator that learned from public ones; if none is named, a small one learns from those at hand."""

    generative: ClassVar[bool] = True
    generator: str = ""
    """The generator, by its name in the cache or its file; empty: a run has one made, anybody else learns a small one."""

    @property
    def trained(self) -> bool:  # type: ignore[override]
        """Whether it learns one itself."""
        return not self.generator

    def learn(self, public: Public, task: Task) -> Tensors:
        """The weights of a small generator, by name."""
        return dict(trained(public.x.cpu(), public.y.cpu(), _small(task), OWN).state_dict())

    def network(self, task: Task, learned: Tensors | None) -> Generator:
        """The generator for a task, on the device of its model; AttackError if it draws something else."""
        device = next(iter(task.model.parameters())).device
        if not self.generator:
            if not learned:
                raise AttackError(f"there is no generator: {generators.ADVICE}")
            return generators.rebuilt(_small(task), learned, "what was learned").to(device)
        found, facts, _ = generators.load(self.generator)
        if facts.design.shape != tuple(task.space.shape) or facts.design.classes not in (0, task.num_classes):
            raise AttackError(
                f"the generator {self.generator} draws {facts.design.shape} of {facts.design.classes} classes, and these "
                f"examples are {tuple(task.space.shape)} of {task.num_classes}: {generators.ADVICE}"
            )
        if device.type == "cpu":
            return found
        return generators.rebuilt(facts.design, {name: value.to(device) for name, value in found.state_dict().items()}, "")


def _small(task: Task) -> Design:
    shape = tuple(task.space.shape)
    if len(shape) != 3:
        raise AttackError("a generator draws images of (channels, height, width), and these examples are none")
    return replace(design_of(shape, task.num_classes, small=True), latent=min(32, shape[1] * shape[2] // 4))


class Codes:
    """What all spaces of a generator share: codes z (targets, seeds, examples, latent), and the classes that they belong to."""

    def __init__(self, network: Generator, classes: Tensor | None) -> None:
        self.network, self.classes = network, classes

    def codes(self, seeds: int, examples: int, stream: torch.Generator) -> Tensors:
        """Draws from N(0, 1); where classes are searched for, the generator's own are, too."""
        design = self.network.design
        found = {"z": torch.randn((seeds, examples, design.latent), generator=stream)}
        if self.classes is None and design.classes:
            found["y"] = 0.1 * torch.randn((seeds, examples, design.classes), generator=stream)
        return found

    def shares(self, z: Tensors) -> Tensor:
        """How much of each class every example is, (targets, seeds, examples, classes)."""
        codes, number = z["z"], self.network.design.classes
        if not number:
            return codes[..., :0]
        if self.classes is None:
            return z["y"].softmax(-1)
        soft = self.classes if self.classes.is_floating_point() else F.one_hot(self.classes, number)
        return soft.to(codes)[:, None].expand(*codes.shape[:3], number)

    def maps(self, z: Tensors, stage: int) -> Tensor:
        """The generator's feature maps at a stage, (targets, seeds, examples, channels, height, width)."""
        flat = self.network.maps(z["z"].flatten(0, 2), self.shares(z).flatten(0, 2), stage)
        return like_codes(flat, z["z"])


def like_codes(flat: Tensor, like: Tensor) -> Tensor:
    """What was one for each example, (n, ...), as (targets, seeds, examples, ...) again."""
    return flat.view(*like.shape[:3], *flat.shape[1:])


@dataclass(frozen=True, kw_only=True)
class Latent(Generated):
    """x = G(z, y) with z of N(0, I) (GGL, Li et al. 2022, section 4): only what the generator draws can be found."""

    weight: Annotated[float, Field(ge=0)] = 0.1
    """Of the KL divergence of the entries of a code from N(0, 1): GGL's regulariser."""

    def bind(self, task: Task, classes: Tensor | None = None, learned: Tensors | None = None) -> Variables:
        """The codes of a task."""
        return LatentCodes(self.network(task, learned), classes, self.weight)


class LatentCodes(Codes):
    """Codes that are searched."""

    def __init__(self, network: Generator, classes: Tensor | None, weight: float) -> None:
        super().__init__(network, classes)
        self.weight = weight

    def draw(self, seeds: int, examples: int, stream: torch.Generator) -> Tensors:
        """Codes from N(0, 1)."""
        return self.codes(seeds, examples, stream)

    def inputs(self, z: Tensors) -> Tensor:
        """The images."""
        return like_codes(self.network(z["z"].flatten(0, 2), self.shares(z).flatten(0, 2)), z["z"])

    answer = inputs

    def project(self, z: Tensors) -> Tensors:
        """The same."""
        return z

    def penalty(self, z: Tensors) -> Tensor:
        """-1/2 (1 + log s^2 - m^2 - s^2) with m and s the mean and spread of a code's entries, summed over examples."""
        variance, mean = torch.var_mean(z["z"], dim=-1, correction=0)
        divergence = -0.5 * (1 + variance.clamp_min(1e-12).log() - mean.square() - variance)
        return self.weight * divergence.sum(-1)

    def residuals(self, z: Tensors) -> Tensor:
        """None without a weight; else it is no sum of squares."""
        if self.weight:
            raise AttackError("the space latent has a penalty that is no sum of squares: use adam or cma, or weight=0")
        return z["z"].new_zeros((*z["z"].shape[:2], 0))
