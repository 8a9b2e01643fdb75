"""LTI and FGLA: updates taken together, sketches, lines, networks on top of them, Hungarian pairs, features read off."""

import dataclasses
from itertools import permutations

import pytest
import torch
from torch import nn

import adversary
from adversary import AttackError, Facts, Public
from adversary.cases import pictures
from adversary.learned import batches, decoder
from adversary.learned.fgla import FGLA, class_features, entering, last_linear
from adversary.learned.linear import Products
from adversary.learned.lti import LTI
from adversary.learned.sketch import Sketch
from adversary.learned.updates import at_once, groups, one_by_one
from fl_app.core.local import LocalRule, Step, local_update
from fl_app.core.observation import Knowledge, Observation, Task
from fl_app.core.space import Images
from fl_app.core.table import Column, Rows

SIDE, CLASSES, NUMBER = 8, 4, 600
DRAW = torch.Generator().manual_seed(0)
Y = torch.arange(NUMBER) % CLASSES
PUBLIC = Public(pictures(Y, DRAW), Y)
QUICK = decoder.Training(hidden=32, epochs=2, lr=1e-3, batch=64)


def task_of():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        conv = nn.Conv2d(1, 12, 5, padding=2, stride=2)
        model = nn.Sequential(conv, nn.Sigmoid(), nn.Flatten(), nn.Linear(192, CLASSES))
    return Task(model, Images((1, SIDE, SIDE)), CLASSES)


TASK = task_of()
PARAMS = {name: value.detach().clone() for name, value in TASK.model.named_parameters()}


def seen_of(size=1, targets=6, defense=None, rule=None):
    y = torch.stack([(torch.arange(size) + place) % CLASSES for place in range(targets)])
    x = pictures(y.flatten(), torch.Generator().manual_seed(3)).view(targets, size, 1, SIDE, SIDE)
    rule = rule or LocalRule(batch_size=size)
    seen = [
        Observation(
            params=PARAMS,
            update=local_update(TASK.model, PARAMS, own_x, own_y, rule),
            rule=rule,
            num_examples=size,
            server_round=1,
            client=place,
            knowledge=Knowledge(defense=defense, public=True),
        )
        for place, (own_x, own_y) in enumerate(zip(x, y, strict=True))
    ]
    return x, y, seen


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


DELTA = LocalRule(kind="delta", batch_size=1, steps=2, lr=0.1, examples=1)


@pytest.mark.parametrize(
    ("defense", "rule"),
    [(None, None), ("sign", None), ("dp_gaussian(scale=0.1)", None), ("dp_sgd(noise=0.1)", None), ("prune(ratio=0.5)", DELTA)],
)
def test_updates_taken_together_are_those_taken_one_by_one(defense, rule):
    _, _, (seen, *_) = seen_of(2, 1, defense, rule=None)
    seen = seen if rule is None else dataclasses.replace(seen, rule=rule, num_examples=1)
    x, y = groups(PUBLIC, 7, seen.num_examples, rng())
    together, alone = at_once(TASK, seen, x, y, rng(1)), one_by_one(TASK, seen, x, y, rng(1))
    assert list(together) == list(alone)
    for name, value in alone.items():
        torch.testing.assert_close(together[name], value, rtol=1e-4, atol=1e-6)
    assert not any(value.requires_grad for value in together.values())


def test_groups_hold_nobody_twice():
    x, y = groups(PUBLIC, 500, 8, rng())
    assert (x.shape, y.shape) == ((500, 8, 1, SIDE, SIDE), (500, 8))
    flat = x.flatten(2)
    assert min(len(torch.unique(one, dim=0)) for one in flat[:50]) == 8
    single = groups(PUBLIC, NUMBER + 2, 1, rng())[1][:, 0]
    assert torch.equal(single, torch.cat([Y, Y[:2]]))


def test_a_sketch_keeps_products_on_average():
    updates = {"a": torch.randn(3, 5, 4, generator=rng()), "b": 100 * torch.randn(3, 7, generator=rng(1))}
    exact = Sketch.drawn(updates, 27, rng())
    rows = exact.of(updates)
    assert rows.shape == (3, 27)  # as many buckets as entries: each its own
    for part in (rows[:, :20], rows[:, 20:]):
        torch.testing.assert_close(part.square().mean(), torch.tensor(1.0))
    products = torch.stack(
        [(sketched := Sketch.drawn(updates, 10, rng(seed)).of(updates)) @ sketched.T for seed in range(4000)]
    )
    wanted = rows @ rows.T
    assert (products.mean(0) - wanted).abs().max() < 5 * (products.std(0) / 4000**0.5).max()
    few = Sketch.drawn(updates, 10, rng(2))
    assert torch.equal(few.factor.sign().abs(), torch.ones(27))
    sums = torch.zeros(3, 10).index_add_(1, few.bucket, rows * few.factor.sign())
    torch.testing.assert_close(few.of(updates), sums)


@pytest.mark.parametrize("number", [12, 60])
def test_a_line_solves_the_normal_equations_and_knows_the_left_out(number):
    draw = rng()
    features, wanted = torch.randn(number, 20, generator=draw).double(), torch.randn(number, 3, generator=draw).double()
    strength, unit = 0.1, features.square().sum(1).mean()

    def solved(keep):
        f, w = features[keep], wanted[keep]
        return torch.linalg.solve(f.T @ f + strength * unit * torch.eye(20).double(), f.T @ w)

    line = Products(features, wanted).line(strength)
    every = torch.arange(number)
    torch.testing.assert_close(line.map, solved(every))
    torch.testing.assert_close(Products(features, wanted).map(strength), line.map)
    for i in (0, 5):
        torch.testing.assert_close(line.left_out[i], features[i] @ solved(every != i))
    with pytest.raises(AttackError, match="not finite"):
        Products(features * torch.nan, wanted).map(strength)


def test_lines_of_classes_and_a_network_beat_one_line():
    draw = rng()
    y = torch.arange(900) % 3
    features = torch.randn(900, 10, generator=draw)
    maps = torch.randn(3, 10, 12, generator=draw)
    x = torch.sigmoid((features[:, None] @ maps[y])[:, 0] / 3 + 0.3 * (features[:, :1] ** 2 - 1))
    known = decoder.Known(features, x, y, torch.arange(900))
    train, test = known.part(torch.arange(900) < 800), known.part(torch.arange(900) >= 800)
    errors = {}
    for name, epochs in (("lines", 0), ("network", 60)):
        training = decoder.Training(hidden=64, epochs=epochs, lr=3e-3, batch=32)
        learned = decoder.learned(train, 3, training, rng(1))
        errors[name] = (decoder.decoded(learned, test.features, test.y) - test.x).square().mean().item()
    same = decoder.learned(train._replace(y=torch.zeros_like(train.y)), 1, QUICK, rng(1))
    one = (decoder.decoded(same, test.features, torch.zeros_like(test.y)) - test.x).square().mean().item()
    assert errors["network"] < 0.9 * errors["lines"]
    assert errors["lines"] < 0.5 * one


def test_a_class_of_which_little_is_known_follows_all_others():
    y = torch.cat([torch.zeros(100, dtype=torch.int64), torch.ones(5, dtype=torch.int64)])
    features = torch.randn(105, 6, generator=rng())
    known = decoder.Known(features, features[:, :4] * 0.1 + 0.5, y, torch.arange(105))
    learned = decoder.learned(known, 3, dataclasses.replace(QUICK, epochs=0), rng())
    for label in (1, 2):
        found = decoder.decoded(learned, features[:5], torch.full((5,), label))
        torch.testing.assert_close(found, features[:5, :4] * 0.1 + 0.5, atol=0.02, rtol=0)


def test_pairs_are_the_best_of_all_orders():
    guess, truth = torch.rand(5, 3, 7, generator=rng()), torch.rand(5, 3, 7, generator=rng(1))
    best = [
        min((one - other[list(order)]).square().mean() for order in permutations(range(3)))
        for one, other in zip(guess, truth, strict=True)
    ]
    torch.testing.assert_close(batches.matched(guess, truth), torch.stack(best).mean())


def error(guess, truth):
    return (guess - truth).square().mean().item()


def test_lti_rebuilds_through_the_defense_and_says_what_it_cost():
    x, y, seen = seen_of()
    attack = LTI(sketch=512, hidden=32, epochs=1, flips=False)
    blind = error(PUBLIC.x.mean(0), x)
    with pytest.raises(AttackError, match="there are none here"):
        attack(seen, TASK, 0)
    learned = attack.learn(TASK, seen[0], PUBLIC, rng())
    found = attack.taught(learned)(seen, TASK, 0)
    assert error(found.x, x) < blind / 20
    assert torch.equal(found.y, y)
    assert found.remark.startswith("learned from 600 public examples in ")
    few = dataclasses.replace(attack, public=500)
    assert (few.public_wanted, attack.public_wanted) == (500, 10_000)
    assert "from 500 public" in few.taught(few.learn(TASK, seen[0], PUBLIC, rng())).run(seen, TASK, [rng()] * 6).remark
    alone = attack.taught(learned)(seen[2:3], TASK, 0)
    torch.testing.assert_close(alone.x[0], found.x[2], rtol=1e-4, atol=1e-4)
    assert all(
        torch.equal(value, again)
        for name, value in learned.items()
        if "seconds" not in name
        for again in [attack.learn(TASK, seen[0], PUBLIC, rng())[name]]
    )
    assert attack.informed("none", Facts()) == []
    assert attack.informed("sign", Facts())[0].attack == attack
    with pytest.raises(AttackError, match="at least 500 public examples, and there are 9"):
        attack.learn(TASK, seen[0], Public(PUBLIC.x[:9], PUBLIC.y[:9]), rng())
    table = Task(TASK.model, Rows((Column("a"), Column("b"))), CLASSES)
    with pytest.raises(AttackError, match="for rows of a table use ridge"):
        attack.learn(table, seen[0], PUBLIC, rng())


def test_noise_is_drawn_anew_for_each_epoch(monkeypatch):
    given = []
    monkeypatch.setattr(decoder, "learned", lambda known, classes, training, rng, anew: given.append((known, anew)) or {})
    for defense, fresh in ((None, False), ("sign", False), ("dp_gaussian(scale=0.1)", True)):
        _, _, seen = seen_of(defense=defense)
        LTI(sketch=64, flips=True).learn(TASK, seen[0], PUBLIC, rng())
        known, anew = given[-1]
        assert (anew is not None) == fresh
        assert known.features.shape == (2 * NUMBER, 64)
        assert torch.equal(known.image, torch.arange(NUMBER).repeat(2))
        assert torch.equal(known.x[NUMBER:].view(-1, 1, SIDE, SIDE), PUBLIC.x.flip(-1))
    again = given[-1][1]()
    assert not torch.equal(again, given[-1][0].features)


def test_lti_answers_a_batch_in_any_order():
    x, y, seen = seen_of(2)
    attack = LTI(sketch=512, hidden=64, epochs=12, lr=2e-3, batch=32, flips=False)
    found = attack.taught(attack.learn(TASK, seen[0], PUBLIC, rng()))(seen, TASK, 0)
    assert torch.equal(found.y.sort(1).values, y.sort(1).values)
    pairs = batches.matched(found.x.flatten(2), x.flatten(2)).item()
    assert pairs < 0.6 * error(PUBLIC.x.mean(0), x)
    assert found.x.shape == x.shape


def test_features_are_read_off_and_decoded():
    x, y, seen = seen_of(3)
    name = last_linear(TASK.model, PARAMS)
    true = entering(TASK.model, PARAMS, name, x.flatten(0, 1)).view(6, 3, -1)
    for one, own, wanted in zip(seen, y, true, strict=True):
        found = class_features(one.update, name, own)
        assert torch.cosine_similarity(found, wanted).min() > 0.99
    single = seen_of(1)[2][1]
    exact = entering(TASK.model, PARAMS, name, seen_of(1)[0][1])
    torch.testing.assert_close(class_features(single.update, name, torch.tensor([1])), exact, rtol=1e-3, atol=1e-4)
    attack = FGLA(hidden=32, epochs=1, flips=False)
    with pytest.raises(AttackError, match="there are none here"):
        attack(seen, TASK, 0)
    found = attack.taught(attack.learn(TASK, seen[0], PUBLIC, rng()))(seen, TASK, 0)
    assert torch.equal(found.y.sort(1).values, y.sort(1).values)
    own = torch.stack([x[i][y[i].argsort()] for i in range(6)])
    guess = torch.stack([found.x[i][found.y[i].argsort()] for i in range(6)])
    assert error(guess, own) < error(PUBLIC.x.mean(0), x) / 2
    assert attack.informed("sign", Facts()) == []
    assert attack.public_wanted == 10_000


def test_several_of_a_class_share_their_mean_and_all_classes_may_be_there():
    x = pictures(torch.tensor([1, 1, 2, 2]), rng())
    y = torch.tensor([1, 1, 2, 2])
    gradient, name = Step(PARAMS, TASK.model, x, y).gradient(), last_linear(TASK.model, PARAMS)
    found = class_features(gradient, name, y)
    assert torch.equal(found[0], found[1])
    means = entering(TASK.model, PARAMS, name, x).view(2, 2, -1).mean(1)
    assert torch.cosine_similarity(found[[0, 2]], means).min() > 0.98
    every = torch.arange(4)
    full = class_features(Step(PARAMS, TASK.model, x, every).gradient(), name, every)
    assert full.isfinite().all()


def test_fgla_refuses_a_network_without_a_last_bias():
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, CLASSES, bias=False))
    with pytest.raises(AttackError, match="a last linear layer with a bias, and this model has none: use lti"):
        last_linear(model, dict(model.named_parameters()))
    with pytest.raises(AttackError, match="use lti"):
        last_linear(nn.Sequential(nn.Conv2d(1, 4, 3)), {})


def test_they_are_built_by_name():
    assert isinstance(adversary.build("lti(sketch=64)"), LTI)
    assert isinstance(adversary.build("fgla"), FGLA)
    for name in ("lti", "fgla"):
        assert adversary.build(name).cost(2, LocalRule(batch_size=2)) == 200
