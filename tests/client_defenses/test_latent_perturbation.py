"""Latent perturbation: the printed loss, both sides of the game, and what is learnt before the rounds."""

from itertools import pairwise

import pytest
import torch
from scipy import stats
from torch.nn import functional as F

from client_defenses import Memory, build
from client_defenses.latent_perturbation import LatentPerturbation
from client_defenses.tools.cut import passed
from client_defenses.tools.decoder import Decoder, correlation, improve, pearson, start
from fl_app.core.local import LocalRule, local_update
from fl_app.core.wire import to_record, to_tensors
from helpers.engines import same
from helpers.latent import SHAPE, step_of


@pytest.fixture
def step(rng):
    return step_of("lenet", rng)


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


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_a_decoder_works_in_single_precision_whatever_the_model_does(dtype):
    rng = torch.Generator().manual_seed(0)
    z, x = torch.randn(3, 8, generator=rng), torch.rand(3, 1, 8, 8, generator=rng)
    weights = start((8,), (1, 8, 8), Memory.fresh(0))
    found = correlation(weights, z.to(dtype), x.to(dtype), "batch")
    assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert found.item() == pytest.approx(
        correlation(weights, z.to(dtype).float(), x.to(dtype).float(), "batch").item(), rel=1e-4
    )
