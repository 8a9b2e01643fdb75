"""Learning to Invert (Wu et al. 2023): from the update, as the defense left it, to the examples."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from adversary.base import AttackError, Facts, Guess, Informed, Public
from adversary.labels import LabelRule, infer
from adversary.learned import batches, decoder
from adversary.learned.base import Decoding
from adversary.learned.sketch import Sketch
from adversary.learned.spent import enough, remark, spent
from adversary.learned.updates import at_once, stacked
from fl_app.core.local import Tensors
from fl_app.core.observation import Observation, Task

CHUNK = 500
"""Updates that are held at once before they are sketched."""


@dataclass(frozen=True, kw_only=True)
class LTI(Decoding):
    """Learns on public images, at the weights of the round and through the defense, what an update gives away.

    Of one image per update a line for each class says most, and the MLP of the paper learns what it misses (ours: the paper has
    the MLP alone and 50,000 images). Of batches the MLP answers with all images, in any order: the loss is that of the best
    pairs. Which class a line is of is inferred from the update.
    """

    sketch: Annotated[int, Field(ge=16, le=2**17)] = 4096  # the paper: half of the entries or fewer
    """How many numbers an update is hashed to."""

    def learn(self, task: Task, seen: Observation, public: Public, rng: torch.Generator) -> Tensors:
        """A sketch of updates, and from there the examples."""
        self.of_images(task)
        began, public = time.monotonic(), enough("lti", public, self.public)
        if seen.num_examples > 1:
            last = int(len(public.x) * (1 - decoder.HELD_OUT))
            used, held = (Public(public.x[part], public.y[part]) for part in (slice(last), slice(last, None)))
            made = batches.Made(task, seen, self.shown(used), held, self.sketch)
            return {**batches.learned(made, self.training, rng), **spent(public, began)}
        used = self.shown(public)
        x, y = used.x[:, None], used.y[:, None]
        sketch = Sketch.drawn(at_once(task, seen, x[:CHUNK], y[:CHUNK], rng), self.sketch, rng)

        def drawn() -> Tensor:
            parts = zip(x.split(CHUNK), y.split(CHUNK), strict=True)
            return torch.cat([sketch.of(at_once(task, seen, own_x, own_y, rng)) for own_x, own_y in parts])

        few = (x[:16], y[:16])
        first, again = (sketch.of(at_once(task, seen, *few, rng)) for _ in range(2))
        anew = None if torch.equal(first, again) else drawn
        known = self.known(drawn(), used, public, used.y)
        found = decoder.learned(known, task.num_classes, self.training, rng, anew)
        return {**found, **sketch._asdict(), **spent(public, began)}

    def run(self, seen: Sequence[Observation], task: Task, streams: Sequence[torch.Generator]) -> Guess:
        """The images of all updates at once; how far each explains its update is not looked at, so the loss is 0."""
        if not self.learned:
            raise AttackError("lti learns from public examples first, and there are none here")
        features = Sketch(self.learned["bucket"], self.learned["factor"]).of(stacked([one.update for one in seen]))
        rule: LabelRule = "rows" if seen[0].num_examples == 1 or seen[0].knowledge.defense else "count"
        y = torch.stack([infer(rule, one, task, stream) for one, stream in zip(seen, streams, strict=True)]).to(features.device)
        shape = (len(seen), seen[0].num_examples, *task.space.shape)
        if seen[0].num_examples > 1:
            x = batches.decoded(self.learned, features)
        else:
            x = decoder.decoded(self.learned, features, y[:, 0])
        return Guess(x.reshape(shape), y, features.new_zeros(len(seen)), remark=remark(self.learned))

    def informed(self, defense: str, facts: Facts) -> list[Informed]:
        """The same, learned through the defense."""
        return [] if defense == "none" else [Informed("", self, "learns through the defense")]
