"""LDPM: noise on all that is sent, and of the class layer one row alone, drawn evenly, so that labels cannot be counted."""

from dataclasses import dataclass, replace
from typing import Annotated, Self

import torch
from pydantic import Field
from torch import Tensor

from adversary.base import Facts
from adversary.entries import Ignoring
from adversary.informed.variant import PRIOR, Variant, averaged, most_likely, with_objective, with_tv
from adversary.labels import last_weight
from adversary.objectives import TINY, Cosine, Objective
from adversary.search.matching import Matching
from client_defenses.ldpm import LDPM
from fl_app.core.local import Tensors
from fl_app.core.observation import Task


@dataclass(frozen=True, kw_only=True)
class OneRow(Objective):
    """-log of the probability of what was sent of one example, whichever row of the class layer it kept.

    The clipping goes by the row, too: with row c the gradient is divided by max(1, |the other layers and row c| / clip).
    """

    scale: Annotated[float, Field(gt=0)]
    """Standard deviation of the noise; on the class layer it is times the number of classes, as the layer is."""
    clip: Annotated[float, Field(gt=0)] = 1.0
    layer: str = "last"
    """The class layer, by the beginning of its parameters' names."""

    def fitted(self, update: Tensors, task: Task) -> Self:
        """Replace 'last' by the layer's name."""
        return replace(self, layer=last_weight(update, task.num_classes).removesuffix("weight"))

    def __call__(self, dummy: Tensors, seen: Tensors, progress: float) -> Tensor:
        """The negative log-likelihood, less a constant."""
        rows = [name for name in seen if name.startswith(self.layer)]
        ours, theirs = (
            torch.cat([one[name].flatten(1) if one[name].ndim > 1 else one[name][:, None] for name in rows], 1)
            for one in (dummy, seen)
        )
        others = [name for name in seen if name not in rows]
        size = _sum([dummy[name].square() for name in others])
        inner = _sum([dummy[name] * seen[name] for name in others])
        sizes = size + ours.square().sum(1)
        factor = self.clip / (sizes + TINY).sqrt().clamp_min(self.clip)  # if row c was kept: (classes,)
        inners = inner + (ours * theirs).sum(1) / len(ours)
        # |sent|² is the same for all rows and is left out: |sent - f g|² = |sent|² - 2 f <sent, g> + f² |g|².
        gap = (factor * (factor * sizes - 2 * inners)) / (2 * self.scale**2)
        return -torch.logsumexp(-gap, 0)


def _sum(values: list[Tensor]) -> Tensor:
    return torch.stack([value.sum() for value in values]).sum()


def variants(defense: LDPM, facts: Facts) -> list[Variant]:
    """The most likely image and label, whichever row was kept; or leaves the class layer out. Rounds are averaged."""

    def change(attack: Matching) -> Matching:
        attack = with_objective(attack, Ignoring(objective=Cosine(), layers=("last",)))
        return averaged(with_tv(_joint(attack), least=PRIOR), facts)

    why = "leaves the class layer out, looks for the label with the image; rounds on the same examples are averaged"
    found = [Variant(why, change, "without the layer")]
    noise = defense.noise_law()
    if noise is not None:
        # The search takes the mean over rounds, where the likelihood of all of them is the sum.
        rounds = facts.rounds if facts.repeats else 1
        law = OneRow(scale=noise.scale * rounds**-0.5, clip=defense.clip)
        likely = most_likely(law, facts, "the most likely image and label, given public examples, whichever row was kept")
        alone = "" if facts.examples == 1 else "examples of a batch each keep a row of their own"
        search = likely.change
        found.insert(0, likely._replace(change=lambda attack: _joint(search(attack)), why_not=alone or likely.why_not))
    return found


def _joint(attack: Matching) -> Matching:
    """Labels that are searched for, unless they were given."""
    return attack if attack.labels == "given" else replace(attack, labels="joint")
