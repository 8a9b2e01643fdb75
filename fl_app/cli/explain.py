"""What each setting of a registered thing means, may be and is by default, read off its declaration."""

import ast
import inspect
import itertools
import re
import textwrap
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args, get_origin

from fl_app.core import spec


class Explained(NamedTuple):
    """A setting, for people."""

    name: str
    default: str
    choices: str
    meaning: str


SIGNS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
MEANINGS = {
    "activation": "activation function",
    "batch": "examples in a step of learning",
    "beta1": "how much of the mean gradient is kept from step to step",
    "beta2": "how much of the mean squared gradient is kept from step to step",
    "bits": "bits per entry",
    "bn": "weight of matching BatchNorm statistics, if they are granted",
    "channels": "of each convolution of the network; 0: by the paper's rule",
    "compiled": "compile the search: pays for many iterations",
    "depth": "number of blocks",
    "dim": "width of the tokens",
    "drop": "what the learning rate is multiplied by at each round of drop_at",
    "drop_at": "rounds at which the learning rate drops",
    "epochs": "passes over what is learned from, at the most",
    "freeze": "word and position tables are not trained",
    "grey": "take the images as grey",
    "group": "weight of pulling several seeds together",
    "head": "what the last layer predicts: a class of the text, or each next word",
    "heads": "heads of the attention",
    "hidden": "neurons of each hidden layer",
    "init": "where the search starts",
    "iterations": "steps of the search",
    "kind": "which of its data sets",
    "label": "the column with the classes",
    "labels": "how the classes are found before the search",
    "length": "tokens of a text, [CLS] and [SEP] included",
    "lr": "learning rate",
    "memory": "what is left out is remembered and sent later",
    "min_images": "fewest photos of a person who is taken",
    "momentum": "momentum",
    "norm": "for a model its normalisation layers; for an attack the weight of the images' norm",
    "objective": "what is compared of the updates, and how",
    "optimizer": "what takes the steps of the search",
    "patch": "side of a patch in pixels",
    "path": "the folder or file",
    "pool": "which tokens the last layer reads: their mean, the first, the last",
    "pretrain_batch": "examples in a batch of what is learned before the first round",
    "priors": "what is known of images beside the update",
    "restarts": "searches from other starts, of which the best is kept",
    "scale": "what the values are multiplied by, or the size of the noise",
    "scope": "over what it is computed: see the choices",
    "seeds": "searches side by side",
    "signed": "steps along the sign of the gradient",
    "sketch": "numbers that an update is hashed to",
    "solved": "objective at which a target counts as found",
    "sigma": "standard deviation of the noise, or of the kernel",
    "size": "side of the images in pixels",
    "space": "what is searched",
    "test_share": "share of the examples that is held out for the test",
    "tokenizer": "what makes tokens of text: trained on public text, or BERT's",
    "tv": "weight of total variation",
    "vocabulary": "tokens of a vocabulary that is trained",
    "weight_decay": "what is added to the gradient, times the weights",
    "weights": "those that it starts from: random ones, or published ones",
    "width": "number of filters",
}
"""What settings mean that several things share, where a declaration does not say it itself."""


def explain(factory: Callable[..., Any]) -> list[Explained]:
    """The settings of a class or function in their order."""
    said, whole = meanings(factory), inspect.getdoc(factory) or ""
    return [
        Explained(
            name,
            "must be given" if setting.required else repr(setting.default),
            choices(setting),
            said.get(name) or ("see above" if re.search(rf"\b{name}\b", whole) else MEANINGS.get(name, "")),
        )
        for name, setting in spec.settings_of(factory).items()
    ]


def meanings(factory: Callable[..., Any]) -> dict[str, str]:
    """Setting -> the docstring below it in the class or the nearest base that has one; empty for functions."""
    found: dict[str, str] = {}
    for kind in inspect.getmro(factory) if isinstance(factory, type) else ():
        try:
            (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
        except (OSError, TypeError, SyntaxError, ValueError):
            continue  # a built-in, or a class without its source
        body = tree.body if isinstance(tree, ast.ClassDef) else []
        for one, below in itertools.pairwise(body):
            if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name) and isinstance(below, ast.Expr):
                text = below.value.value if isinstance(below.value, ast.Constant) else None
                if isinstance(text, str):
                    found.setdefault(one.target.id, " ".join(text.split()))
    return found


def choices(setting: spec.Setting) -> str:
    """What a setting may be: its words, its registered things, or its range."""
    if setting.named is not None:
        several = "a list of " if setting.several else ""
        return several + ", ".join(sorted(setting.named.registry()))
    annotation, limits = setting.annotation, list[str]()
    for one in getattr(annotation, "__metadata__", ()):
        for part in (one, *getattr(one, "metadata", ())):
            limits += [f"{sign} {getattr(part, key)}" for key, sign in SIGNS.items() if getattr(part, key, None) is not None]
    kind = getattr(annotation, "__origin__", annotation) if hasattr(annotation, "__metadata__") else annotation
    if get_origin(kind) is Literal:
        return ", ".join(map(repr, get_args(kind)))
    if kind is bool:
        return "True, False"
    return " ".join([getattr(kind, "__name__", str(kind)), *dict.fromkeys(limits)])
