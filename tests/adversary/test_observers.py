"""What observers make of a gradient, of weights and of reconstructions, on networks of a few numbers."""

import dataclasses

import pytest
import torch
from skimage.restoration import denoise_tv_chambolle
from torch import nn

from adversary import AttackError, Guess
from adversary.informed.bido import Penalised
from adversary.informed.expected import Expected, parts_of, protection
from adversary.informed.fedem import Common, Replay, common_part, remove_common, replayed, smoothed
from adversary.informed.latent_perturbation import MeanLatent, ReadFeatures
from adversary.informed.refiner import NoiseShare, Unblend, cleaned, unblend
from adversary.priors import Scene
from adversary.search.observers import Local, Observer
from adversary.search.surrogate import POSITION, Surrogate
from adversary.search.views import view_of
from client_defenses import Memory, build
from client_defenses.tools import evaluator as evaluation
from fl_app.core.local import LocalRule, Step
from fl_app.core.observation import Knowledge, Observation, Task
from fl_app.core.space import Images

SIDE, CLASSES = 4, 3
RULE = LocalRule(batch_size=2)


def network():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, 5), nn.Sigmoid(), nn.Linear(5, CLASSES))


MODEL = network()
TASK = Task(MODEL, Images((1, SIDE, SIDE)), CLASSES)
PARAMS = {name: value.detach() for name, value in MODEL.named_parameters()}


def step_of(examples, seed=0):
    x = torch.rand(examples, 1, SIDE, SIDE, generator=torch.Generator().manual_seed(seed))
    return Step(PARAMS, MODEL, x, torch.arange(examples) % CLASSES)


def seen_of(update, examples=2, rule=RULE, client=0, **knowledge):
    return Observation(
        params=PARAMS,
        update=update,
        rule=rule,
        num_examples=examples,
        server_round=1,
        client=client,
        knowledge=Knowledge(**knowledge),
    )


def near(found, wanted):
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value)


def test_every_hook_is_the_identity_unless_it_is_overridden():
    plain, seen = Observer(), seen_of(PARAMS)
    assert plain.model(MODEL, seen, TASK) is MODEL
    assert plain.draw(seen, TASK) == {}
    assert plain.project(PARAMS) is plain.weights(PARAMS, {}, 0.0) is plain.sent(PARAMS, {}) is PARAMS
    assert plain.gradient(Step.gradient, seen) is Step.gradient
    assert plain.update(None, {}) is None
    assert plain.clean(PARAMS, [], TASK, []) is PARAMS
    assert (plain.by_client, plain.unrolls, Common(rho=1.0).by_client, Surrogate().unrolls) == (False, True, True, False)


def test_expected_passes_the_gradient_through_the_granted_defense():
    step = step_of(2)
    through = Expected().gradient(Step.gradient, seen_of({}, defense="prune(ratio=0.5) + mask(ratio=0.5)"))
    near(through(step), build("prune(ratio=0.5) + mask(ratio=0.5)").expected(step.gradient()))
    with pytest.raises(AttackError, match="the observer 'expected' needs the defense to be granted"):
        Expected().gradient(Step.gradient, seen_of({}))
    draws = torch.Generator().manual_seed(5)
    protect = protection(seen_of({}, defense="dp_gaussian"), torch.Generator().manual_seed(5))
    near(protect(step), build("dp_gaussian").protect(step, Memory({}, draws)))
    chain = build("sign + prune")
    assert parts_of(chain) == tuple(chain.parts)
    assert parts_of(chain.parts[0]) == (chain.parts[0],)


def test_the_penalty_of_bido_is_differentiated():
    step, text = step_of(3), "prune + bido(lambda_x=1.0, lambda_y=2.0)"
    taken = Penalised().gradient(Step.gradient, seen_of({}, defense=text))
    near(taken(step), build(text).parts[1].differentiable_gradient(step))
    with pytest.raises(AttackError, match="bido, which is not in the granted defense"):
        Penalised().gradient(Step.gradient, seen_of({}, defense="prune"))


def test_the_common_part_is_what_the_mean_differs_by_from_what_is_smooth():
    x = torch.rand(3, 1, SIDE, SIDE, generator=torch.Generator().manual_seed(1))
    corner, middle = x[0, 0, :2, :2].mean(), x[0, 0, 0:3, 1:4].mean()
    torch.testing.assert_close(smoothed(x)[0, 0, [0, 1], [0, 2]], torch.stack([corner, middle]))
    rough = x.mean(0) - smoothed(x).mean(0)
    torch.testing.assert_close(common_part(x, 100.0), rough)  # shorter than allowed
    torch.testing.assert_close(common_part(x, 0.1), 0.1 * rough / rough.norm())
    usual = torch.full((1, SIDE, SIDE), 0.25)
    torch.testing.assert_close(common_part(x, 100.0, usual), x.mean(0) - 0.25)
    assert common_part(x.half(), 0.1).dtype == torch.float32
    torch.testing.assert_close(remove_common(x, 0.5), (x - common_part(x, 0.5)).clamp(0, 1))
    # Each client by itself; who has one reconstruction keeps it.
    rounds = [seen_of({}, 1, client=client) for client in (0, 1, 0)]
    guess = Guess(x[:, None], torch.zeros(3, 1), torch.zeros(3))
    cleared = Common(rho=0.5).clean(guess, rounds, TASK, [])
    torch.testing.assert_close(cleared.x[[0, 2], 0], remove_common(x[[0, 2]], 0.5))
    assert torch.equal(cleared.x[1], guess.x[1])
    batch = Common(rho=0.5).clean(Guess(x[None], torch.zeros(1, 3), torch.zeros(1)), [seen_of({}, 3)], TASK, [])
    torch.testing.assert_close(batch.x[0], remove_common(x, 0.5))


def test_a_replay_subtracts_what_the_defense_would_add():
    defense, step = build("fedem(rho_min=0.5, rho_max=0.5, steps=2)"), step_of(2)
    streams, clean = torch.Generator().manual_seed(3), step.x
    for _ in range(3):
        moved = defense.on_batch(step._replace(x=clean), Memory({}, streams)).x
        clean = step.x - (moved - clean)
    torch.testing.assert_close(replayed(step, defense, torch.Generator().manual_seed(3)), clean.clamp(0, 1))
    guess = Guess(step.x[None], step.y[None], torch.zeros(1))
    told = seen_of({}, defense="prune + fedem(rho_min=0.5, rho_max=0.5, steps=2)")
    found = Replay().clean(guess, [told], TASK, [torch.Generator().manual_seed(3)])
    torch.testing.assert_close(found.x[0], clean.clamp(0, 1))
    steps = dataclasses.replace(told, rule=LocalRule(kind="delta", batch_size=2, lr=0.1))
    for other in (seen_of({}, defense="prune"), steps):
        with pytest.raises(AttackError, match="needs updates that are gradients, and fedem"):
            Replay().clean(guess, [other], TASK, [torch.Generator()])


def test_blended_noise_is_taken_out():
    x = torch.rand(2, 1, 1, SIDE, SIDE, generator=torch.Generator().manual_seed(1))
    sharp = (x - 0.2) / 0.6
    torch.testing.assert_close(unblend(x, 0.4), sharp.clamp(0, 1))
    weight = 0.4 / 0.6 / 12**0.5
    wanted = [denoise_tv_chambolle(one[0].numpy(), weight=weight, channel_axis=0) for one in sharp]
    torch.testing.assert_close(cleaned(x, 0.4)[:, 0], torch.stack([torch.from_numpy(one) for one in wanted]).clamp(0, 1))
    guess = Guess(x, torch.zeros(2, 1), torch.zeros(2))
    torch.testing.assert_close(Unblend(alpha=0.4).clean(guess, [], TASK, []).x, cleaned(x, 0.4))
    assert torch.equal(unblend(x, 0.0), x)
    for bad in (-0.1, 1.0):
        with pytest.raises(ValueError, match=r"must be in \[0, 1\)"):
            unblend(x, bad)


def test_what_the_clients_network_calls_noise(tmp_path):
    shape = (1, 16, 16)
    images = torch.rand(8, *shape, generator=torch.Generator().manual_seed(0))
    evaluation.save(evaluation.train(images, evaluation.EvaluatorTraining(width=2, steps=1)), tmp_path / "d.safetensors")
    prior = NoiseShare(weight=0.5, evaluator=str(tmp_path / "d.safetensors"))
    bound = prior.bind(Scene([(seen_of({}),)], TASK))
    x = torch.rand(2, 3, 2, *shape, generator=torch.Generator().manual_seed(1))
    network = evaluation.load(tmp_path / "d.safetensors")
    wanted = torch.stack([network(one.flatten(0, 0)).mean() for target in x for one in target]).view(2, 3)
    torch.testing.assert_close(bound(x), 0.5 * wanted)


def test_features_are_read_off_the_last_layer():
    step = step_of(1)
    update, observer = step.gradient(), ReadFeatures()
    hidden = (step.x.flatten(1) @ PARAMS["1.weight"].T + PARAMS["1.bias"]).sigmoid()
    seen = seen_of(update, 1, LocalRule(batch_size=1))
    drawn = observer.draw(seen, TASK)
    near(drawn, {"3.features": hidden[0]})
    assert observer.weights(PARAMS, drawn, 0.0) == {**PARAMS, **drawn}
    changed = observer.model(MODEL, seen, TASK)
    assert not hasattr(MODEL[3], "features")
    # Whatever goes in, the last layer reads the features; what goes back through it is kept.
    x = torch.rand(1, 1, SIDE, SIDE, requires_grad=True)
    logits = torch.func.functional_call(changed, {**PARAMS, **drawn}, (x,))
    torch.testing.assert_close(logits, MODEL(step.x))
    assert torch.autograd.grad(logits.sum(), x)[0].abs().sum() > 0
    nothing = {name: torch.zeros_like(value) for name, value in update.items()}
    assert not observer.draw(dataclasses.replace(seen, update=nothing), TASK)["3.features"].any()
    bare = {name: value for name, value in update.items() if name != "3.bias"}
    for other in (
        dataclasses.replace(seen, update=bare),
        dataclasses.replace(seen, num_examples=2),
        dataclasses.replace(seen, rule=LocalRule(kind="delta", batch_size=1, lr=0.1)),
    ):
        with pytest.raises(AttackError, match="one example and a last layer with a bias"):
            observer.draw(other, TASK)


def test_the_mean_of_the_noise_is_put_on_the_latent_of_a_copy():
    moved = MeanLatent().model(MODEL, seen_of({}, defense="sign + latent_perturbation(layer='2', mu=0.5)"), TASK)
    x = step_of(2).x
    hidden = (x.flatten(1) @ PARAMS["1.weight"].T + PARAMS["1.bias"]).sigmoid()
    torch.testing.assert_close(moved(x), (hidden + 0.5) @ PARAMS["3.weight"].T + PARAMS["3.bias"])
    assert moved is not MODEL
    assert MeanLatent().model(MODEL, seen_of({}, defense="latent_perturbation(layer='2', mu=0.0)"), TASK) is MODEL


def test_local_steps_as_one_gradient_on_the_way():
    step, rule = step_of(2), LocalRule(kind="delta", batch_size=1, steps=2, lr=0.1, weight_decay=0.3)
    observed = {name: torch.full_like(value, 0.4) for name, value in PARAMS.items()}
    local = Local(MODEL, PARAMS, step.x, step.y, rule, Step.gradient, observed)
    observer = Surrogate(start=0.5, pace=0.2)
    drawn = observer.draw(seen_of(observed, rule=rule), TASK)
    assert drawn[POSITION].tolist() == [2.5]
    weights = {name: value + 0.5 * 0.4 for name, value in PARAMS.items()}
    gradient = step._replace(params=weights).gradient()
    wanted = {name: -value - 0.3 * weights[name] for name, value in gradient.items()}
    near(observer.update(local, drawn), wanted)
    near(Surrogate(start=0.5, pace=0.0).update(local, {}), wanted)
    assert observer.project({POSITION: torch.tensor([-1.0, 2.0, 9.0])})[POSITION].tolist() == [0.0, 2.0, 5.0]
    assert observer.update(local._replace(rule=RULE), drawn) is None
    assert observer.draw(seen_of(observed), TASK) == {}


def test_a_round_is_seen_of_all_targets():
    updates = [{name: torch.full_like(value, number) for name, value in PARAMS.items()} for number in (1.0, 2.0)]
    orders = [torch.tensor([[0, 1], [1, 0]]), torch.tensor([[1, 1], [0, 0]])]
    view = view_of([seen_of(update, order=order) for update, order in zip(updates, orders, strict=True)])
    assert view.params is PARAMS
    assert [value[:, ..., 0].flatten()[[0, -1]].tolist() for value in view.observed.values()] == [[1.0, 2.0]] * 4
    x = torch.tensor([[[10, 11]], [[20, 21]]])  # two targets, one seed, two examples
    assert view.in_order(x).tolist() == [[[10, 11, 11, 10]], [[21, 21, 20, 20]]]
    plain = view_of([seen_of(update) for update in updates])
    assert plain.told == {}
    assert plain.in_order(x) is x
