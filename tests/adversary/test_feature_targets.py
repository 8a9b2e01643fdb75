"""What enters the last layer, read off its gradient, as a target; and the largest entries of an update as an objective."""

import numpy as np
import pytest
import torch

from adversary import AttackError
from adversary.entries import Partial
from adversary.exact.features import inputs_of
from adversary.feature_targets import FeatureTargets, features_of
from adversary.objectives import L2, Cosine, Relative
from adversary.priors import Scene
from fl_app import models
from fl_app.core.local import LocalRule, local_update
from fl_app.core.observation import Observation, Task
from fl_app.core.space import Images

SHAPE = (1, 16, 16)


def case(y, text="lenet5", seed=1):
    """A target of examples with the classes y: (x, observation, task)."""
    net, y = models.build(text, SHAPE, 10, seed=seed), torch.tensor(y)
    x = torch.rand(len(y), *SHAPE, generator=torch.Generator().manual_seed(seed))
    params, rule = models.parameters_of(net), LocalRule(batch_size=len(y))
    update = local_update(net, params, x, y, rule)
    seen = Observation(params=params, update=update, rule=rule, num_examples=len(y), server_round=1)
    return x, y, seen, Task(net, Images(SHAPE), 10)


def true_features(x, seen, task):
    last = [name for name in seen.params if seen.params[name].ndim == 2][-1].removesuffix(".weight")
    return inputs_of(task.model, seen.params, x, [last])[0]


@pytest.mark.parametrize("y", [[3], [3, 1, 7, 0], [3, 1, 3, 0]], ids=str)
def test_features_are_read_off_the_last_layer(y):
    x, y, seen, task = case(y)
    same = (y[:, None] == y).float()
    wanted = (same / same.sum(1, keepdim=True)) @ true_features(x, seen, task)
    found = features_of(seen.update, y, 10)
    limit = 1e-4 if len(y) == 1 else 0.05  # exact of one example; else as far as an untrained network's answers are alike
    assert ((found - wanted).norm(dim=1) < limit * wanted.norm(dim=1)).all()


def test_the_true_examples_are_nearer_than_others_and_targets_do_not_mix():
    cases = [case([3, 1, 7, 0]), case([5, 2, 5, 9])]
    targets = [(replace_params(one[2], cases[0][2].params, one),) for one in cases]
    task, classes = cases[0][3], torch.stack([one[1] for one in cases])
    penalty = FeatureTargets(weight=2.0).bind(Scene(targets, task, classes))
    x = torch.stack([torch.stack([one[0], one[0].flip(-1)]) for one in cases])
    found = penalty(x)
    assert found.shape == (2, 2)
    assert (found[:, 0] < 0.1 * found[:, 1]).all()
    for place, target in enumerate(targets):
        one = FeatureTargets(weight=2.0).bind(Scene([target], task, classes[place : place + 1]))
        torch.testing.assert_close(one(x[place : place + 1])[0], found[place])
    torch.testing.assert_close(FeatureTargets(weight=1.0).bind(Scene(targets, task, classes))(x), found / 2)


def replace_params(seen, params, case_of_it):
    """The same target at other weights, which all of a search share."""
    x, y, _, task = case_of_it
    update = local_update(task.model, params, x, y, seen.rule)
    return Observation(params=params, update=update, rule=seen.rule, num_examples=len(y), server_round=1)


def test_a_last_layer_without_a_bias_gives_nothing_away():
    _, y, seen, _ = case([3, 1])
    bare = {name: value for name, value in seen.update.items() if value.ndim > 1}
    with pytest.raises(AttackError, match="a last layer with a bias"):
        features_of(bare, y, 10)


def tensors(seed):
    rng = torch.Generator().manual_seed(seed)
    return {"a": torch.randn(4, 5, generator=rng), "b": torch.randn(7, generator=rng), "c": torch.randn((), generator=rng)}


@pytest.mark.parametrize("objective", [L2(), Cosine(), Relative()])
def test_the_whole_share_changes_nothing(objective):
    dummy, seen = tensors(1), tensors(2)
    torch.testing.assert_close(Partial(objective=objective, share=1.0)(dummy, seen, 0.0), objective(dummy, seen, 0.0))


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_only_the_largest_entries_of_each_tensor_count(share):
    dummy, seen = tensors(1), tensors(2)
    total = 0.0
    for name, value in seen.items():
        ours, theirs = dummy[name].numpy().ravel(), value.numpy().ravel()
        order = np.argsort(-np.abs(theirs))[: max(1, round(share * len(theirs)))]
        total += ((ours - theirs)[order] ** 2).sum()
    objective = Partial(objective=L2(), share=share)
    assert objective(dummy, seen, 0.0).item() == pytest.approx(total, rel=1e-5)
    assert objective.residuals(dummy, seen, 0.0).square().sum().item() == pytest.approx(total, rel=1e-5)


def test_a_share_is_vectorised_over_targets():
    dummy, seen = tensors(1), [tensors(2), tensors(3)]
    objective = Partial(objective=Cosine(), share=0.3)
    stacked = {name: torch.stack([one[name] for one in seen]) for name in dummy}
    found = torch.func.vmap(lambda one: objective(dummy, one, 0.0))(stacked)
    torch.testing.assert_close(found, torch.stack([objective(dummy, one, 0.0) for one in seen]))
