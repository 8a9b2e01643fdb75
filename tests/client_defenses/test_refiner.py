"""Refiner on real digits, with a small evaluation network that has only seen photos."""

from dataclasses import replace

import pytest
import torch
from torch.func import functional_call
from torch.nn import functional as F

import client_defenses
from client_defenses import Memory
from client_defenses.refiner import Refiner, keys_of, layers_of, mismatch, project, weights_of
from client_defenses.tools import evaluator as evaluation
from client_defenses.tools.clipping import total_norm
from client_defenses.tools.evaluator import EvaluatorError, EvaluatorFacts, EvaluatorTraining
from fl_app import data, models
from fl_app.core.local import Step
from fl_app.core.spec import SpecError
from fl_app.core.wire import to_record, to_tensors
from fl_app.data import photos
from fl_app.data.batches import round_positions


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    # Photos alone: a network that has seen black and white images is so sure of clean digits that it has no gradient there.
    settings = EvaluatorTraining(width=16, steps=600, batch_size=64, lr=5e-3, stark=0.0)
    made = evaluation.train(photos.pieces((1, 28, 28), 3000), settings)
    path = tmp_path_factory.mktemp("evaluator") / "small.safetensors"
    evaluation.save(made, path)
    return str(path)


@pytest.fixture(scope="module")
def network(trained):
    return evaluation.load(trained)


def step_of(start, number, model="lenet"):
    x, y = data.load("mnist").test.at(slice(start, start + number))
    net = models.build(model, (1, 28, 28), 10)
    return Step(models.parameters_of(net), net, x, y)


@pytest.fixture(scope="module")
def step():
    return step_of(0, 8)


def robust_of(memory):
    return memory.state["robust"].float() / 255


def gap(sent, true):
    return total_norm({name: sent[name].double() - true[name].double() for name in true}).item()


def exact_gap(sent, true):
    return sum((sent[name].double() - true[name].double()).square().sum() for name in true).sqrt().item()


def test_the_network_knows_noise_from_digits_it_has_never_seen(network):
    x = data.load("mnist").test.at(slice(0, 500))[0]
    noise = torch.rand(x.shape, generator=torch.Generator().manual_seed(0))
    said = [network(evaluation.mix(x, share, noise)).mean().item() for share in (0, 0.2, 0.4, 0.6, 0.8, 1)]
    assert said[0] < 0.15
    assert said == sorted(said)
    assert said[3] == pytest.approx(0.6, abs=0.1)
    assert said[5] > 0.9


@pytest.mark.parametrize("batch", [1, 8, 32])
def test_robust_data_look_like_noise_and_stay_images(trained, network, batch):
    step, memory = step_of(20, batch), Memory.fresh(0)
    Refiner(evaluator=trained).gradient(step, memory)
    x = robust_of(memory)
    assert network(step.x).max() < 0.15
    assert network(x).mean() > 0.4
    true, (start, _) = step.gradient(), Refiner()._start(step.x, Memory.fresh(0))
    found, grads = Refiner().refine(step, true, start, 10, network)
    assert found.min() >= 0
    assert found.max() <= 1
    assert network(found).sum() > network(start).sum()
    torch.testing.assert_close(found, x, atol=1 / 255, rtol=0)
    again = step._replace(x=found).gradient()
    for name, value in again.items():
        torch.testing.assert_close(grads[name], value, atol=1e-5, rtol=1e-4)


def test_the_gradient_of_the_robust_data_comes_closer(network, step):
    true, (start, _) = step.gradient(), Refiner()._start(step.x, Memory.fresh(0))
    weights = weights_of(true, step.params, 0.95)
    defense = Refiner(beta=0.0)
    far = [mismatch(weights, defense.refine(step, true, start, t, network)[1], true).item() for t in (0, 1, 3, 10)]
    assert far == sorted(far, reverse=True)
    assert far[-1] < 0.5 * far[0]
    assert mismatch(weights, Refiner().refine(step, true, start, 10, network)[1], true) < 0.7 * far[0]  # with D as well


@pytest.mark.parametrize("relative", [False, True])
def test_a_step_follows_the_gradient_of_eq_2(network, relative):
    """With `relative`, the mismatch is measured in that of sending nothing."""
    step = step_of(0, 2)
    true, (start, _) = step.gradient(), Refiner()._start(step.x, Memory.fresh(0))
    weights = weights_of(true, step.params, 0.9)
    nothing = mismatch(weights, true, {name: torch.zeros_like(value) for name, value in true.items()})
    x = start.clone().requires_grad_()
    leaves = [value.clone().requires_grad_() for value in step.params.values()]
    loss = F.cross_entropy(functional_call(step.model, dict(zip(step.params, leaves, strict=True)), (x,)), step.y)
    grads = dict(zip(step.params, torch.autograd.grad(loss, leaves, create_graph=True), strict=True))
    objective = mismatch(weights, grads, true) / (nothing if relative else 1) - 3.0 * network(x).sum()
    expected = (start - 1e-3 * torch.autograd.grad(objective, x)[0]).clamp(0, 1)
    defense = Refiner(relative=relative, tau=0.9, beta=3.0, lr=1e-3, backtrack=False)
    found, sent = defense.refine(step, true, start, 1, network)
    assert (found - start).abs().max() > 1e-6
    torch.testing.assert_close(found - start, expected - start, atol=1e-7, rtol=1e-3)
    for name, value in step._replace(x=found).gradient().items():
        torch.testing.assert_close(sent[name], value)


def test_a_step_too_long_is_taken_back(network):
    step = step_of(0, 1)
    true, (start, _) = step.gradient(), Refiner()._start(step.x, Memory.fresh(0))
    weights = weights_of(true, step.params, 0.95)

    def objective(defense):
        x, grads = defense.refine(step, true, start, 10, network)
        return (mismatch(weights, grads, true) - network(x).sum()).item()

    assert objective(Refiner(lr=30.0)) < objective(Refiner(iterations=0, lr=1e-12))
    assert objective(Refiner(lr=30.0)) < objective(Refiner(lr=30.0, backtrack=False))


def test_without_noise_at_the_start_the_network_is_fooled(network):
    # The adversarial examples of section 3.4: called noise, but close to the image, which the blended start is not.
    step = step_of(0, 4)
    start, warm = Refiner(alpha=0.0)._start(step.x, Memory.fresh(0))
    assert torch.equal(start, step.x)
    assert not warm
    found, _ = Refiner(alpha=0.0).refine(step, step.gradient(), start, 150, network)
    assert network(step.x).max() < 0.15
    assert network(found).median() > 0.6
    blended = Refiner()._start(step.x, Memory.fresh(0))[0]
    assert (found - step.x).square().mean() < 0.25 * (blended - step.x).square().mean()


def test_without_noise_and_without_the_network_it_is_the_plain_gradient(trained, step):
    sent = Refiner(alpha=0.0, beta=0.0, evaluator=trained).gradient(step, Memory.fresh(0))
    for name, value in step.gradient().items():
        torch.testing.assert_close(sent[name], value, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("eps", [0.01, 0.1, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_sent_is_never_further_than_eps(trained, step, eps, dtype):
    params = {name: value.to(dtype) for name, value in step.params.items()}
    own = Step(params, models.build("lenet", (1, 28, 28), 10).to(dtype), step.x.to(dtype), step.y)
    free = Refiner(evaluator=trained, iterations=2).gradient(own, Memory.fresh(0))
    sent = Refiner(evaluator=trained, iterations=2, eps=eps).gradient(own, Memory.fresh(0))
    true = own.gradient()
    assert exact_gap(free, true) > eps
    assert exact_gap(sent, true) == pytest.approx(eps, rel=1e-6)
    wide = Refiner(evaluator=trained, iterations=2, eps=100.0).gradient(own, Memory.fresh(0))
    assert all(torch.equal(wide[name], free[name]) for name in free)


def test_the_projection_is_the_nearest_point_of_the_ball(rng):
    true, grads = ({"a": torch.randn(40, generator=rng).double(), "b": torch.randn(3, 3, generator=rng).double()} for _ in "12")
    sent = project(grads, true, 0.5)
    assert exact_gap(sent, true) == pytest.approx(0.5, rel=1e-12)
    assert exact_gap(sent, grads) == pytest.approx(exact_gap(grads, true) - 0.5, rel=1e-12)
    assert project(grads, true, 1e3) is grads
    assert project(true, true, 0.5) is true


def test_weights_are_those_of_equation_3():
    names = ["conv1.weight", "conv1.bias", "block.0.weight", "fc.weight", "fc.bias"]
    assert list(layers_of(names).values()) == [1, 1, 2, 3, 3]
    grads = {"conv1.weight": torch.tensor([2.0, -1.0]), "fc.bias": torch.tensor([-3.0])}
    params = {"conv1.weight": torch.tensor([-0.5, 4.0]), "fc.bias": torch.tensor([2.0])}
    weights = weights_of(grads, params, 0.5)
    assert weights["conv1.weight"].tolist() == [0.5, 2.0]
    assert weights["fc.bias"].tolist() == [1.5]
    off = {name: value + 1 for name, value in grads.items()}
    assert mismatch(weights, off, grads).item() == 4.0


def count_models(monkeypatch):
    """The gradients of the model that are taken from now on."""
    taken = []
    for name in ("gradient", "differentiable_gradient"):
        plain = getattr(Step, name)
        monkeypatch.setattr(Step, name, lambda self, plain=plain, name=name: (taken.append(name), plain(self))[1])
    return taken


def test_a_warm_start_costs_about_half_and_is_no_worse(trained, network, step, monkeypatch):
    defense, memory = Refiner(evaluator=trained), Memory.fresh(0)
    taken = count_models(monkeypatch)
    defense.gradient(step, memory)
    cold, first = taken.count("differentiable_gradient"), network(robust_of(memory)).mean()
    assert cold == defense.iterations
    taken.clear()
    moved = {name: value * 0.99 for name, value in step.params.items()}  # a later round
    sent = defense.gradient(step._replace(params=moved), memory)
    assert taken.count("differentiable_gradient") <= 0.6 * cold
    assert len(taken) <= 0.6 * (cold + 2)
    assert network(robust_of(memory)).mean() > first - 0.02
    true = step._replace(params=moved).gradient()
    fresh = replace(defense, iterations=5).gradient(step._replace(params=moved), Memory.fresh(0))
    assert gap(sent, true) < 1.1 * gap(fresh, true)


def test_robust_data_are_found_again_by_the_image_wherever_it_is_in_the_batch(trained):
    defense, memory = Refiner(evaluator=trained, iterations=1, warm_iterations=0), Memory.fresh(0)
    step = step_of(0, 6)
    defense.gradient(step, memory)
    before = robust_of(memory)
    order = torch.tensor([4, 2, 0])
    start, warm = defense._start(step.x[order], memory)
    assert warm
    assert torch.equal(start, before[order])
    for strangers, expected in ((1, True), (2, True), (3, False)):  # half of the batch decides
        mixed = torch.cat([step.x[:2], step_of(50, strangers).x])
        start, warm = defense._start(mixed, memory)
        assert warm == expected
        assert torch.equal(start[:2], before[:2])
        assert not torch.equal(start[2:], mixed[2:])
    assert not defense._start(step_of(0, 2).x[..., 1:], memory)[1]


def test_the_newest_are_remembered(trained):
    defense, memory = Refiner(evaluator=trained, iterations=0, warm_iterations=0, remember=5), Memory.fresh(0)
    for start in (0, 3, 0):
        defense.gradient(step_of(start, 3), memory)
    assert memory.state["robust"].shape == (5, 1, 28, 28)
    assert torch.equal(memory.state["keys"], keys_of(step_of(0, 5).x))
    assert len(keys_of(data.load("mnist").test.at(slice(0, 3000))[0]).unique()) == 3000
    x = torch.rand(5, 3, 4, 2)
    assert torch.equal(keys_of(x), keys_of(x.to(memory_format=torch.channels_last))), "by values, wherever they lie"
    forgetful = Memory.fresh(0)
    replace(defense, remember=0).gradient(step_of(0, 3), forgetful)
    assert not forgetful.state
    large = Memory.fresh(0)
    defense.gradient(step_of(0, 8), large)
    assert len(large.state["keys"]) == len(large.state["robust"]) == 5


def test_in_the_setting_of_the_paper_every_batch_of_the_second_epoch_is_warm(tmp_path, monkeypatch):
    """5,000 images per client in batches of 128: 39 rounds per epoch, each of which leaves 8 other images out."""
    images = torch.arange(5000).view(-1, 1, 1, 1).expand(-1, 1, 2, 2) / 5000
    facts = EvaluatorFacts(shape=(1, 2, 2), training=EvaluatorTraining(width=1))
    evaluation.save(evaluation.Evaluator(evaluation.build_network(facts.shape, 1), facts), tmp_path / "tiny.safetensors")
    defense, memory, taken = Refiner(evaluator=str(tmp_path / "tiny.safetensors")), Memory.fresh(0), []
    refine = Refiner.refine
    monkeypatch.setattr(Refiner, "refine", lambda self, *given: (taken.append(given[3]), refine(self, *given))[1])
    model = models.build("linear", (1, 2, 2), 2)
    for server_round in range(1, 2 * 39 + 1):
        x = images[round_positions(0, 0, server_round, 128, 5000)]
        defense.gradient(Step(models.parameters_of(model), model, x, (x[:, 0, 0, 0] > 0.5).long()), memory)
    assert taken == [10] * 39 + [5] * 39
    assert 4992 < len(memory.state["keys"]) <= 5000
    assert memory.state["robust"].dtype == torch.uint8


def test_the_memory_survives_the_client_state(trained, step):
    defense = Refiner(evaluator=trained, iterations=2, warm_iterations=1)
    kept, moved = Memory.fresh(3), Memory.fresh(3)
    for memory in (kept, moved):
        defense.gradient(step, memory)
    held = {name: value.clone() for name, value in kept.state.items()}
    shared = dict(kept.state)
    moved.state = to_tensors(to_record(moved.state))
    one, other = defense.gradient(step, kept), defense.gradient(step, moved)
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert all(torch.equal(held[name], shared[name]) for name in held)  # what is shared is not changed in place


def test_other_models_and_soft_labels(trained):
    soft = step_of(0, 3, "lenet(activation='relu', init='default')")
    soft = soft._replace(y=torch.softmax(torch.randn(3, 10, generator=torch.Generator().manual_seed(0)), 1))
    sent = Refiner(evaluator=trained, relative=True, iterations=3).gradient(soft, Memory.fresh(0))
    assert all(value.isfinite().all() for value in sent.values())
    assert not any(value.requires_grad for value in sent.values())


def test_without_a_network_it_says_how_to_get_one(step, trained):
    with pytest.raises(EvaluatorError, match="thorns train-evaluator"):
        client_defenses.build("refiner").protect(step, Memory.fresh(0))
    colour = models.build("lenet", (3, 28, 28), 10)
    wrong = Step(models.parameters_of(colour), colour, step.x.expand(-1, 3, -1, -1), step.y)
    with pytest.raises(EvaluatorError, match="takes images of shape"):
        Refiner(evaluator=trained).gradient(wrong, Memory.fresh(0))
    for bad in ("alpha=1.5", "beta=-1.0", "eps=0.0", "tau=2.0", "iterations=-1", "lr=0.0"):
        with pytest.raises(SpecError, match=bad.partition("=")[0]):
            client_defenses.build(f"refiner({bad})")
