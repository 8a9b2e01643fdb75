"""Text as defenses of inputs take it: word vectors in the place of ids, with a last channel that says which are real."""

import torch
from torch import Tensor
from torch.nn import functional as F

from fl_app.core.local import Step
from fl_app.core.spec import SpecError


def lifted(step: Step, who: str) -> Step:
    """The step with real numbers for inputs: token ids (batch, length) become word vectors (batch, length, dim + 1).

    A word table that is trained has no gradient then, as if it were frozen: what is sent of it is zero.
    """
    if step.x.is_floating_point():
        return step
    lift = getattr(step.model, "lift", None)
    if lift is None:
        raise SpecError(
            f"{who} moves inputs of real numbers, such as pixels or the words of our text models, and these are integers"
        )
    vectors: Tensor = lift(step.x)
    table = step.params.get("words.weight")
    if table is not None:  # the model's own may be of another round
        vectors = torch.cat([F.embedding(step.x, table), vectors[..., -1:]], dim=-1)
    return step._replace(x=vectors.detach())
