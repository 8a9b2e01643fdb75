"""What is known of word vectors before any update is seen."""

from dataclasses import dataclass

from torch import Tensor

from adversary.base import AttackError
from adversary.priors import Penalty, Prior, Scene
from fl_app.core.space import Space
from fl_app.core.text import Tokens
from fl_app.models.text import TextModel


@dataclass(frozen=True, kw_only=True)
class WordNorm(Prior):
    """Squared difference between the mean norm of the vectors and that of the table's words (LAMP, section 4.1)."""

    def says(self, space: Space) -> bool:
        """Of text alone."""
        return bool(self.weight) and isinstance(space, Tokens)

    def bind(self, scene: Scene) -> Penalty:
        """The difference, of lifted words (targets, seeds, examples, length, dim + 1)."""
        model, space = scene.task.model, scene.task.space
        if not isinstance(model, TextModel) or not isinstance(space, Tokens):
            raise AttackError("the prior word_norm needs one of our text models")
        table = scene.targets[0][0].params.get("words.weight", model.table)
        usual = table[space.vocabulary.words.to(table.device)].norm(dim=1).mean()

        def penalty(x: Tensor) -> Tensor:
            keep = x[..., -1]
            norms = (x[..., :-1].square().sum(-1) + 1e-12).sqrt() * keep
            mean: Tensor = norms.sum((2, 3)) / keep.sum((2, 3)).clamp_min(1)
            apart: Tensor = (mean - usual).square()
            return self.weight * apart

        return penalty
