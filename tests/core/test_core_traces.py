"""Every function of the core gives what it gave: local steps by each rule, specs there and back, tensors on their way.

After a change that is meant: scripts/keep_traces.py, and the difference of tests/golden/traces says what changed.
"""

from contextlib import suppress

import pytest
import torch
from torch.nn.functional import one_hot

import adversary
import adversary.informed.pieces  # else while it is traced
import client_defenses
from adversary.search.optimizers import OPTIMIZERS
from fl_app.core import errors, parsing, seeds, selection, spec, wire
from fl_app.core.local import LocalRule, Step, finite, local_update
from fl_app.core.observation import Knowledge, Observation, compatibility
from helpers import small_scenes as small
from helpers.traces import check, traced

DELTA = {"kind": "delta", "lr": 0.1}
RULES = [
    {"batch_size": 3},
    {**DELTA, "batch_size": 2, "steps": 2},
    {**DELTA, "batch_size": 2, "steps": 5, "examples": 4, "momentum": 0.5, "weight_decay": 0.1},
    {**DELTA, "batch_size": 3, "steps": 3, "examples": 4, "optimizer": "adam", "weight_decay": 0.1},
    {**DELTA, "batch_size": 2, "steps": 4, "examples": 4, "shuffle": True},
    {**DELTA, "batch_size": 8, "steps": 2, "examples": 4},
]
WRONG = [
    *({"batch_size": 0}, {"steps": 0, **DELTA}, {"examples": -1, **DELTA}, {"kind": "other"}, {"steps": 2}, {"examples": 1}),
    *({"optimizer": "adam"}, {**DELTA, "optimizer": "rms"}, {**DELTA, "momentum": 1.0}, {**DELTA, "momentum": -0.1}),
    *(
        {"momentum": 0.1},
        {"weight_decay": 0.1},
        {"shuffle": True},
        {**DELTA, "weight_decay": float("inf")},
        {"lr": float("nan")},
    ),
    *({**DELTA, "lr": 0.0}, {**DELTA, "optimizer": "adam", "momentum": 0.1}, {**DELTA, "weight_decay": -1.0}),
]
SPECS = [
    "cosine_lbfgs(iterations=7, tv=0.5)",
    "matching(objective=masked(robust), priors=[tv(0.1), norm(weight=2)], optimizer=adam(iterations=3, lr=0.5))",
    "matching(objective=ignoring(l2, layers=['a', 'b']), observers=[assumed(momentum=0.5)], space=epochs(number=2))",
    *(
        "nothing",
        "idlg(iterations=0)",
        "idlg(iteration=3)",
        "idlg(1, 2)",
        "idlg(iterations=x)",
        "idlg + dlg",
        "matching(priors=[l2])",
    ),
    *("matching(priors=tv(0.1))", "idlg(0.5, labels=sign)", "matching(objective=3)", "matching(space=tv(1))", "dlg(solved=-1)"),
]


def test_local_steps():
    _, task = small.scene(small.smooth)
    params = {name: value.detach() for name, value in task.model.named_parameters()}
    x, y = (part[0] for part in small.truth(1, 4))

    def work():
        for settings in RULES:
            rule = LocalRule(**settings)
            number = min(4, rule.num_examples)
            order = torch.tensor([[0, 3], [1, 2], [3, 2], [0, 1]]) if rule.shuffle else None
            local_update(task.model, params, x[:number], y[:number], rule, order=order)
            soft = one_hot(y[:number], small.CLASSES).float()
            local_update(task.model, params, x[:number], soft, rule, Step.differentiable_gradient, order=order)
            LocalRule.from_dict(rule.to_dict())
            _ = rule.code(), rule.gradients, rule.num_examples
            for count in (1, 2, 3, 4, 5, 8):
                rule.for_examples(count)
            for step in range(5):
                rule.batch(step, number)
        Step(params, task.model, x, y).per_example_gradients()
        for value in (torch.ones(2), torch.tensor([1, 2]), torch.tensor([1.0, torch.nan]).half(), torch.tensor(torch.inf)):
            finite(value)

    check("core-local", traced(work, "fl_app/core/"))


def test_rules_that_are_refused():
    for settings in WRONG:
        with pytest.raises(ValueError, match=r"must|needs|has|takes|use kind"):
            LocalRule(**settings)
    told = LocalRule(**RULES[2]).to_dict()
    most = {**told, "batch-size": 10**9}
    assert LocalRule.from_dict(most).batch_size == 10**9
    for name, value in (
        ("batch-size", 10**9 + 1),
        ("batch-size", True),
        ("local-lr", "1"),
        ("local-steps", 2.0),
        ("update", 1),
    ):
        with pytest.raises(ValueError, match=f"{name} is .*, which is not allowed"):
            LocalRule.from_dict({**told, name: value})


def test_specs():
    def work():
        for text in SPECS:
            with suppress(spec.SpecError):
                built = adversary.build(text)
                adversary.text_of(built)
        for text in (
            "mask(0.5) + sign",
            "dp_gaussian(clip=None)",
            "refiner(eps=0.1, evaluator='a b')",
            r"bido(layers=['\U0010FFFF'])",
        ):
            built = client_defenses.build(text)
            spec.describe(type(built))
        for word in ("prun", "zzz", "signn"):
            spec.suggest(word, client_defenses.DEFENSES)
        for kind in OPTIMIZERS.values():
            spec.describe(kind)
        parsing.parse("a(1, [2, 3], k='x', m=b(c=True))")

    check("core-specs", traced(work, "fl_app/core/spec.py", "fl_app/core/parsing.py"))


def test_the_rest():
    tensors = {
        "a": torch.arange(6.0).view(2, 3),
        "b": torch.tensor(3),
        "c": torch.zeros(0, 2).double(),
        "d": torch.ones(2).half(),
    }

    def work():
        record = wire.to_record(tensors)
        wire.to_tensors(record)
        wire.decoded(record)
        for purpose in ((), (1,), ("a", 2), (-3, "b")):
            seeds.derive(5, *purpose)
            torch.rand(3, generator=seeds.generator(5, *purpose))
        for text in ("all", "none", "1", "1,3-5, 9 ", "2-2"):
            chosen = selection.select(text, 1, "rounds")
            _ = (
                [number in chosen for number in range(11)],
                bool(chosen),
                [chosen.beyond(highest) for highest in (0, 1, 4, 5, 9)],
            )
        for text in ("0", "5-3", "x", "", "1-", "1,,2"):
            with suppress(ValueError):
                selection.select(text, 1, "rounds")
        for error in (ValueError("a\nb"), KeyError("k"), OSError(2, "gone", "f"), RuntimeError()):
            errors.said(error)
            errors.told(error)
        known = Knowledge(labels=torch.tensor([1]), defense="sign", statistics={"a": torch.ones(2)}, order=torch.tensor([[0]]))
        for knowledge in (known, Knowledge(repeats=True, evaluator=True, public=True, chosen=("weights",)), Knowledge()):
            _ = knowledge.ledger
        compatibility(Observation(params=tensors, update=tensors, rule=LocalRule(), num_examples=2, server_round=1))

    check("core-rest", traced(work, "fl_app/core/"))
