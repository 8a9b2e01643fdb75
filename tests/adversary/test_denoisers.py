"""The linear-Gaussian mean by the textbook's formula, decoys and zeros filled in, and the reverse walk of the diffusion."""

import dataclasses
import math

import pytest
import torch
from torch import nn

import adversary
from adversary import AttackError, Facts, Public
from adversary.cases import pictures
from adversary.denoise import Diffusion, LinearGaussian
from adversary.denoise.clean import clean_rows, rows_of, rows_seen
from adversary.denoise.diffusion import reversed_from, signal_of
from adversary.denoise.unet import UNet
from adversary.search.matching import Matching
from client_defenses import Memory
from client_defenses import build as defense
from fl_app.core.local import LocalRule, Step, local_update
from fl_app.core.observation import Knowledge, Observation, Task
from fl_app.core.space import Images

SIDE, CLASSES, NUMBER, RANK = 8, 4, 600, 6
DRAW = torch.Generator().manual_seed(0)
Y = torch.arange(NUMBER) % CLASSES
PUBLIC = Public(pictures(Y, DRAW), Y)


def task_of():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        conv = nn.Conv2d(1, 12, 5, padding=2, stride=2)
        model = nn.Sequential(conv, nn.Sigmoid(), nn.Flatten(), nn.Linear(192, CLASSES))
    return Task(model, Images((1, SIDE, SIDE)), CLASSES)


TASK = task_of()
PARAMS = {name: value.detach().clone() for name, value in TASK.model.named_parameters()}
RULE = LocalRule(batch_size=1)
TRUTH = pictures(torch.arange(6) % CLASSES, torch.Generator().manual_seed(3))


def seen_of(spec=None, x=TRUTH):
    found = []
    for place, one in enumerate(x):
        memory = Memory.fresh(place)
        gradient = (lambda step, memory=memory: defense(spec).protect(step, memory)) if spec else Step.gradient
        update = local_update(TASK.model, PARAMS, one[None], torch.tensor([place % CLASSES]), RULE, gradient)
        known = Knowledge(defense=spec, public=True)
        found.append(
            Observation(params=PARAMS, update=update, rule=RULE, num_examples=1, server_round=1, client=place, knowledge=known)
        )
    return found


def like(rows, parts=(5, 7)):
    """Observations whose updates are the rows."""
    names = [f"part {i}" for i in range(len(parts))]
    return [
        dataclasses.replace(SEEN[0], update=dict(zip(names, row.split(list(parts)), strict=True)), client=place)
        for place, row in enumerate(rows)
    ]


SEEN = seen_of()
STREAMS = [torch.Generator() for _ in range(6)]


def gaussian(entries=12, targets=40):
    """What a denoiser knows of rows that are mean + U c, and such rows."""
    draw = torch.Generator().manual_seed(1)
    directions = torch.linalg.qr(torch.randn(entries, 3, generator=draw)).Q
    variance = torch.tensor([4.0, 1.0, 0.25])
    mean = torch.randn(entries, generator=draw)
    learned = {"mean": mean, "directions": directions, "variance": variance, "rest": torch.zeros(entries)}
    c = torch.randn(targets, 3, generator=draw) * variance.sqrt()
    return learned, mean + c @ directions.T, draw


def test_the_mean_given_noise_is_that_of_the_textbook():
    learned, clean, draw = gaussian()
    sent = clean + 0.5 * torch.randn(clean.shape, generator=draw)
    spread = learned["directions"] * learned["variance"] @ learned["directions"].T
    gain = spread @ torch.linalg.inv(spread + 0.25 * torch.eye(12))
    wanted = learned["mean"] + (sent - learned["mean"]) @ gain.T
    found = rows_of_list(LinearGaussian(noise=0.5).cleaned(learned, like(sent), STREAMS))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    assert (found - clean).square().mean() < (sent - clean).square().mean() / 3
    alone = rows_of_list(LinearGaussian(noise=0.5).cleaned(learned, like(sent)[3:4], STREAMS))
    torch.testing.assert_close(alone[0], found[3])


def test_noise_that_nobody_named_is_that_which_no_direction_explains():
    learned, clean, draw = gaussian(entries=400, targets=3)
    sent = clean + 0.5 * torch.randn(clean.shape, generator=draw)
    told = rows_of_list(LinearGaussian(noise=0.5).cleaned(learned, like(sent, (150, 250)), STREAMS))
    found = rows_of_list(LinearGaussian().cleaned(learned, like(sent, (150, 250)), STREAMS))
    torch.testing.assert_close(found, told, rtol=0.05, atol=0.05)


def test_noise_by_the_size_of_each_tensor_is_weighed_by_it():
    learned, clean, draw = gaussian(entries=400, targets=8)
    scale = torch.cat([clean[:, part].square().mean(1, keepdim=True).sqrt().expand(-1, 200) for part in HALVES], 1)
    sent = clean + 2.0 * scale * torch.randn(clean.shape, generator=draw)
    found = rows_of_list(LinearGaussian(relative=2.0).cleaned(learned, like(sent, (200, 200)), STREAMS))
    assert (found - clean).square().mean() < (sent - clean).square().mean() / 20


HALVES = (slice(0, 200), slice(200, 400))


def test_entries_that_were_left_out_are_filled_in_and_the_others_stay():
    learned, clean, draw = gaussian(entries=400)
    known = torch.rand(clean.shape, generator=draw) < 0.3
    sent = torch.where(known, clean, torch.zeros(()))
    found = rows_of_list(LinearGaussian(zeros=True).cleaned(learned, like(sent, (150, 250)), STREAMS))
    assert torch.equal(found[known], clean[known])
    torch.testing.assert_close(found, clean, rtol=0.01, atol=0.01)


@pytest.mark.parametrize("sigma", [0.3, 0.0])
def test_decoys_are_told_from_kept_entries(sigma):
    learned, clean, draw = gaussian(entries=400, targets=10)
    kept = torch.rand(clean.shape, generator=draw) < 0.6
    width = sigma or torch.cat([clean[:, part].square().mean(1, keepdim=True).sqrt().expand(-1, 200) for part in HALVES], 1)
    sent = torch.where(kept, clean / 0.6, width * torch.randn(clean.shape, generator=draw))
    found = rows_of_list(LinearGaussian(kept=0.6, decoy=sigma).cleaned(learned, like(sent, (200, 200)), STREAMS))
    before = (0.6 * sent - clean).square().mean()
    assert (found - clean).square().mean() < before / 50


def rows_of_list(updates):
    return torch.stack([torch.cat([value.flatten() for value in one.values()]) for one in updates])


def test_what_is_learned_are_principal_components_of_clean_updates():
    learned = LinearGaussian(rank=RANK, draws=NUMBER).learn(TASK, SEEN[0], PUBLIC, torch.Generator().manual_seed(2))
    steps = [Step(PARAMS, TASK.model, x[None], y[None]).gradient() for x, y in zip(PUBLIC.x, PUBLIC.y, strict=True)]
    rows = rows_of_list(steps)
    torch.testing.assert_close(learned["mean"], rows.mean(0), rtol=1e-3, atol=1e-6)
    centred = (rows - rows.mean(0)).double()
    values = torch.linalg.eigvalsh(centred @ centred.T).flip(0)[:RANK] / NUMBER
    torch.testing.assert_close(learned["variance"].double(), values, rtol=1e-3, atol=1e-9)
    own = learned["directions"].double()
    torch.testing.assert_close(own.T @ own, torch.eye(RANK).double(), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close((centred @ own).square().mean(0), values, rtol=1e-3, atol=1e-9)
    left = (centred - centred @ own @ own.T).square().mean(0)
    wanted = torch.cat([part.mean().expand(len(part)) for part in left.split([value.numel() for value in PARAMS.values()])])
    torch.testing.assert_close(learned["rest"].double(), wanted, rtol=0.01, atol=1e-9)


def test_clean_updates_are_clipped_and_of_batches():
    told = dataclasses.replace(SEEN[0], knowledge=Knowledge(defense="sign"))
    rows = clean_rows(TASK, told, PUBLIC, 5, 0.1, torch.Generator().manual_seed(0))
    torch.testing.assert_close(rows.norm(dim=1), torch.full((5,), 0.1))
    batch = dataclasses.replace(SEEN[0], num_examples=3, rule=LocalRule(batch_size=3))
    pairs = clean_rows(TASK, batch, PUBLIC, 300, 0.0, torch.Generator().manual_seed(0))
    single = clean_rows(TASK, SEEN[0], PUBLIC, 300, 0.0, torch.Generator().manual_seed(0))
    assert pairs.shape == single.shape
    assert pairs.var(0).sum() < single.var(0).sum() / 2  # means of three vary less
    with pytest.raises(AttackError, match="at least 500 public examples, and there are 9"):
        clean_rows(TASK, SEEN[0], Public(PUBLIC.x[:9], PUBLIC.y[:9]), 5, 0.0, DRAW)


def test_a_denoised_update_is_nearer_to_the_true_one_and_is_searched_in():
    spec = "dp_gaussian(scale=0.1, clip=None)"
    noisy, true = seen_of(spec), rows_seen(SEEN)
    text = "matching(labels=rows, objective=cosine, priors=[tv(weight=0.001)], optimizer=lbfgs(iterations=60){})"
    plain = adversary.build(text.format(""))
    attack = adversary.build(text.format(", denoisers=[linear_gaussian(noise=0.1, draws=600, rank=100)]"))
    assert (attack.trained, attack.at_weights, plain.trained, plain.at_weights) == (True, True, False, False)
    assert adversary.build(adversary.text_of(attack)) == attack
    with pytest.raises(AttackError, match="learns from public examples first"):
        attack(noisy, TASK, 0)
    ready = attack.taught(attack.learn(TASK, noisy[0], PUBLIC, torch.Generator().manual_seed(0)))
    cleaned = rows_seen(ready._clean(noisy, STREAMS))
    cosine = torch.cosine_similarity(cleaned, true)
    assert (cosine > torch.cosine_similarity(rows_seen(noisy), true) + 0.05).all()
    found, without = ready(noisy, TASK, 0), plain(noisy, TASK, 0)
    assert (found.x[:, 0] - TRUTH).square().mean() < 0.5 * (without.x[:, 0] - TRUTH).square().mean()
    both = dataclasses.replace(attack, space=adversary.spaces.ClassGaussian(components=4))
    learned = both.learn(TASK, noisy[0], PUBLIC, torch.Generator().manual_seed(0))
    assert {name for name in learned if not name.startswith("denoiser 0/")} == {"mean", "basis", "rest"}
    assert both.shortened(2).taught(learned)(noisy[:1], TASK, 0).x.shape == (1, 1, 1, SIDE, SIDE)


def test_who_knows_the_defense_denoises():
    naive, facts = Matching(), Facts(public=500)

    def denoiser(spec, facts=facts):
        found = {one.name: one.attack for one in naive.informed(spec, facts)}.get("denoised")
        return found and found.denoisers[0]

    assert denoiser("dp_gaussian(scale=0.02, clip=3.0)") == LinearGaussian(noise=0.02, clip=3.0)
    assert denoiser("dp_laplace(scale=0.02, clip=None)") == LinearGaussian(noise=0.02 * 2**0.5)
    assert denoiser("gradient_dropout(p=0.6, sigma=0.1)") == LinearGaussian(kept=0.6, decoy=0.1)
    assert denoiser("gradient_dropout(p=0.6, sigma='match')") == LinearGaussian(kept=0.6)
    assert denoiser("mask(ratio=0.5)") == LinearGaussian(zeros=True)
    assert denoiser("mask(ratio=0.5)", Facts(public=499)) is None
    for other in ("gradient_dropout(p=1.0)", "dp_gaussian(scale=0.0)", "sign", "mask + dp_gaussian"):
        assert denoiser(other) is None


def test_the_levels_of_the_diffusion():
    beta = torch.linspace(1e-4, 0.02, 1000, dtype=torch.float64)
    torch.testing.assert_close(signal_of(torch.ones(1)), (1 - beta).cumprod(0).float(), rtol=1e-3, atol=1e-6)


def test_the_walk_back_ends_at_the_mean_that_a_perfect_model_knows():
    """Of N(0, 1) rows the best guess of the noise is sqrt(1 - n) times what is seen."""
    draw, signal = torch.Generator().manual_seed(0), signal_of(torch.ones(1))
    clean = torch.randn(4, 2000, generator=draw)
    noise = 0.8
    sent = clean + noise * torch.randn(clean.shape, generator=draw)
    observed = 1 / (1 + noise**2)
    entered = []

    def predict(rows, level):
        share = observed if not entered else float(signal[round(float(level[0]) * 1000)])
        entered.append((float(level[0]), rows.clone()))
        return (1 - share) ** 0.5 * rows

    found = reversed_from(sent, observed, signal, 1000, predict)
    first = entered[0][0] * 1000
    assert signal[round(first)] < observed <= signal[round(first) - 1]  # the first level with no more signal
    torch.testing.assert_close(entered[0][1], math.sqrt(observed) * sent)
    assert [level for level, _ in entered] == sorted({level for level, _ in entered}, reverse=True)
    assert not torch.equal(entered[1][1], entered[0][1])  # each level starts from what the last one left
    # The walk is deterministic, so it ends at rows as wide as clean ones, along the ray of what was sent.
    torch.testing.assert_close(found, sent * math.sqrt(observed), rtol=0.02, atol=0.02)
    one = reversed_from(sent, observed, signal, 1, lambda rows, level: (1 - observed) ** 0.5 * rows)
    torch.testing.assert_close(one, observed * sent)  # in one step: the posterior mean
    assert torch.equal(reversed_from(sent, 0.99999, signal, 5, predict), sent)


def test_a_diffusion_that_learned_takes_noise_off():
    noisy = seen_of("dp_gaussian(scale=0.2, clip=None)")
    denoiser = Diffusion(noise=0.2, iterations=120, width=8, draws=500, levels=10)
    learned = denoiser.learn(TASK, noisy[0], PUBLIC, torch.Generator().manual_seed(0))
    again = denoiser.learn(TASK, noisy[0], PUBLIC, torch.Generator().manual_seed(0))
    assert all(torch.equal(value, again[name]) for name, value in learned.items())
    found = rows_of_list(denoiser.cleaned(learned, noisy, STREAMS))
    true = rows_seen(SEEN)
    assert torch.cosine_similarity(found, true).mean() > torch.cosine_similarity(rows_seen(noisy), true).mean() + 0.05
    alone = rows_of_list(denoiser.cleaned(learned, noisy[2:3], STREAMS))
    torch.testing.assert_close(alone[0], found[2], rtol=1e-3, atol=1e-5)
    with pytest.raises(AttackError, match="of another width"):
        Diffusion(noise=0.2, width=9).cleaned(learned, noisy, STREAMS)


def test_the_network_folds_any_number_of_entries():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = UNet(entries=150, width=4)
    assert net.side == 16
    x = torch.randn(2, 150, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.equal(net(x, torch.tensor([0.1, 0.9])), torch.zeros(2, 150))  # before it is trained
        nn.init.ones_(net.leave.weight)
        first, second = net(x, torch.tensor([0.1, 0.9])), net(x, torch.tensor([0.8, 0.9]))
    assert not torch.allclose(first[0], second[0])
    torch.testing.assert_close(first[1], second[1])


def test_mjolnir_is_told_how_much_noise_there_is():
    attack = adversary.build("mjolnir(training=500)")
    assert attack.informed("sign", Facts(public=500)) == []
    ((name, told, *_),) = attack.informed("dp_gaussian(scale=0.02, clip=3.0)", Facts(public=500))
    assert (name, told) == ("", dataclasses.replace(attack, noise=0.02, clip=3.0))
    (denoiser,) = told.matching().denoisers
    assert denoiser == Diffusion(noise=0.02, clip=3.0, iterations=500)
    assert attack.shortened(4).training == 40


def test_rows_of_updates_go_back():
    updates = {"a": torch.arange(12.0).view(2, 3, 2), "b": torch.ones(2, 1)}
    assert rows_of(updates).tolist() == [[0, 1, 2, 3, 4, 5, 1], [6, 7, 8, 9, 10, 11, 1]]
