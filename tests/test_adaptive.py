"""The attacker who knows the defense: each defense has one, and it does better than the naive one."""

import dataclasses

import pytest
import torch
from test_attacks import attack, digits, psnr, seen_of
from test_cli import thorns

import adversary
import client_defenses
from adversary import AttackError, Knowledge
from adversary.adaptive import PAIRS, adapt
from adversary.labels import infer
from adversary.objectives import cosine, robust
from adversary.refiner_attacks import ball, cleaned, shell
from client_defenses import Memory
from client_defenses import evaluator as evaluation
from fl_app import engines
from fl_app.local import Step
from fl_app.watcher import Watcher

FAST = "cosine_lbfgs(iterations=120)"
SLOW = "cosine_lbfgs(iterations=300)"  # for first-order descent


def protected(seen, task, x, y, defense, rounds=1):
    """What a server sees of clients with this defense, in one or more rounds at the same weights."""
    built, found = client_defenses.build(defense), []
    for server_round in range(1, rounds + 1):
        for client, one in enumerate(seen):
            step = Step(one.params, task.model, x[client], y[client])
            update = built.protect(step, Memory.fresh(100 * server_round + client))
            knowledge = Knowledge(defense=defense, repeats=rounds > 1)
            changes = {"update": update, "client": client, "server_round": server_round, "knowledge": knowledge}
            found.append(dataclasses.replace(one, **changes))
    return found


def test_every_defense_has_an_informed_attacker():
    assert PAIRS.keys() == client_defenses.DEFENSES.keys()
    for name in PAIRS:
        text = adapt("inverting_gradients", name, repeats=True, rounds=3)
        if text is not None:
            adversary.build(text)  # its settings are valid


@pytest.mark.parametrize(
    ("defense", "gain", "text"),
    [
        ("gradient_dropout(p=0.9)", 5, FAST),
        ("drop_fedsgd(p=0.02)", 1, FAST),
        ("prune(ratio=0.9)", 8, FAST),
        ("mask(ratio=0.4)", 5, FAST),
        ("sign", 4, "inverting_gradients(iterations=300)"),
        ("quantize(bits=2)", 1, SLOW),
        ("dp_gaussian(scale=0.003)", 5, FAST),
        ("dp_laplace(scale=0.002)", 5, FAST),
        ("soteria(ratio=0.4)", 3, FAST),
    ],
)
def test_who_knows_the_defense_sees_more(defense, gain, text):
    x, y = digits(4, 1)
    seen, task = seen_of(x, y)
    told = protected(seen, task, x, y, defense)
    naive, informed = attack(text, told, task), attack(adapt(text, defense), told, task)
    assert psnr(informed.x, x).mean() > psnr(naive.x, x).mean() + gain


def test_rounds_on_the_same_examples_average_the_noise_out():
    defense = "dp_gaussian(scale=0.01)"
    x, y = digits(2, 1)
    seen, task = seen_of(x, y)
    told = protected(seen, task, x, y, defense, rounds=4)
    once = attack(adapt(FAST, defense), told, task)
    text = adapt(FAST, defense, repeats=True, rounds=4)
    assert "together=4" in text
    often = attack(text, told, task)
    assert torch.equal(often.x[0], often.x[2])  # rounds of a client share one guess
    assert psnr(often.x[:2], x).mean() > psnr(once.x[:2], x).mean() + 1
    with pytest.raises(AttackError, match="add --grant repeats"):
        attack(text, [dataclasses.replace(one, knowledge=Knowledge()) for one in told], task)


def test_adapting_keeps_what_was_asked_for():
    assert adapt("idlg", "none") is None
    assert adapt("inverting_gradients(tv=0.2, labels='given')", "dp_sgd") is None  # cosine, granted labels, a strong prior
    text = adapt("cosine_lbfgs(iterations=7)", "prune(ratio=0.5) + sign")
    built = adversary.build(text)
    assert adversary.build(adapt(FAST, "soteria(layer='fc1')")).ignore == ("fc1.weight",)
    assert (built.iterations, built.support, built.through, built.optimizer) == (7, True, True, "adam")


def test_the_robust_objective_ignores_decoys():
    draw = torch.Generator().manual_seed(0)
    true = {"w": torch.randn(4000, generator=draw)}
    decoy = torch.rand(4000, generator=draw) < 0.1
    sent = {"w": torch.where(decoy, 20 * torch.randn(4000, generator=draw), true["w"])}
    scaled = {"w": 3 * true["w"]}
    assert cosine(scaled, sent) > 0.5
    assert robust(scaled, sent) < 0.5 * cosine(scaled, sent)
    assert torch.allclose(robust(scaled, sent, width=torch.inf), cosine(scaled, sent))


@pytest.mark.parametrize("defense", ["sign", "dp_gaussian(scale=0.01)", "mask(ratio=0.6)", "gradient_dropout(p=0.5)"])
def test_labels_outlive_a_defense_that_scales_or_spoils(defense):
    x, y = digits(20, 1)
    seen, task = seen_of(x, y)
    told = protected(seen, task, x, y, defense)
    rng = torch.Generator().manual_seed(0)
    hits = [infer("rows", one, task, rng).item() == label.item() for one, label in zip(told, y, strict=True)]
    assert sum(hits) >= 18


def test_naive_and_adaptive_stand_side_by_side(small, tmp_path):
    experiment = small.changed(batch_size=1, client_examples=1, rounds=2, capture="all", defense="dp_gaussian")
    run = engines.run(experiment, "inline", Watcher())
    words = ("attack", str(run.path), "--attack", "cosine_lbfgs(iterations=5)", "--no-lpips", "--grant", "repeats")
    done = thorns(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for text in ("naive", "adaptive", "together=2", "defense: dp_gaussian", "granted: defense, repeated examples"):
        assert text in done.stdout
    lone = thorns(*words, "--naive", cwd=tmp_path)
    assert "adaptive" not in lone.stdout
    assert "6 of 6 targets were attacked before" in lone.stdout


def test_a_false_grant_is_refused_before_any_work(small, tmp_path):
    run = engines.run(small.changed(batch_size=1, rounds=1, capture="all"), "inline", Watcher())
    refused = thorns("attack", str(run.path), "--grant", "repeats", cwd=tmp_path)
    assert refused.returncode == 2
    assert "client-examples" in refused.stderr
    assert not (run.path / "attacks").exists()


def test_who_knows_refiner_takes_the_noise_out():
    """Its robust data still hold about half of each image."""
    x, _ = digits(4, 1)
    noise = torch.rand(x.shape, generator=torch.Generator().manual_seed(0))
    blended = 0.5 * x + 0.5 * noise
    assert psnr(cleaned(blended, 0.5), x).mean() > psnr(blended, x).mean() + 5
    assert adversary.build(adapt(FAST, "refiner(alpha=0.4)")).unblend == 0.4


def test_the_ball_and_the_shell_of_a_projected_gradient():
    true = {"a": torch.zeros(3), "b": torch.zeros(2)}
    near, far = {"a": torch.tensor([0.3, 0, 0]), "b": torch.zeros(2)}, {"a": torch.zeros(3), "b": torch.tensor([3.0, 4.0])}
    assert ball(near, true, 1.0) == 0
    assert torch.isclose(shell(near, true, 1.0), torch.tensor(0.49))
    assert torch.isclose(ball(far, true, 1.0), torch.tensor(16.0))


def test_a_network_that_sees_noise_is_a_prior(tmp_path):
    x, y = digits(1, 1)
    seen, task = seen_of(x, y)
    with pytest.raises(AttackError, match="train-evaluator"):
        attack("cosine_lbfgs(iterations=2, noise=0.1)", seen, task)
    network = evaluation.train(x[0].expand(64, -1, -1, -1), evaluation.Training(width=2, steps=1))
    evaluation.save(network, tmp_path / "d.safetensors")
    text = f"cosine_lbfgs(iterations=2, noise={{}}, evaluator='{tmp_path}/d.safetensors')"
    assert not torch.equal(attack(text.format(0.0), seen, task).x, attack(text.format(5.0), seen, task).x)
