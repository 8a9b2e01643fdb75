"""The attacker who knows the defense: each defense has one, and it does better than the naive one."""

import dataclasses

import pytest
import torch

import adversary
import client_defenses
from adversary import AttackError, Knowledge
from adversary.adaptive import PAIRS, adapt, informed
from adversary.labels import infer
from adversary.objectives import cosine, robust
from adversary.refiner_attacks import ball, cleaned, shell
from client_defenses import Memory
from client_defenses.tools import evaluator as evaluation
from fl_app import engines
from fl_app.core.local import Step
from fl_app.engines.watcher import Watcher
from helpers.attacks import attack, digits, psnr, seen_of
from helpers.cli import thorns

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


def test_a_defense_can_have_several_informed_attackers():
    found = {one.name: one for one in informed(FAST, "refiner(eps=0.3)", evaluator="d.safetensors")}
    assert list(found) == ["unblend", "knows D", "shell"]
    assert found["unblend"].attack == adapt(FAST, "refiner(eps=0.3)")
    told = adversary.build(found["knows D"].attack)
    assert told.noise > 0
    assert told.evaluator == "d.safetensors"
    assert found["knows D"].grants == ("defense", "evaluator")
    shelled = adversary.build(found["shell"].attack)
    assert (shelled.objective, shelled.eps, shelled.iterations) == ("shell", 0.3, 120)
    assert adversary.build(adapt("cosine_lbfgs(tv=0.01)", "refiner")).tv < 0.01  # it smooths afterwards
    both = [one.name for one in informed(FAST, "fedem + refiner(eps=0.3)", examples=2, evaluator="d")]
    assert both[0] == "replay + unblend"
    assert len(both) == 6


def test_an_attacker_with_nothing_to_work_with_says_so():
    why = {one.name: one.why_not for one in informed(FAST, "refiner") if one.attack is None}
    assert why == {"knows D": "the client's evaluation network is not at hand", "shell": "eps is not set in the defense"}
    (lone,) = (one for one in informed(FAST, "fedem") if one.attack is None)
    assert "a single one" in lone.why_not
    assert all(one.attack for one in informed(FAST, "fedem", rounds=2))
    assert adapt(FAST, "bido") is None
    assert "through=True" in adapt(FAST, "bido", examples=2)


def test_who_knows_the_penalty_of_bido_matches_through_it():
    defense = "bido(lambda_x=1.0, lambda_y=20.0)"
    x, y = digits(2, 2, start=800)
    seen, task = seen_of(x, y)
    told = protected(seen, task, x, y, defense)
    told = [
        dataclasses.replace(one, knowledge=Knowledge(defense=defense, labels=classes))
        for one, classes in zip(told, y, strict=True)
    ]
    text = "cosine_lbfgs(iterations=100, labels='given')"
    naive, through = attack(text, told, task), attack(adapt(text, defense, examples=2), told, task)

    def best(guess):  # of both orders of the two examples
        return torch.stack([psnr(guess.x, x).mean(1), psnr(guess.x.flip(1), x).mean(1)]).amax(0).mean()

    assert best(through) > best(naive) + 3


def test_who_knows_fedem_replays_it():
    defense = "fedem(rho_min=1.0, rho_max=1.0)"
    x, y = digits(4, 1)
    seen, task = seen_of(x, y)
    told = protected(seen, task, x, y, defense)
    text = "cosine_lbfgs(iterations=250, tv=0)"
    naive, replayed = attack(text, told, task), attack(adapt(text, defense), told, task)
    assert psnr(replayed.x, x).mean() > psnr(naive.x, x).mean() + 1
    with pytest.raises(AttackError, match="fedem to be granted"):
        attack("cosine_lbfgs(iterations=1, replay=True)", seen, task)


def test_what_the_guesses_of_a_client_share_is_taken_out_of_all_its_rounds():
    defense = "fedem(rho_max=0.5)"
    x, y = digits(2, 1)
    seen, task = seen_of(x, y)
    told = protected(seen, task, x, y, defense, rounds=2)
    naive = attack("cosine_lbfgs(iterations=3)", told, task).x
    cleared = attack("cosine_lbfgs(iterations=3, common=0.5)", told, task).x
    gone = (naive - cleared)[[0, 2]]  # of client 0, where nothing was cut off at 0 or 1
    inside = ((cleared[[0, 2]] > 0) & (cleared[[0, 2]] < 1) & (naive[[0, 2]] > 0) & (naive[[0, 2]] < 1)).all(0)
    assert inside.any()
    torch.testing.assert_close(gone[0][inside], gone[1][inside])
    assert not torch.allclose(naive, cleared)
    lone = attack("cosine_lbfgs(iterations=3, common=0.5)", told[:1], task).x
    assert torch.equal(lone, attack("cosine_lbfgs(iterations=3)", told[:1], task).x)


def test_all_informed_attackers_are_shown_with_what_they_were_told(small, tmp_path):
    network = evaluation.train(
        torch.rand(8, 3, 12, 12, generator=torch.Generator().manual_seed(0)), evaluation.EvaluatorTraining(width=2, steps=1)
    )
    evaluation.save(network, tmp_path / "d.safetensors")
    defense = f"refiner(iterations=1, eps=0.3, evaluator='{tmp_path}/d.safetensors')"
    run = engines.run(small.changed(batch_size=1, rounds=1, capture="all", defense=defense), "inline", Watcher())
    done = thorns("attack", str(run.path), "--attack", "cosine_lbfgs(iterations=3)", "--no-lpips", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for name in ("unblend", "knows D", "shell"):
        assert f"adaptive: {name}: 3 targets" in done.stdout
    assert "granted: defense, evaluation network" in done.stdout
    assert "worst for the defense: " in done.stdout


def test_what_is_left_out_is_said(small, tmp_path):
    run = engines.run(small.changed(batch_size=1, rounds=1, capture="all", defense="fedem(steps=1)"), "inline", Watcher())
    words = ("attack", str(run.path), "--attack", "cosine_lbfgs(iterations=3)", "--no-lpips")
    done = thorns(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "adaptive: common left out: nothing that guesses share can be estimated from a single one" in done.stdout
    assert "adaptive: replay: 3 targets" in done.stdout


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
    network = evaluation.train(x[0].expand(64, -1, -1, -1), evaluation.EvaluatorTraining(width=2, steps=1))
    evaluation.save(network, tmp_path / "d.safetensors")
    text = f"cosine_lbfgs(iterations=2, noise={{}}, evaluator='{tmp_path}/d.safetensors')"
    assert not torch.equal(attack(text.format(0.0), seen, task).x, attack(text.format(5.0), seen, task).x)
