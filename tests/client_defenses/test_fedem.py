"""FedEM against an explicit loop, its bounds and its memory."""

import copy
import itertools
import math
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

import client_defenses
from client_defenses import Memory
from client_defenses.fedem import FedEM, entry_of, gradients
from fl_app import engines, models
from fl_app.core.local import Step, loss_of
from fl_app.core.spec import SpecError
from fl_app.engines.watcher import Watcher

SHAPE = (1, 12, 12)


def batch(rng, size=4):
    return torch.rand(size, *SHAPE, generator=rng), torch.randint(5, (size,), generator=rng)


@pytest.fixture
def step(rng):
    model = models.build("lenet", SHAPE, 5, normalize=([0.3], [0.5]))
    return Step(models.parameters_of(model), model, *batch(rng))


def by_hand(step, delta, *, steps, alpha, lr, low, high):
    """Lines 8 to 14 of Algorithm 1 in plain torch -> (delta, local model, gradient at the server's weights)."""
    local = copy.deepcopy(step.model)
    local.load_state_dict(step.params)
    for _ in range(steps):
        moved = delta.clone().requires_grad_()
        F.cross_entropy(local(step.x + moved), step.y).backward()
        delta = delta - alpha * torch.sign(moved.grad)
        for place in range(len(delta)):
            size = math.sqrt(delta[place].double().square().sum())
            delta[place] *= high / size if size > high else low / size if size < low else 1
        local.zero_grad()
        F.cross_entropy(local(step.x + delta), step.y).backward()
        with torch.no_grad():
            for value in local.parameters():
                value -= lr * value.grad
    server = copy.deepcopy(step.model)
    server.load_state_dict(step.params)
    F.cross_entropy(server(step.x + delta), step.y).backward()
    return delta, local, {name: value.grad for name, value in server.named_parameters()}


@pytest.mark.parametrize("scope", ["client", "sample"])
@pytest.mark.parametrize(("low", "high", "alpha"), [(0.0, 8 / 255, 0.1), (0.5, 0.9, 0.01)])
def test_it_is_algorithm_1(step, rng, scope, low, high, alpha):
    defense = FedEM(rho_min=low, rho_max=high, alpha=alpha, lr=0.3, steps=5, scope=scope)
    memory, places = Memory.fresh(5), 4 if scope == "sample" else 1
    delta = defense.draw(torch.empty(places, *SHAPE), Memory.fresh(5))
    for _ in range(3):  # the perturbation goes on from batch to batch, the local weights do not
        sent = defense.protect(step, memory)
        delta, _, expected = by_hand(step, delta, steps=5, alpha=alpha, lr=0.3, low=low, high=high)
        torch.testing.assert_close(memory.round["delta"], delta, atol=1e-6, rtol=1e-5)
        for name, value in expected.items():
            torch.testing.assert_close(sent[name], value, atol=1e-6, rtol=1e-4)
        x, y = batch(rng)
        step = Step({name: value - 0.1 * sent[name] for name, value in step.params.items()}, step.model, x, y)


class Watched(FedEM):
    """Notes every projection."""

    def project(self, delta, memory):
        before, after = delta.flatten(1).norm(dim=1), super().project(delta, memory)
        NOTED.append((before, after.flatten(1).norm(dim=1)))
        return after


NOTED: list = []


@pytest.mark.parametrize("scope", ["client", "sample"])
def test_the_norm_is_in_bounds_after_every_step(step, scope):
    NOTED.clear()
    for low, high, alpha in ((0.0, 8 / 255, 0.1), (0.6, 0.6, 0.02), (0.4, 0.5, 1e-3), (0.3, 5.0, 0.02)):
        Watched(rho_min=low, rho_max=high, alpha=alpha, scope=scope).on_batch(step, Memory.fresh(1))
        assert len(NOTED) == 15
        sizes = torch.cat([after for _, after in NOTED])
        assert sizes.min() >= low * (1 - 1e-5)
        assert sizes.max() <= high * (1 + 1e-5)
        NOTED.clear()


def test_the_projection_scales_down_up_and_draws_anew_what_has_no_direction():
    defense = FedEM(rho_min=0.5, rho_max=2.0)
    rows = [torch.full(SHAPE, size / 12) for size in (6.0, 0.1, 1.0, 0.0, math.nan)]
    found = defense.project(torch.stack(rows), Memory.fresh(2))
    sizes = found.flatten(1).norm(dim=1)
    torch.testing.assert_close(sizes[:3], torch.tensor([2.0, 0.5, 1.0]))
    assert all(0.5 <= size <= 2.0 for size in sizes[3:].tolist())
    assert found[3].std() > 0  # a direction, not a constant
    torch.testing.assert_close(found[1], torch.full(SHAPE, 0.5 / 12))


def test_drawn_perturbations_fill_the_shell():
    drawn = FedEM(rho_min=1.0, rho_max=3.0).draw(torch.empty(2000, *SHAPE), Memory.fresh(3))
    sizes = drawn.flatten(1).norm(dim=1)
    assert 1 <= sizes.min() < 1.05
    assert 2.95 < sizes.max() <= 3 + 1e-5
    assert abs(sizes.mean() - 2) < 0.05
    assert drawn.mean(0).norm() < 0.15  # no direction is preferred: 2 / sqrt(2000) = 0.045 by chance


def test_what_is_sent_is_the_gradient_at_the_servers_weights(step):
    memory = Memory.fresh(1)
    defense = FedEM(rho_max=1.0)
    sent = defense.protect(step, memory)
    moved = step.x + memory.round["delta"]
    expected = Step(step.params, step.model, moved, step.y).gradient()
    assert all(torch.equal(sent[name], value) for name, value in expected.items())
    plain = step.gradient()
    assert not any(torch.equal(sent[name], plain[name]) for name in plain)
    assert moved.min() < 0  # not clipped, as in the paper


def test_the_steps_lower_the_loss(step):
    """With fixed weights below x itself and below random perturbations of the same size; also where the weights moved."""
    for scope in ("client", "sample"):
        still, moving = FedEM(rho_max=1.0, lr=0.0, scope=scope), FedEM(rho_max=1.0, scope=scope)
        at_x = loss_of(step.model, step.params, step.x, step.y)
        at_delta = loss_of(step.model, step.params, still.on_batch(step, Memory.fresh(1)).x, step.y)
        drawn = [still.draw(torch.empty(1, *SHAPE), Memory.fresh(seed)) for seed in range(20)]
        random = [loss_of(step.model, step.params, step.x + d / d.norm(), step.y) for d in drawn]
        assert at_delta < at_x - 0.01
        assert at_delta < min(random)
        places = 4 if scope == "sample" else 1
        start = moving.draw(torch.empty(places, *SHAPE), Memory.fresh(1))
        delta, local, _ = by_hand(step, start, steps=15, alpha=0.1, lr=0.1, low=0, high=1.0)
        with torch.no_grad():
            assert F.cross_entropy(local(step.x + delta), step.y) < F.cross_entropy(local(step.x), step.y)


def test_the_perturbation_lives_for_so_many_batches(step):
    defense, memory, seen = FedEM(steps=0, batches=3, rho_max=1.0), Memory.fresh(1), []
    for _ in range(7):
        seen.append(defense.on_batch(step, memory).x - step.x)
    same = [torch.equal(a, b) for a, b in itertools.pairwise(seen)]
    assert same == [True, True, False, True, True, False]


def test_it_is_drawn_in_each_round_and_lives_in_all_its_batches(step):
    rng, seen = torch.Generator().manual_seed(1), []
    for state in ({}, {}, {}):  # as a client does it: a memory per round
        memory = Memory(state, rng)
        seen.append([FedEM(steps=0, rho_max=1.0).on_batch(step, memory).x - step.x for _ in range(3)])
        assert memory.state == {}
    for one in seen:
        assert all(torch.equal(one[0], other) for other in one)
    assert not torch.equal(seen[0][0], seen[1][0])
    assert not torch.equal(seen[1][0], seen[2][0])
    again = FedEM(steps=0, rho_max=1.0).on_batch(step, memory).x - step.x
    memory.next_round()  # as a training loop does it whose memory lives longer
    anew = FedEM(steps=0, rho_max=1.0).on_batch(step, memory).x - step.x
    assert torch.equal(again, seen[2][0])
    assert not torch.equal(anew, again)


def test_without_a_memory_each_call_of_backward_is_a_round(step):
    found = []
    for _ in range(2):
        step.model.zero_grad()
        FedEM(rho_max=2.0, rho_min=2.0, steps=0).backward(step.model, step.x, step.y)
        found.append(torch.cat([value.grad.flatten() for value in step.model.parameters()]))
    assert not torch.equal(*found)


def test_each_place_of_a_batch_keeps_its_own(step):
    defense, memory = FedEM(steps=0, scope="sample", rho_max=1.0), Memory.fresh(1)
    moves = []
    for size in (3, 2, 4, 3):
        part = step._replace(x=step.x[:1].expand(size, *SHAPE), y=step.y[:1].expand(size))
        moves.append(defense.on_batch(part, memory).x - part.x)
    assert torch.equal(moves[1], moves[0][:2])
    assert torch.equal(moves[2][:3], moves[0])
    assert torch.equal(moves[3], moves[0])
    assert len(torch.unique(moves[2].flatten(1), dim=0)) == 4


@pytest.mark.parametrize("text", ["lenet", "lenet5", "resnet10", "vit(dim=6, depth=1, patch=6)", "linear"])
def test_the_gradient_by_a_shared_perturbation_is_summed_at_the_first_layer(text, rng):
    model = models.build(text, (1, 18, 18), 5, normalize=([0.3], [0.5]))
    x, y = torch.rand(4, 1, 18, 18, generator=rng), torch.arange(4)
    step, delta = Step(models.parameters_of(model), model, x, y), torch.randn(1, 1, 18, 18, generator=rng) / 50
    entry = entry_of(step, delta)
    assert entry is not None
    plain, summed = gradients(step, delta, None), gradients(step, delta, entry, weights=True)
    assert not any(value.requires_grad for value in (delta, *step.params.values())), "what it was given is left as it was"
    torch.testing.assert_close(summed[0], plain[0], atol=1e-5 * plain[0].abs().max().item(), rtol=1e-3)
    moved = step._replace(x=x + delta).gradient()
    for name, value in moved.items():
        torch.testing.assert_close(summed[1][name], value, atol=1e-6, rtol=1e-4)
    assert not any(module._forward_hooks for module in model.modules())


class Odd(torch.nn.Module):
    """Reaches its linear layer by a way that is not affine, not alone, or depends on the batch."""

    def __init__(self, way):
        super().__init__()
        self.way, self.fc = way, torch.nn.Linear(144, 5)

    def forward(self, x):
        x = x.flatten(1)
        if self.way == "bent":
            return self.fc(x.square())
        if self.way == "twice":
            return self.fc(x) + self.fc(2 * x)
        if self.way == "beside":
            return self.fc(x) + x[:, :5]
        return self.fc(x / x.std(0, correction=0).add(1) if self.way == "batch" else x)


@pytest.mark.parametrize("way", ["bent", "twice", "beside", "batch", "plain"])
def test_where_a_sum_would_be_wrong_each_example_goes_back_by_itself(way, rng):
    model = Odd(way)
    step = Step(models.parameters_of(model), model, *batch(rng))
    assert (entry_of(step, torch.zeros(1, *SHAPE)) is not None) == (way == "plain")


def test_one_pass_for_both_steps_does_as_well(step):
    found = {fused: FedEM(rho_max=1.0, fused=fused) for fused in (False, True)}
    at_x = loss_of(step.model, step.params, step.x, step.y)
    losses = {k: loss_of(step.model, step.params, one.on_batch(step, Memory.fresh(1)).x, step.y) for k, one in found.items()}
    assert losses[True] < at_x - 0.8 * (at_x - losses[False])
    still = [replace(one, lr=0.0).protect(step, Memory.fresh(1)) for one in found.values()]
    for name, value in still[0].items():  # with weights that stay both are the same
        torch.testing.assert_close(still[1][name], value)


def test_no_radius_is_no_defense(step):
    memory = Memory.fresh(1)
    assert FedEM(rho_max=0.0).on_batch(step, memory) is step
    assert memory.state == memory.round == {}


def test_it_chains_with_what_comes_after_the_gradient(step):
    memory, alone = Memory.fresh(1), Memory.fresh(1)
    sent = client_defenses.build("fedem(rho_max=1.0) + prune(ratio=0.5)").protect(step, memory)
    expected = client_defenses.build("prune(ratio=0.5)").transform(FedEM(rho_max=1.0).protect(step, alone), Memory.fresh(0))
    assert all(torch.equal(sent[name], value) for name, value in expected.items())
    assert set(memory.round) == {"0/delta", "0/batches"}
    assert memory.state == {}


def test_soft_labels_are_as_good_as_classes(step):
    soft = step._replace(y=F.one_hot(step.y, 5).float())
    one, other = FedEM().protect(step, Memory.fresh(1)), FedEM().protect(soft, Memory.fresh(1))
    for name, value in one.items():
        torch.testing.assert_close(value, other[name])


def test_what_cannot_be_is_refused(step):
    with pytest.raises(SpecError, match=r"rho_min=1.0 is more than rho_max=0.5"):
        FedEM(rho_min=1.0, rho_max=0.5)
    with pytest.raises(SpecError, match="real numbers"):
        FedEM().on_batch(step._replace(x=step.x.long()), Memory.fresh(0))


def test_clients_of_a_run_keep_it_over_server_rounds(small):
    run = engines.run(small.changed(defense="fedem(batches=4, steps=2)", rounds=6), "inline", Watcher())
    state = run.load_memory(6, 0)
    assert state["batches"].tolist() == [2]
    assert 0 < state["delta"].norm() <= 8 / 255 + 1e-6
    assert not torch.equal(state["delta"], run.load_memory(6, 1)["delta"])


def test_clients_of_a_run_draw_it_in_each_server_round(small, monkeypatch):
    drawn, plain = [], FedEM.draw
    monkeypatch.setattr(FedEM, "draw", lambda self, like, memory: (drawn.append(len(like)), plain(self, like, memory))[1])
    steps = {"update": "delta", "local_steps": 2, "clients": 1, "rounds": 3}
    run = engines.run(small.changed(defense="fedem(steps=1)", **steps), "inline", Watcher())
    assert drawn == [1, 0] * 3  # for the first local step of each round, and for none of the others
    assert run.load_memory(3, 0) == {}
