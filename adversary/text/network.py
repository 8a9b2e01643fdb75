"""The network of a text task as attacks read it."""

from copy import deepcopy

import torch
from torch import Tensor

from adversary.base import AttackError
from fl_app.core.local import Tensors
from fl_app.core.observation import Task
from fl_app.core.text import PAD, Tokens
from fl_app.models.text import TextModel, Transformer

WORDS, PLACES = "words.weight", "places.weight"
"""The tables' names among the weights, where they are trained."""


def space_of(task: Task) -> Tokens:
    """The space of token ids; AttackError for anything else."""
    if not isinstance(task.space, Tokens):
        raise AttackError("it rebuilds text, and these examples are none")
    return task.space


def network_at(task: Task, params: Tensors) -> TextModel:
    """The model with these weights, apart from the task's own, so that parts of it can be run."""
    space_of(task)
    if not isinstance(task.model, TextModel):
        raise AttackError("it needs one of our text models, whose word vectors it can read: bert, gpt, minilm or bow")
    own = deepcopy(task.model)
    own.load_state_dict(params, strict=False)  # frozen tables are no weights
    return own.requires_grad_(False).eval()


def transformer_at(task: Task, params: Tensors) -> Transformer:
    """The same, of a transformer."""
    network = network_at(task, params)
    if not isinstance(network, Transformer):
        raise AttackError("it reads the layers of a transformer, and this model is none: use bag_of_words")
    return network


def sentence(ids: list[int], space: Tokens) -> Tensor:
    """Ids as one example, int64 (length,), padded or cut off."""
    found = torch.full((space.length,), PAD)
    kept = ids[: space.length]
    found[: len(kept)] = torch.tensor(kept, dtype=torch.int64)
    return found
