"""Which classes are in an update, on a last layer whose gradient is known by hand."""

import dataclasses

import pytest
import torch
from torch import nn

from adversary import AttackError
from adversary.base import Public
from adversary.confidences import can_count, confidences, counted
from adversary.labels import _features, as_gradient, by_min_column, by_sign, infer, last_layer, last_weight
from adversary.standard import Standard
from fl_app.core.local import LocalRule
from fl_app.core.observation import Knowledge, Observation, Task
from fl_app.core.space import Images

CLASSES, COUNTS = 4, (0, 3, 1, 4)
P = torch.tensor([0.1, 0.2, 0.3, 0.4])  # what the model says of any image: its weights are zero


def scene(counts=COUNTS, *, bias=True, features=0.5):
    """A model of which only the bias matters, and the gradient of so many examples of each class with equal features."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(9, CLASSES, bias=bias))
    params = {"1.weight": torch.zeros(CLASSES, 9)} | ({"1.bias": P.log()} if bias else {})
    factors = (P if bias else torch.full((CLASSES,), 0.25)) - torch.tensor(counts) / sum(counts)
    update = {"1.weight": features * factors[:, None].expand(-1, 9).clone()} | ({"1.bias": factors} if bias else {})
    one = Observation(
        params=params, update=update, rule=LocalRule(batch_size=sum(counts)), num_examples=sum(counts), server_round=1
    )
    return one, Task(model, Images((1, 3, 3)), CLASSES)


def inferred(rule, one, task):
    return infer(rule, one, task, torch.Generator().manual_seed(0)).tolist()


@pytest.mark.parametrize("rule", ["count", "ilrg"])
@pytest.mark.parametrize("counts", [COUNTS, (1, 1, 1, 1), (0, 0, 8, 0), (2, 0, 0, 6)])
def test_classes_are_counted(counts, rule):
    one, task = scene(counts)
    assert inferred(rule, one, task) == [label for label, number in enumerate(counts) for _ in range(number)]


@pytest.mark.parametrize("rule", ["count", "count_rows", "ilrg", "rows"])
def test_where_no_class_seems_to_be_there_any_answer_has_as_many(rule):
    one, task = scene()
    nowhere = dataclasses.replace(one, update={name: torch.full_like(value, 9.0) for name, value in one.update.items()})
    assert len(inferred(rule, nowhere, task)) == sum(COUNTS)


def test_rows_count_only_ratios_of_what_is_missing():
    for factor in (1.0, 1e-3):
        one, task = scene((0, 4, 0, 12), bias=False)  # 0.25 - share: 0.25, 0, 0.25, -0.5
        scaled = dataclasses.replace(one, update={name: factor * value for name, value in one.update.items()})
        assert inferred("rows", scaled, task) == [3] * 16
    one, task = scene((5, 0, 0, 11))  # with a bias: 0.1 - 0.3125, ..., 0.4 - 0.6875, in the ratio 0.2125 : 0.2875
    assert inferred("rows", one, task) == [0] * 7 + [3] * 9
    # The bias alone, then: noise of the mean 0.5 finds nothing in rows of zeros.
    bare = dataclasses.replace(one, update={**one.update, "1.weight": torch.zeros(CLASSES, 9)})
    assert inferred("rows", bare, task) == [0] * 7 + [3] * 9


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rule", ["sign", "count"])
def test_the_class_of_one_example_is_where_the_gradient_is_negative(rule, bias):
    one, task = scene((0, 0, 1, 0), bias=bias)
    assert inferred(rule, one, task) == [2]


def test_of_two_layers_the_bias_decides():
    one, task = scene((0, 0, 1, 0))
    misleading = {"1.weight": -one.update["1.weight"], "1.bias": one.update["1.bias"]}
    assert by_sign(misleading, task).tolist() == [2]


def test_the_smallest_entries_name_classes_once_each():
    one, task = scene()
    weight = torch.ones(CLASSES, 9)
    weight[3, 2], weight[0, 5], weight[1, 1] = -5.0, -2.0, -1.0
    update = {"1.weight": weight}
    assert by_min_column(update, task, 2).tolist() == [0, 3]
    assert by_min_column(update, task, 4).tolist() == [0, 1, 2, 3]
    three = dataclasses.replace(one, update=update, num_examples=3)
    assert inferred("min_column", three, task) == [0, 1, 3]
    with pytest.raises(AttackError, match="5 examples of 4 classes need 'count'"):
        by_min_column(update, task, 5)


def test_the_last_layer_is_the_last_with_a_row_per_class():
    update = {
        "a.weight": torch.zeros(4, 2),
        "b.weight": torch.zeros(4, 3),
        "b.bias": torch.ones(4),
        "c.weight": torch.zeros(5, 4),
    }
    assert last_weight(update, 4) == "b.weight"
    assert last_layer(update, 4)[1].tolist() == [1.0] * 4
    assert last_layer({"a.weight": torch.zeros(4, 2)}, 4)[1] is None
    with pytest.raises(AttackError, match="no last layer with one row per class"):
        last_weight(update, 7)


def test_features_are_the_mean_over_examples_and_places():
    x = torch.rand(5, 2, 4, generator=torch.Generator().manual_seed(0))
    task = Task(nn.Sequential(nn.Linear(4, CLASSES)), Images((2, 4)), CLASSES)
    params = {"0.weight": torch.ones(CLASSES, 4), "0.bias": torch.ones(CLASSES)}
    torch.testing.assert_close(_features(task, params, x, "0.weight"), x.mean((0, 1)))
    assert not task.model[0]._forward_pre_hooks


@pytest.mark.parametrize("bias", [True, False])
def test_rows_are_counted_by_least_squares_over_row_and_bias(bias):
    """Rows that are the factors times the features of noise: whatever a decoy adds across the features changes nothing."""
    counts = (0, 3, 1, 4)
    one, task = scene(counts, bias=bias)
    noise = task.space.noise(64, torch.Generator().manual_seed(0)).flatten(1).mean(0)
    factors = (P if bias else torch.full((CLASSES,), 0.25)) - torch.tensor(counts) / 8
    across = torch.eye(9)[0] - noise * noise[0] / (noise @ noise)
    update = {"1.weight": torch.outer(factors, noise) + torch.outer(torch.tensor([3.0, -2.0, 5.0, 1.0]), across)}
    update |= {"1.bias": factors} if bias else {}
    spoiled = dataclasses.replace(one, update=update)
    assert inferred("count_rows", spoiled, task) == [1, 1, 1, 2, 3, 3, 3, 3]
    if bias:  # of the bias alone what the row says is missing, by their shares of the squares
        share = 1 / (1 + noise @ noise)
        bare = dataclasses.replace(one, update={"1.weight": torch.zeros(CLASSES, 9), "1.bias": factors / share})
        assert inferred("count_rows", bare, task) == [1, 1, 1, 2, 3, 3, 3, 3]
    lone, task = scene((0, 0, 1, 0), bias=bias)
    assert inferred("count_rows", lone, task) == [2]


def test_a_change_of_weights_is_put_on_the_scale_of_a_gradient():
    one, _ = scene()
    assert as_gradient(one) is one.update
    rule = LocalRule(kind="delta", batch_size=4, steps=2, lr=0.1)
    params = {"w": torch.tensor([5.0, -5.0])}
    delta = dataclasses.replace(one, rule=rule, params=params, update={"w": torch.tensor([-0.4, 0.2])})
    assert as_gradient(delta)["w"].tolist() == pytest.approx([2.0, -1.0])
    decayed = dataclasses.replace(delta, rule=dataclasses.replace(rule, weight_decay=0.1))
    assert as_gradient(decayed)["w"].tolist() == pytest.approx([2.0 - 0.5, -1.0 + 0.5])


def test_labels_that_cannot_be_had_are_refused():
    one, task = scene()
    with pytest.raises(AttackError, match="--grant labels"):
        inferred("given", one, task)
    with pytest.raises(AttackError, match="for one example, not 8"):
        inferred("sign", one, task)
    with pytest.raises(AttackError, match="the last layer has no bias"):
        inferred("count", scene(bias=False)[0], scene(bias=False)[1])
    told = dataclasses.replace(one, knowledge=Knowledge(labels=torch.tensor([3, 1])))
    assert inferred("given", told, task) == [3, 1]


def separated(counts, seed=0):
    """A network that tells classes apart by features of their own, and the true gradient of so many examples of each."""
    y = torch.repeat_interleave(torch.arange(CLASSES), torch.tensor(counts))
    x = nn.functional.one_hot(y, 9) + 0.05 * torch.rand(len(y), 9, generator=torch.Generator().manual_seed(seed))
    model = nn.Sequential(nn.Flatten(), nn.Linear(9, CLASSES))
    params = {"1.weight": 3 * torch.eye(CLASSES, 9), "1.bias": torch.zeros(CLASSES)}
    images = x.view(-1, 1, 3, 3)
    update = torch.func.grad(lambda p: nn.functional.cross_entropy(torch.func.functional_call(model, p, (images,)), y))(params)
    one = Observation(params=params, update=update, rule=LocalRule(batch_size=len(y)), num_examples=len(y), server_round=1)
    return one, Task(model, Images((1, 3, 3)), CLASSES), Public(images, y)


def test_the_features_that_enter_tell_what_the_network_makes_of_them():
    """Features far from those of noise: rows over their bias are these features, and their probabilities the true ones."""
    one, task = scene()
    features, layer = torch.full((9,), 3.0), torch.tensor([0.04, 0.04, -0.04, 0.04])[:, None].expand(-1, 9)
    p = (layer @ features).softmax(0)
    factors = p - torch.tensor(COUNTS) / sum(COUNTS)
    params = {"1.weight": layer, "1.bias": torch.zeros(CLASSES)}
    one = dataclasses.replace(one, params=params, update={"1.weight": factors[:, None] * features, "1.bias": factors})
    true = [label for label, number in enumerate(COUNTS) for _ in range(number)]
    assert inferred("ilrg", one, task) == true
    assert inferred("count", one, task) != true


def test_public_examples_tell_what_the_network_makes_of_a_class():
    one, task, _ = separated((2, 9, 0, 5))
    _, _, public = separated((20, 20, 20, 20), seed=1)
    known = confidences(task, one.params, public)
    assert known["confidence"].shape == known["spread"].shape == (CLASSES, CLASSES)
    torch.testing.assert_close(known["confidence"].sum(1), torch.ones(CLASSES))
    assert counted(one, task, known).tolist() == [0] * 2 + [1] * 9 + [3] * 5
    twice = {name: value * 2 for name, value in one.update.items()}  # as an update of local steps, on their scale
    local = dataclasses.replace(
        one, update={k: -v for k, v in twice.items()}, rule=LocalRule(kind="delta", lr=1.0, steps=2, batch_size=8)
    )
    assert counted(local, task, known).tolist() == [0] * 2 + [1] * 9 + [3] * 5


def test_without_a_bias_nothing_is_counted_by_answers():
    one, task = scene(bias=False)
    assert not can_count(one, task)
    with pytest.raises(AttackError, match="no bias"):
        infer("ilrg", one, task, torch.Generator())


def test_standard_counts_by_public_examples_unless_a_defense_may_have_scaled_the_update():
    one, task, _ = separated((2, 2, 0, 1))
    _, _, public = separated((20, 20, 20, 20), seed=1)
    rng = torch.Generator().manual_seed(0)
    attack = Standard(minutes=0.05)
    taught = attack.taught(attack.learn(task, one, public, rng))
    assert sorted(taught.run([one], task, [rng]).y[0].tolist()) == [0, 0, 1, 1, 3]
    told = dataclasses.replace(one, knowledge=Knowledge(defense="dp_sgd"))
    assert "confidence" not in attack.learn(task, told, public, rng)
    assert "confidence" not in dataclasses.replace(attack, labels="rows").learn(task, one, public, rng)
