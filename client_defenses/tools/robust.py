"""What Refiner's robust data may be: pixels of [0, 1] under uniform noise, or word vectors among random words."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from client_defenses.base import Memory
from client_defenses.tools.evaluator import Evaluator, EvaluatorError
from client_defenses.tools.word_evaluator import digest_of, random_words
from client_defenses.tools.words import lifted
from fl_app.core.local import Step
from fl_app.core.spec import SpecError

NO_TABLE = (
    "refiner on text needs a word table that is not trained, as its evaluation network knows the vectors: bert, gpt or minilm "
    "with freeze=True"
)


class Robust(ABC):
    """Where robust data start, how far they may go, and how they are kept from round to round."""

    @abstractmethod
    def noise(self, x: Tensor, memory: Memory) -> Tensor:
        """What is blended into x (batch, *shape) at the start, of its shape."""

    @abstractmethod
    def allowed(self, x: Tensor) -> Tensor:
        """The nearest robust data that there may be."""

    @abstractmethod
    def packed(self, x: Tensor) -> Tensor:
        """Robust data in few bytes."""

    @abstractmethod
    def unpacked(self, kept: Tensor) -> Tensor:
        """What `packed` made small, once its numbers are wide again."""


class Pixels(Robust):
    """Images in [0, 1], a byte per pixel."""

    def noise(self, x: Tensor, memory: Memory) -> Tensor:
        """Uniform noise (section 3.4)."""
        return memory.uniform(x).to(x)

    def allowed(self, x: Tensor) -> Tensor:
        """In [0, 1]."""
        return x.clamp(0, 1)

    def packed(self, x: Tensor) -> Tensor:
        """As bytes."""
        return (x * 255).round().to(torch.uint8)

    def unpacked(self, kept: Tensor) -> Tensor:
        """In [0, 1] again."""
        return kept / 255


@dataclass(frozen=True, kw_only=True)
class Sentences(Robust):
    """Lifted words (batch, length, dim + 1) no longer than the table's longest; [CLS], [SEP] and padding are as they were."""

    given: Tensor
    """The true words, lifted."""
    free: Tensor
    """Where words may move, bool (batch, length, 1)."""
    table: Tensor
    special: tuple[int, ...]
    """The ids that stand for no word."""

    def noise(self, x: Tensor, memory: Memory) -> Tensor:
        """Random words (Appendix F)."""
        ids = random_words(x.shape[:2], self.special, len(self.table), memory.rng).to(x.device)
        return torch.cat([self.table[ids].to(x), x[..., -1:]], dim=-1)

    def allowed(self, x: Tensor) -> Tensor:
        """Vectors within the longest of the table; what is no word stays."""
        vectors, longest = x[..., :-1], self.table.norm(dim=1).max()
        within = vectors * (longest / vectors.norm(dim=-1, keepdim=True).clamp_min(longest))
        given = self.given.to(x)
        return torch.cat([torch.where(self.free, within, given[..., :-1]), given[..., -1:]], dim=-1)

    def packed(self, x: Tensor) -> Tensor:
        """In float16."""
        return x.half()

    def unpacked(self, kept: Tensor) -> Tensor:
        """As they are, but for rounding where no word is."""
        return self.allowed(kept)


def robust_of(step: Step, network: Evaluator) -> tuple[Step, Robust]:
    """(the step with inputs of real numbers, what robust data in their place may be)."""
    table = network.facts.table
    if step.x.is_floating_point():
        if table is not None:
            raise SpecError("refiner takes text as it is: leave out the defense before it that moves words")
        return step, Pixels()
    words, found = lifted(step, "refiner"), getattr(step.model, "table", None)
    if found is None or "words.weight" in step.params:
        raise SpecError(NO_TABLE)
    if table is None or table.digest != digest_of(found):
        takes = network.facts.what if table is None else "the words of another table"
        raise EvaluatorError(
            f"this evaluation network is for {takes}, not for those of this model; runs make one by themselves"
        )
    free = ~torch.isin(step.x, torch.tensor(table.special, device=step.x.device))
    wide = found.to(torch.promote_types(found.dtype, torch.float32))
    return words, Sentences(given=words.x, free=free[..., None], table=wide, special=table.special)
