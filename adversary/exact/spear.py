"""`spear`: whole batches, exactly, through a linear layer and its ReLU (Dimitrov et al. 2024)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from adversary.base import Attack, AttackError, Guess, Public
from adversary.exact.decompose import Decomposition, Layer, decompose
from adversary.exact.images import ImageSearch, learned_map, rebuilt
from adversary.exact.layers import classes_of, first_gated, padded, pixels_into
from adversary.labels import as_gradient
from adversary.objectives import cosine
from adversary.priors import Weight
from adversary.search.optimizers import Count
from fl_app.core.local import LocalRule, Tensors, local_update
from fl_app.core.observation import Observation, Task

MOST = 32
"""Examples beyond which too few directions of a usual layer lead to one of them."""


@dataclass(frozen=True, kw_only=True)
class Spear(Attack):
    """SPEAR (Dimitrov et al. 2024): takes a batch apart at the first linear layer with a ReLU behind it.

    If that layer reads the image, the images follow exactly, and the loss is 1 - gamma times the share of examples found:
    0 is a proof, anything above 0 is none. If it reads features, each image is searched for by itself, given its features and
    its class, and the loss is one minus the cosine of the updates.
    """

    needs_public: ClassVar[bool] = False
    proof: ClassVar[float | None] = 0.0
    draws: Count = 20_000
    """Random directions to search from before the best so far is the answer; some hundreds are enough for 20 examples."""
    tolerance: Weight = 0.0
    """Relative size below which a slope counts as zero; 0: by the precision of the update. 0.001 for noisy updates."""
    iterations: Count = 300
    """Of the search for images, where the layer reads features."""
    seeds: Count = 4
    """Images that are searched side by side from noise, and averaged."""
    public: bool = False
    """Start from a linear map of features to images that is learned from public examples at the weights of the round."""

    @property
    def trained(self) -> bool:  # type: ignore[override]
        """Whether it starts from public examples."""
        return self.public

    def learn(self, task: Task, seen: Observation, public: Public, rng: torch.Generator) -> Tensors:
        """The map of features to images; nothing where the layer reads the image itself."""
        layer = first_gated(task, seen.params, seen.update)
        if pixels_into(task, seen.params, layer) is not None:
            return {}
        return learned_map(task, seen.params, layer, public)

    def cost(self, examples: int, rule: LocalRule) -> float:
        """That of the search for images; directions cost little up to 20 examples."""
        return float(self.iterations * examples * (1 if self.public else self.seeds))

    def run(self, seen: Sequence[Observation], task: Task, streams: Sequence[torch.Generator]) -> Guess:
        """Take each target apart."""
        if seen[0].num_examples > MOST:
            raise AttackError(
                f"spear takes batches of up to {MOST} examples, not of {seen[0].num_examples}: use cocktail_party"
            )
        answers = [self._target(one, task, stream) for one, stream in zip(seen, streams, strict=True)]
        return Guess.stacked(answers)

    def _target(self, seen: Observation, task: Task, stream: torch.Generator) -> Guess:
        gradient, like = as_gradient(seen), next(iter(seen.params.values()))
        layer = first_gated(task, seen.params, gradient)
        found = taken_apart(seen, task, stream, layer, self.draws, self.tolerance)
        number, examples = len(found.inputs), seen.num_examples
        y = torch.zeros(examples, dtype=torch.int64, device=like.device)
        if number:
            y[:number] = classes_of(task, seen.params, layer, found.inputs.to(like), found.slopes.to(like))
        pixels = pixels_into(task, seen.params, layer)
        if pixels is not None or not number:
            inputs = found.inputs.to(like.device)
            image = inputs.new_empty(0, *task.space.shape) if pixels is None else pixels.image(inputs, task.space.shape)
            return Guess(padded(image.to(like), examples), y, 1 - like.new_tensor(found.gamma * number / examples))
        noise = task.space.noise(self.seeds * number, stream).to(like)
        search = ImageSearch(iterations=self.iterations)
        images = rebuilt(found.inputs.to(like), layer, task, seen.params, self.learned, search, noise)
        x = padded(images, examples)
        return Guess(x, y, cosine(local_update(task.model, seen.params, x, y, seen.rule), seen.update))


def taken_apart(
    seen: Observation, task: Task, stream: torch.Generator, layer: str, draws: int, tolerance: float
) -> Decomposition:
    """The inputs of a layer, example by example."""
    gradient = as_gradient(seen)
    of_layer = (f"{layer}.weight", f"{layer}.bias")
    parts = [*(seen.params[name] for name in of_layer), *(gradient[name] for name in of_layer)]
    return decompose(Layer(*(part.cpu() for part in parts)), seen.num_examples, stream, draws=draws, tolerance=tolerance)
