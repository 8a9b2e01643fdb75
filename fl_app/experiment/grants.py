"""Granting an attacker what the protocol does not give: the one place where truth is handed out, and it is always recorded."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from fl_app.core.local import Tensors
from fl_app.core.observation import Candidates, Knowledge
from fl_app.core.seeds import generator
from fl_app.core.space import attribute_values
from fl_app.core.spec import suggest
from fl_app.core.table import Rows
from fl_app.core.text import Tokens, lengths
from fl_app.data.batches import step_positions
from fl_app.experiment.assets import Assets
from fl_app.experiment.candidates import held_out
from fl_app.experiment.config import Experiment
from fl_app.experiment.truth import clients_behind, true_aggregate, true_positions
from fl_app.models.statistics import batchnorm_statistics

GRANTS = ("labels", "lengths", "defense", "statistics", "repeats", "order", "evaluator")


def parse_grants(texts: list[str]) -> tuple[str, ...]:
    """`["labels,defense"]` -> their names, checked."""
    names = [name.strip() for text in texts for name in text.split(",") if name.strip()]
    for name in names:
        if name not in GRANTS:
            raise ValueError(f"there is no grant '{name}'; valid: {', '.join(GRANTS)}")
    return tuple(dict.fromkeys(names))


def examples_repeat(assets: Assets, client: int) -> bool:
    """Whether a client uses the same examples in every round, since it owns no more; ValueError if not."""
    shares = assets.shares if client == -1 else [assets.shares[client]]
    if (client == -1 and assets.experiment.fraction < 1) or any(len(s) > assets.experiment.rule.num_examples for s in shares):
        raise ValueError(
            "the grant 'repeats' would be false: clients here own more examples than a round uses; "
            "run with -c client-examples=N of at most the round's examples, or leave the grant out"
        )
    return True


def order_of(assets: Assets, server_round: int, client: int) -> Tensor:
    """The positions of each local step's examples; ValueError if there is nothing to tell."""
    experiment = assets.experiment
    if client == -1 or not experiment.rule.shuffle:
        raise ValueError(
            "the grant 'order' tells how single clients shuffled; needs -c local-shuffle=true and their own updates"
        )
    used = len(true_positions(assets, client, server_round))
    steps = step_positions(experiment.seed, client, server_round, experiment.rule, used) or []
    if len({len(step) for step in steps}) != 1:
        raise ValueError("the grant 'order' needs batches of one size: choose local-examples that batch-size divides")
    return torch.stack(steps)


def server_knowledge(experiment: Experiment) -> Knowledge:
    """What a malicious server has beyond the protocol: what it made up, and the public examples by which it did."""
    chosen = experiment.craft.chooses
    return Knowledge(public=bool(chosen), chosen=chosen)


def candidates_of(assets: Assets, key: tuple[int, int], question: str = "membership") -> Candidates:
    """What an attack is asked about a target, in an order of no meaning; ValueError if the question cannot be asked here."""
    kind, _, about = question.partition(":")
    return CANDIDATES[kind](assets, key, about)


def _completed(assets: Assets, key: tuple[int, int], column: str) -> Candidates:
    """All that a target's clients used but for one column, with each of its values: the rows one after the other.

    An image has its attribute in it and cannot be shown without: of images each value is asked about once, without an example.
    """
    if not isinstance(assets.space, Rows):
        return _blank(assets, torch.arange(len(attribute_values(assets.space, column))))
    x, y = true_aggregate(assets, clients_behind(assets, key[1], key[0]), key[0])
    filled = assets.space.filled(x.cpu(), column)
    return Candidates(filled.flatten(0, 1), y.cpu().repeat_interleave(filled.shape[1]))


def _having(assets: Assets, key: tuple[int, int], about: str) -> Candidates:
    """No example: it stands for the question whether some example has a property, column=value."""
    column, _, value = about.partition("=")
    values = attribute_values(assets.space, column)
    if value not in values:
        raise ValueError(f"the column '{column}' has no value '{value}'; {suggest(value, values)}")
    return _blank(assets, torch.tensor([values.index(value)]))


def _classes(assets: Assets, key: tuple[int, int], about: str) -> Candidates:
    """Each class once, without an example."""
    return _blank(assets, torch.arange(assets.num_classes))


def _blank(assets: Assets, y: Tensor) -> Candidates:
    kind = torch.int64 if isinstance(assets.space, Tokens) else torch.float32
    return Candidates(torch.zeros(len(y), *assets.space.shape, dtype=kind), y)


def _members(assets: Assets, key: tuple[int, int], about: str) -> Candidates:
    """Some of what a target's clients used, among as many examples that no client owns."""
    most, rng = assets.experiment.candidates, generator(assets.experiment.seed, "candidates", *key)
    x, y = true_aggregate(assets, clients_behind(assets, key[1], key[0]), key[0])
    drawn = torch.randperm(len(y), generator=rng)[:most]
    other_x, other_y = held_out(assets, y, most, rng)
    order = torch.randperm(len(drawn) + len(other_y), generator=rng)
    return Candidates(torch.cat([x[drawn].cpu(), other_x])[order], torch.cat([y[drawn].cpu(), other_y])[order])


CANDIDATES: dict[str, Callable[[Assets, tuple[int, int], str], Candidates]] = {
    "attribute": _completed,
    "labels": _classes,
    "membership": _members,
    "property": _having,
}
"""Question -> what is asked about a target; what stands behind the question's colon is handed on."""


def knowledge_of(assets: Assets, grants: tuple[str, ...], key: tuple[int, int], params: Tensors | None) -> Knowledge:
    """What is granted about a target (round, client)."""
    knowledge = replace(
        server_knowledge(assets.experiment),
        defense=assets.experiment.defense if "defense" in grants else None,
        repeats="repeats" in grants and examples_repeat(assets, key[1]),
        evaluator="evaluator" in grants,
    )
    if "order" in grants:
        knowledge = replace(knowledge, order=order_of(assets, *key))
    if "lengths" in grants and not isinstance(assets.space, Tokens):
        raise ValueError("the grant 'lengths' tells how long texts are, and these examples are none")
    if not {"labels", "lengths", "statistics"} & set(grants):
        return knowledge
    server_round, client = key
    x, y = true_aggregate(assets, clients_behind(assets, client, server_round), server_round)
    # Shuffled: the order of the examples is not part of the grant; whose length belongs to which class is, if both are.
    order = torch.randperm(len(y), generator=generator(assets.experiment.seed, "granted labels", *key))
    if "labels" in grants:
        knowledge = replace(knowledge, labels=y[order])
    if "lengths" in grants:
        knowledge = replace(knowledge, lengths=lengths(x)[order])
    if "statistics" in grants and params is not None:
        statistics = batchnorm_statistics(assets.model, params, x)
        knowledge = replace(knowledge, statistics={name: value.detach() for name, value in statistics.items()})
    return knowledge
