"""Latent perturbation: the printed loss, both sides of the game, what is learnt before the rounds, and what never leaves."""

from itertools import pairwise

import pytest
import torch
from flwr.app import RecordDict
from scipy import stats
from torch import nn
from torch.func import functional_call, vmap
from torch.nn import functional as F

import adversary
from adversary.base import Knowledge, Observation, Task
from adversary.captures import Captures
from adversary.latent_attack import informed_model, with_mean_noise
from client_defenses import Memory, build
from client_defenses.cut import cut_layer, passed
from client_defenses.decoder import Decoder, correlation, improve, pearson, start
from client_defenses.latent_perturbation import LatentPerturbation
from fl_app import engines, models
from fl_app.assets import assets_of
from fl_app.client_app import MEMORY, app, memory_of
from fl_app.engines.inline import InlineGrid
from fl_app.local import LocalRule, Step, local_update
from fl_app.server_app import build_strategy
from fl_app.spec import SpecError
from fl_app.watcher import Watcher
from fl_app.wire import to_record, to_tensors

SHAPE = (1, 12, 12)
NORMALIZE = ([0.3], [0.5])


def step_of(text, rng, shape=SHAPE, examples=6):
    model = models.build(text, shape, 5, normalize=([0.3] * shape[0], [0.5] * shape[0]))
    x = torch.rand(examples, *shape, generator=rng)
    return Step(models.parameters_of(model), model, x, torch.arange(examples) % 5)


@pytest.fixture
def step(rng):
    return step_of("lenet", rng)


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def decoder_in(memory):
    return memory.part("decoder").part("weights").state


@pytest.mark.parametrize("text", ["latent_net(width=2)", "lenet", "resnet10", "convnet(width=2, norm='group')"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_without_noise_and_penalty_it_is_plain_training(text, optimizer, rng):
    step = step_of(text, rng)
    rule = LocalRule(kind="delta", batch_size=4, steps=5, examples=6, lr=1e-2, optimizer=optimizer)
    plain = local_update(step.model, step.params, step.x, step.y, rule)
    for noise in ("fixed", "learned"):
        defense, memory = LatentPerturbation(alpha=0.0, mu=0.0, sigma=0.0, noise=noise), Memory.fresh(0)
        sent = local_update(step.model, step.params, step.x, step.y, rule, lambda one, d=defense, m=memory: d.protect(one, m))
        assert same(sent, plain)
        assert not memory.state
    for other in ({"alpha": 1.0, "mu": 0.0, "sigma": 0.0}, {"alpha": 0.0, "sigma": 0.1, "mu": 0.0}):
        assert not same(LatentPerturbation(**other).protect(step, Memory.fresh(0)), step.gradient())


@pytest.mark.parametrize("over", ["batch", "sample"])
def test_it_takes_the_gradient_of_the_printed_loss(step, over):
    """Against LeNet and decoder written out, with the draws of the same generator."""
    memory = Memory.fresh(5)
    sent = LatentPerturbation(alpha=3.0, mu=0.5, sigma=0.2, over=over).protect(step, memory)
    p = {name.removeprefix("net."): value.clone().requires_grad_() for name, value in step.params.items()}
    z = (step.x - 0.3) / 0.5
    for layer, stride in (("conv1", 2), ("conv2", 2), ("conv3", 1)):
        z = F.conv2d(z, p[f"{layer}.weight"], p[f"{layer}.bias"], stride=stride, padding=2).sigmoid()
    z = z + 0.5 + 0.2 * torch.randn(z.shape, generator=torch.Generator().manual_seed(5))
    logits = F.linear(z.flatten(1), p["fc.weight"], p["fc.bias"])
    d, guess = decoder_in(memory), z
    for layer, norm in ((0, 1), (3, 4)):
        guess = F.conv_transpose2d(guess, d[f"net.{layer}.weight"])
        guess = F.batch_norm(guess, None, None, d[f"net.{norm}.weight"], d[f"net.{norm}.bias"], training=True).relu()
    guess = F.conv_transpose2d(guess, d["net.6.weight"], d["net.6.bias"])
    assert guess.shape == step.x.shape
    groups = [(step.x.flatten(), guess.flatten())] if over == "batch" else zip(step.x.flatten(1), guess.flatten(1), strict=True)
    r = torch.stack([torch.corrcoef(torch.stack(pair))[0, 1].abs() for pair in groups]).mean()
    expected = torch.autograd.grad(F.cross_entropy(logits, step.y) + 3.0 * r, list(p.values()))
    for value, wanted in zip(sent.values(), expected, strict=True):
        torch.testing.assert_close(value, wanted, atol=1e-6, rtol=1e-4)


def test_pearson_is_what_scipy_says(rng):
    x, guess = torch.rand(5, 2, 3, 4, generator=rng), torch.randn(5, 2, 3, 4, generator=rng)
    assert pearson(x, guess).item() == pytest.approx(stats.pearsonr(x.flatten(), guess.flatten()).statistic, abs=1e-6)
    each = [stats.pearsonr(a.flatten(), b.flatten()).statistic for a, b in zip(x, guess, strict=True)]
    torch.testing.assert_close(pearson(x, guess, "sample"), torch.tensor(each, dtype=torch.float32))
    assert pearson(x, 3 - 2 * x).item() == pytest.approx(-1)
    flat = torch.ones_like(x).requires_grad_()
    assert pearson(x, flat) == 0
    (slope,) = torch.autograd.grad(pearson(x, flat).abs(), flat)
    assert slope.isfinite().all()


def test_the_decoder_learns_to_see_through_and_is_adam(rng):
    x, memory = torch.rand(6, *SHAPE, generator=rng), Memory.fresh(0)
    z = F.avg_pool2d(x, 4).expand(-1, 8, -1, -1) + 0.01 * torch.randn(6, 8, 3, 3, generator=rng)
    improve(z, x, 1e-9, "batch", memory)
    found = [correlation(decoder_in(memory), z, x, "batch").item()]
    for _ in range(30):
        improve(z, x, 3e-3, "batch", memory)
        found.append(correlation(decoder_in(memory), z, x, "batch").item())
    assert found[-1] > max(0.3, found[0] + 0.2)
    assert sum(b > a for a, b in pairwise(found)) > 20
    ours, decoder = Memory.fresh(1), Decoder((8, 3, 3), SHAPE)
    ours.state = {f"decoder/weights/{name}": value.detach().clone() for name, value in decoder.named_parameters()}
    theirs = torch.optim.Adam(decoder.parameters(), lr=1e-2)
    for _ in range(3):
        theirs.zero_grad()
        (1 - pearson(x, decoder(z)).abs()).backward()
        theirs.step()
        improve(z, x, 1e-2, "batch", ours)
    for name, value in decoder.named_parameters():
        if name == "net.6.bias":  # r does not change with it if there is one channel, so Adam follows rounding errors
            continue
        torch.testing.assert_close(decoder_in(ours)[name], value.detach(), atol=2e-4, rtol=1e-3)


def test_the_sent_gradient_lowers_what_the_decoder_sees(step):
    """Both with the noise of the same generator, so their difference is the penalty's own gradient."""
    memory = Memory.fresh(2)
    sent = LatentPerturbation(alpha=100.0).protect(step, memory)
    plain = LatentPerturbation(alpha=0.0).protect(step, Memory.fresh(2))
    penalty = {name: (sent[name] - plain[name]) / 100 for name in sent}
    assert penalty["net.fc.weight"].abs().max() < 1e-5  # the decoder does not look at the predictor

    def seen(params):
        draw = 1 + 0.1 * torch.randn(6, 12, 3, 3, generator=torch.Generator().manual_seed(2))
        _, z = passed(step.model, params, step.x, "net.act3", lambda z: z + draw)
        return correlation(decoder_in(memory), z, step.x, "batch").item()

    size = torch.cat([value.flatten() for value in penalty.values()]).norm()
    before = seen(step.params)
    after = seen({name: value - 0.05 * penalty[name] / size for name, value in step.params.items()})
    assert after == pytest.approx(before - 0.05 * size.item(), rel=0.2)
    assert after < before


def test_the_memory_is_of_this_client_and_goes_on(step):
    defense, memory = LatentPerturbation(), Memory.fresh(0)
    defense.protect(step, memory)
    first = dict(memory.state)
    assert all(name.startswith("decoder/") for name in first)
    assert first["decoder/steps"].item() == 1
    defense.protect(step, memory)
    assert memory.state["decoder/steps"].item() == 2
    assert first["decoder/steps"].item() == 1
    assert not any(value.requires_grad for value in memory.state.values())
    kept, other = Memory.fresh(1), Memory.fresh(2)
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    defense.protect(step, kept), defense.protect(step, other)
    assert torch.equal(torch.rand(2), expected)  # the global generator is left alone
    assert not same(decoder_in(kept), decoder_in(other))
    one, again, two = (start((12, 3, 3), SHAPE, Memory.fresh(seed)) for seed in (1, 1, 2))
    assert same(one, again)
    assert not same(one, two)
    kept.state = to_tensors(to_record(kept.state))
    assert decoder_in(kept)


def test_the_noise_is_learnt_once_and_then_stays(rng):
    step = step_of("lenet", rng, examples=20)
    defense = LatentPerturbation(noise="learned", pretrain_epochs=3, pretrain_batch=8, pretrain_lr=1e-2)
    before = {name: value.clone() for name, value in step.params.items()}
    memory = Memory.fresh(0)
    defense.on_start(step, memory)
    assert memory.state.keys() == {"noise/mu", "noise/sigma"}  # its decoder is thrown away
    assert same(step.params, before)
    for name, given in (("mu", 1.0), ("sigma", 0.1)):
        value = memory.state[f"noise/{name}"]
        assert value.shape == (12, 3, 3)
        assert (value != given).float().mean() > 0.9
        assert (value - given).abs().max() < 0.1  # nine Adam steps of 0.01
    assert memory.state["noise/sigma"].min() >= 0
    learnt = dict(memory.state)
    for _ in range(2):
        defense.protect(step, memory)
    assert all(torch.equal(memory.state[name], value) for name, value in learnt.items())
    law = {"noise/mu": torch.full((12, 3, 3), 2.0), "noise/sigma": torch.full((12, 3, 3), 0.3)}
    sent = defense.protect(step, Memory(law, torch.Generator().manual_seed(4)))
    assert same(sent, LatentPerturbation(mu=2.0, sigma=0.3).protect(step, Memory.fresh(4)))
    unlearnt = Memory.fresh(0)
    LatentPerturbation().on_start(step, unlearnt)
    assert not unlearnt.state
    chained, own = build("none + latent_perturbation(noise='learned', pretrain_epochs=1)"), Memory.fresh(0)
    chained.on_start(step, own)
    assert own.state.keys() == {"1/noise/mu", "1/noise/sigma"}


def test_learning_lowers_noise_that_only_hurts(rng):
    step = step_of("lenet", rng, examples=20)
    defense = LatentPerturbation(
        noise="learned", alpha=0.0, mu=0.0, sigma=1.0, pretrain_epochs=20, pretrain_batch=20, pretrain_lr=1e-2
    )
    memory = Memory.fresh(0)
    defense.on_start(step, memory)
    assert memory.state["noise/sigma"].mean() < 0.95


TINY = {
    "defense": "latent_perturbation(noise='learned', pretrain_epochs=1, pretrain_batch=8)",
    "update": "delta",
    "local_steps": 5,
    "local_examples": 4,
    "local_lr": 0.01,
    "local_optimizer": "adam",
    "optimizer": "sgd(lr=1.0)",
}


@pytest.mark.parametrize("update", ["delta", "gradient"])
def test_decoder_and_noise_never_leave_the_client(update, small):
    """Every record of every reply, name by name and byte by byte, and what the server captured of them."""
    plain = {"update": "gradient", "local_steps": 1, "local_examples": 0, "local_optimizer": "sgd"}
    experiment = small.changed(**{**TINY, **(plain if update == "gradient" else {})}, rounds=2, capture="all")
    grid = InlineGrid(app, experiment.clients, experiment.run_config())
    strategy, params = build_strategy(experiment), parameters_of(experiment)
    for server_round in (1, 2):
        replies = list(grid.send_and_receive(strategy.configure_train(server_round, to_record(params), RecordDict(), grid)))
        assert len(replies) == experiment.clients
        for reply in replies:
            assert set(reply.content) == {"arrays", "metrics"}
            assert dict(reply.content["metrics"]) == {"num-examples": experiment.batch_size}
            sent = to_tensors(reply.content["arrays"])
            assert {name: value.shape for name, value in sent.items()} == {k: v.shape for k, v in params.items()}
            private = memory_of(grid.contexts[reply.metadata.src_node_id])
            assert {name.partition("/")[0] for name in private} == {"decoder", "noise"}
            message = b"".join(array.data for array in reply.content["arrays"].values())
            weights = sum(value.numel() * value.element_size() for value in params.values())
            assert len(message) < weights + 200 * len(params)  # the numbers of the model and a header each
            for value in private.values():
                if value.numel() > 3 and value.unique().numel() > 3:
                    assert value.numpy().tobytes() not in message
    run = engines.run(experiment, "inline", Watcher())
    seen, failed = Captures(run.path / "captures").read_all()
    assert len(seen) == 2 * experiment.clients
    assert not failed
    for one in seen:
        assert one.update.keys() == params.keys()
        assert one.params.keys() == params.keys()
    assert run.load_checkpoint().weights.keys() == params.keys()


def parameters_of(experiment):
    return models.parameters_of(assets_of(experiment).model)


class StopAt(Watcher):
    """Stops after a round."""

    def __init__(self, at):
        self.at, self.now = at, 0

    def on_round(self, line):
        self.now = line["round"]

    def stop_requested(self):
        return self.now >= self.at


def test_a_stopped_run_resumes_to_the_same_weights_and_learns_its_noise_once(small, tmp_path, monkeypatch):
    calls = []
    learn = LatentPerturbation.on_start
    monkeypatch.setattr(
        LatentPerturbation, "on_start", lambda self, step, memory: (calls.append(len(step.x)), learn(self, step, memory))
    )
    experiment = small.changed(**TINY, clients=4, fraction=0.5, rounds=4)
    whole = engines.run(experiment.changed(run_dir=str(tmp_path / "whole")), "inline", Watcher())
    assert calls == [30] * len(calls)  # all that a client owns
    assert 2 <= len(calls) <= 4  # once for each client that was asked
    broken = experiment.changed(run_dir=str(tmp_path / "broken"))
    engines.run(broken, "inline", StopAt(2))
    resumed = engines.run(broken, "inline", Watcher(), resume=True)
    assert len(calls) % 2 == 0  # as often in both
    assert same(whole.load_checkpoint().weights, resumed.load_checkpoint().weights)
    asked = [client for client in range(4) if resumed.load_memory(4, client)]  # those asked after the stop
    assert asked
    for client in asked:
        assert same(whole.load_memory(4, client), resumed.load_memory(4, client))


def test_other_defenses_are_asked_nothing_at_the_start(small):
    grid = InlineGrid(app, 3, small.run_config())
    message = build_strategy(small).configure_train(1, to_record(parameters_of(small)), RecordDict(), grid)
    list(grid.send_and_receive(message))
    assert all(MEMORY not in context.state for context in grid.contexts.values())


@pytest.mark.parametrize(("shape", "latent", "last"), [((3, 32, 32), 10, 4), ((3, 28, 28), 9, 2), ((1, 28, 28), 9, 2)], ids=str)
def test_table_one(shape, latent, last, rng):
    model = models.build("latent_net", shape, 10)
    convolutions = [layer for layer in model.modules() if isinstance(layer, nn.Conv2d)]
    assert [layer.out_channels for layer in convolutions] == [64, 128, 128] + [256] * 6
    assert all(layer.kernel_size == (3, 3) and layer.stride == (1, 1) for layer in convolutions)
    assert not any(isinstance(layer, nn.modules.batchnorm._NormBase) for layer in model.modules())
    assert (model.predictor.fc.in_features, model.predictor.fc.out_features) == (2304, 10)
    widths = [shape[0], 64, 128, 128] + [256] * 6
    expected = sum(9 * a * b + b for a, b in pairwise(widths)) + 2304 * 10 + 10
    assert sum(value.numel() for value in model.parameters()) == expected
    kinds = [type(layer).__name__ for layer in model.encoder]
    assert kinds == ["Conv2d", "ReLU"] * 6 + ["MaxPool2d"] + ["Conv2d", "ReLU"] * 3
    x = torch.rand(1, *shape, generator=rng)
    assert model.encoder(x).shape == (1, 256, latent, latent)
    assert model(x).shape == (1, 10)
    decoder = Decoder((256, latent, latent), shape)
    layers = [layer for layer in decoder.modules() if isinstance(layer, nn.ConvTranspose2d)]
    assert [(one.out_channels, one.kernel_size[0], one.stride[0]) for one in layers] == [
        (256, 3, 1),
        (256, 4, 1),
        (shape[0], last, 2),
    ]
    assert decoder(model.encoder(x)).shape == (1, *shape)
    assert cut_layer(model, models.parameters_of(model), x) == "encoder"


@pytest.mark.parametrize("latent", [(3, 1, 1), (4, 2, 5), (2, 9, 10), (2, 12, 12), (2, 20, 15), (7,), (3, 4)], ids=str)
def test_a_decoder_fits_any_latent(latent, rng):
    assert Decoder(latent, (2, 12, 13))(torch.rand(2, *latent, generator=rng)).shape == (2, 2, 12, 13)


@pytest.mark.parametrize(
    ("text", "layer"),
    [
        ("latent_net(width=2)", "encoder"),
        ("lenet", "act3"),
        ("lenet5", "act2"),
        ("resnet10", "layer4"),
        ("convnet(width=2)", "act8"),
        ("vit(dim=6, depth=2, patch=6)", "norm"),
    ],
)
def test_where_our_models_are_cut(text, layer, rng):
    step = step_of(text, rng, (1, 18, 18), 3)
    assert cut_layer(step.model, step.params, step.x) == f"net.{layer}"
    auto = LatentPerturbation().protect(step, Memory.fresh(0))
    assert all(value.isfinite().all() for value in auto.values())
    assert same(auto, LatentPerturbation(layer=layer).protect(step, Memory.fresh(0)))
    assert not any(module._forward_hooks for module in step.model.modules())


def test_layers_that_cannot_be_cut_are_refused(step, rng):
    with pytest.raises(SpecError, match=r"no layer 'act9'; .*valid: auto, net, net.act1, net.act2, net.act3, net.conv1"):
        LatentPerturbation(layer="act9").protect(step, Memory.fresh(0))
    with pytest.raises(SpecError, match="no hidden layer"):
        LatentPerturbation().protect(step_of("linear", rng), Memory.fresh(0))
    with pytest.raises(SpecError, match="runs 2 times"):
        LatentPerturbation(layer="layer1.0.relu").protect(step_of("resnet10", rng), Memory.fresh(0))
    with pytest.raises(SpecError, match="integers"):
        LatentPerturbation().protect(step._replace(x=torch.ones(2, 1, 12, 12, dtype=torch.int64)), Memory.fresh(0))
    with pytest.raises(SpecError, match="at least 9 x 9"):
        models.build("latent_net", (3, 8, 32), 10)
    vectors = nn.Sequential(nn.Flatten(), nn.Linear(144, 7), nn.Tanh(), nn.Linear(7, 5))
    some = step._replace(params=models.parameters_of(vectors), model=vectors)
    assert cut_layer(vectors, some.params, some.x) == "2"
    act = nn.Sigmoid()
    shared = nn.Sequential(nn.Conv2d(1, 2, 3), act, nn.Conv2d(2, 2, 3), act, nn.Flatten(), nn.Linear(128, 5))
    assert cut_layer(shared, models.parameters_of(shared), step.x) == "2"  # what runs twice is no latent
    assert all(value.isfinite().all() for value in LatentPerturbation().protect(some, Memory.fresh(0)).values())


def test_who_knows_the_noise_matches_at_its_mean(step):
    sent = LatentPerturbation(alpha=0.0, mu=0.7, sigma=0.0).protect(step, Memory.fresh(0))
    task = Task(step.model, SHAPE, 5)
    informed = informed_model(task, "prune(ratio=0.1) + latent_perturbation(mu=0.7)")
    assert models.parameters_of(informed).keys() == step.params.keys()
    assert hasattr(informed, "normalize")
    found = step._replace(model=informed).differentiable_gradient()
    naive = step.differentiable_gradient()
    for name, value in sent.items():
        torch.testing.assert_close(found[name], value, atol=1e-6, rtol=1e-4)
    assert (naive["net.fc.weight"] - sent["net.fc.weight"]).norm() > 0.1 * sent["net.fc.weight"].norm()
    assert not any(module._forward_hooks for module in step.model.modules())
    mu = torch.arange(108.0).view(12, 3, 3) / 100
    moved = with_mean_noise(step.model, "act3", mu, SHAPE)
    logits, _ = passed(step.model, step.params, step.x, "net.act3", lambda z: z + mu)
    many = vmap(lambda x: functional_call(moved, step.params, (x,)))(step.x[None].expand(2, -1, -1, -1, -1))
    torch.testing.assert_close(many, logits.expand(2, -1, -1))
    assert informed_model(task, "prune + none") is step.model


def test_the_mean_of_the_noise_hides_nothing_from_who_knows_it(rng):
    step, defense = step_of("lenet", rng), "latent_perturbation(mu=1.0, sigma=0.02)"
    seen = [
        Observation(
            params=step.params,
            update=build(defense).protect(step._replace(x=step.x[i : i + 1], y=step.y[i : i + 1]), Memory.fresh(i)),
            rule=LocalRule(batch_size=1),
            num_examples=1,
            server_round=1,
            client=i,
            knowledge=Knowledge(labels=step.y[i : i + 1], defense=defense),
        )
        for i in range(3)
    ]
    task, attack = Task(step.model, SHAPE, 5), adversary.build("cosine_lbfgs(labels='given', tv=0.0, iterations=150)")
    errors = []
    for model in (task.model, informed_model(task, defense)):
        guess = attack(seen, Task(model, SHAPE, 5), torch.Generator().manual_seed(0))
        errors.append((guess.x[:, 0] - step.x[:3]).square().mean().item())
    assert errors[1] < 0.5 * errors[0]
