"""The attacker who knows the defense: each defense has one, and it does better than the naive one."""

import dataclasses

import pytest
import torch

import adversary
import client_defenses
from adversary import AttackError, Matching
from adversary.entries import Ignoring, Masked
from adversary.informed import INFORMED
from adversary.informed.fedem import Common
from adversary.informed.refiner import Unblend, cleaned
from adversary.labels import infer
from adversary.objectives import Shell, cosine, robust
from adversary.search.optimizers import Adam
from client_defenses import Memory
from client_defenses.tools import evaluator as evaluation
from fl_app import engines
from fl_app.core.local import Step
from fl_app.core.observation import Knowledge
from fl_app.engines.watcher import Watcher
from helpers.attacks import adapted, attack, digits, informed, psnr, seen_of
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
    assert INFORMED.keys() == client_defenses.DEFENSES.keys()
    for name in INFORMED:
        for one in informed("inverting_gradients", name, repeats=True, rounds=3, examples=2, evaluator="d"):
            assert one.why
            if one.attack is not None:
                assert adversary.build(adversary.text_of(one.attack)) == one.attack  # results name it by its spec


@pytest.mark.parametrize(
    ("defense", "gain", "text"),
    [
        ("gradient_dropout(p=0.6)", 25, "cosine_lbfgs(iterations=300)"),
        ("gradient_dropout(p=0.6, sigma='match')", 20, "cosine_lbfgs(iterations=300)"),
        ("drop_fedsgd(p=0.1)", 8, "cosine_lbfgs(iterations=280)"),
        ("prune(ratio=0.9)", 8, FAST),
        ("mask(ratio=0.4)", 5, FAST),
        ("sign", 4, "inverting_gradients(iterations=300)"),
        ("quantize(bits=2)", 1, SLOW),
        ("dp_gaussian(scale=0.003)", 5, FAST),
        ("dp_laplace(scale=0.002)", 5, FAST),
        ("soteria(ratio=0.4)", 3, FAST),
        ("latent_perturbation(mu=1.0)", 8, FAST),
    ],
)
def test_who_knows_the_defense_sees_more(defense, gain, text):
    x, y = digits(2, 1)
    seen, task = seen_of(x, y)
    told = protected(seen, task, x, y, defense)
    naive, knowing = attack(text, told, task), attack(adapted(text, defense), told, task)
    assert psnr(knowing.x, x).mean() > psnr(naive.x, x).mean() + gain


def test_rounds_on_the_same_examples_average_the_noise_out():
    defense = "dp_gaussian(scale=0.01)"
    x, y = digits(2, 1)
    seen, task = seen_of(x, y)
    told = protected(seen, task, x, y, defense, rounds=4)
    once = attack(adapted(FAST, defense), told, task)
    joined = adapted(FAST, defense, repeats=True, rounds=4)
    assert joined.rounds == 4
    often = attack(joined, told, task)
    assert torch.equal(often.x[0], often.x[2])  # rounds of a client share one reconstruction
    assert psnr(often.x[:2], x).mean() > psnr(once.x[:2], x).mean() + 1
    with pytest.raises(AttackError, match="add --grant repeats"):
        attack(joined, [dataclasses.replace(one, knowledge=Knowledge()) for one in told], task)


def test_adapting_keeps_what_was_asked_for():
    assert adapted("idlg", "none") is None
    assert adapted("inverting_gradients(tv=0.2, labels='given')", "dp_sgd") is None  # cosine, granted labels, strong prior
    built = adapted("cosine_lbfgs(iterations=7)", "prune(ratio=0.5) + sign")
    assert isinstance(built, Matching)
    assert isinstance(built.objective, Masked)
    assert isinstance(built.optimizer, Adam)
    assert built.optimizer.iterations == 7
    muted = adapted(FAST, "soteria(layer='fc1')", examples=2).objective
    assert isinstance(muted, Ignoring)
    assert muted.layers == ("fc1.weight",)


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


def test_naive_and_informed_stand_side_by_side(small, tmp_path):
    experiment = small.changed(batch_size=1, client_examples=1, rounds=2, capture="all", defense="dp_gaussian")
    run = engines.run(experiment, "inline", Watcher())
    words = ("attack", str(run.path), "--attack", "cosine_lbfgs(iterations=5)", "--no-lpips", "--grant", "repeats")
    done = thorns(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for text in ("naive", "informed", "rounds=2", "defense: dp_gaussian", "granted: defense, repeated examples"):
        assert text in done.stdout
    lone = thorns(*words, "--no-informed", cwd=tmp_path)
    assert "informed" not in lone.stdout
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
    assert adapted(FAST, "refiner(alpha=0.4)").observers == (Unblend(alpha=0.4),)


def test_a_defense_can_have_several_informed_attackers():
    found = {one.name: one for one in informed(FAST, "refiner(eps=0.3)", evaluator="d.safetensors")}
    assert list(found) == ["most likely", "unblend", "knows D", "shell"]
    assert found["unblend"].attack == adapted(FAST, "refiner(eps=0.3)")
    prior = found["knows D"].attack.priors[-1]
    assert prior.weight > 0
    assert prior.evaluator == "d.safetensors"
    assert found["knows D"].grants == ("defense", "evaluator")
    shelled = found["shell"].attack
    assert (shelled.objective, shelled.optimizer.iterations) == (Shell(eps=0.3), 120)
    assert adapted("cosine_lbfgs(tv=0.01)", "refiner").priors[0].weight < 0.01  # it smooths afterwards
    both = [one.name for one in informed(FAST, "fedem + refiner(eps=0.3)", examples=2, evaluator="d")]
    assert both[0] == "replay + most likely"
    assert len(both) == 8


def test_an_attacker_with_nothing_to_work_with_says_so():
    why = {one.name: one.why_not for one in informed(FAST, "refiner") if one.attack is None}
    few = "0 public examples are too few to learn from"
    assert why == {
        "most likely": few,
        "knows D": "the client's evaluation network is not at hand",
        "shell": "eps is not set in the defense",
    }
    (lone,) = (one for one in informed(FAST, "fedem") if one.attack is None)
    assert "a single one" in lone.why_not
    assert all(one.attack for one in informed(FAST, "fedem", rounds=2))
    assert adapted(FAST, "bido") is None
    assert "penalised" in adversary.text_of(adapted(FAST, "bido", examples=2))


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
    naive, through = attack(text, told, task), attack(adapted(text, defense, examples=2), told, task)

    def best(guess):  # of both orders of the two examples
        return torch.stack([psnr(guess.x, x).mean(1), psnr(guess.x.flip(1), x).mean(1)]).amax(0).mean()

    assert best(through) > best(naive) + 3


def test_who_knows_fedem_replays_it():
    defense = "fedem(rho_min=1.0, rho_max=1.0)"
    x, y = digits(4, 1)
    seen, task = seen_of(x, y)
    told = protected(seen, task, x, y, defense)
    text = "cosine_lbfgs(iterations=250, tv=0)"
    naive, replayed = attack(text, told, task), attack(adapted(text, defense), told, task)
    assert psnr(replayed.x, x).mean() > psnr(naive.x, x).mean() + 1
    with pytest.raises(AttackError, match="grant defense"):
        attack("matching(optimizer=adam(iterations=1), observers=[replay])", seen, task)


def test_what_the_reconstructions_of_a_client_share_is_taken_out_of_all_its_rounds():
    defense = "fedem(rho_max=0.5)"
    x, y = digits(2, 1)
    seen, task = seen_of(x, y)
    told = protected(seen, task, x, y, defense, rounds=2)
    plain = adversary.build("cosine_lbfgs(iterations=3)").matching()
    common = dataclasses.replace(plain, observers=(Common(rho=0.5),))
    assert common.by_client
    naive, cleared = attack(plain, told, task).x, attack(common, told, task).x
    gone = (naive - cleared)[[0, 2]]  # of client 0, where nothing was cut off at 0 or 1
    inside = ((cleared[[0, 2]] > 0) & (cleared[[0, 2]] < 1) & (naive[[0, 2]] > 0) & (naive[[0, 2]] < 1)).all(0)
    assert inside.any()
    torch.testing.assert_close(gone[0][inside], gone[1][inside])
    assert not torch.allclose(naive, cleared)
    assert torch.equal(attack(common, told[:1], task).x, attack(plain, told[:1], task).x)


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
        assert f"informed: {name}: 3 targets" in done.stdout
    assert "granted: defense, evaluation network" in done.stdout
    assert "worst for the defense: " in done.stdout


def test_what_is_left_out_is_said(small, tmp_path):
    run = engines.run(small.changed(batch_size=1, rounds=1, capture="all", defense="fedem(steps=1)"), "inline", Watcher())
    words = ("attack", str(run.path), "--attack", "cosine_lbfgs(iterations=3)", "--no-lpips")
    done = thorns(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "informed: common left out: nothing that reconstructions share can be estimated from a single one" in done.stdout
    assert "informed: replay: 3 targets" in done.stdout


def test_the_shell_of_a_projected_gradient():
    true = {"a": torch.zeros(3), "b": torch.zeros(2)}
    near, far = {"a": torch.tensor([0.3, 0, 0]), "b": torch.zeros(2)}, {"a": torch.zeros(3), "b": torch.tensor([3.0, 4.0])}
    shell = Shell(eps=1.0)
    assert torch.isclose(shell(near, true, 0.0), torch.tensor(0.49))
    assert torch.isclose(shell(far, true, 0.0), torch.tensor(16.0))


def test_a_network_that_sees_noise_is_a_prior(tmp_path):
    x, y = digits(1, 1)
    seen, task = seen_of(x, y)
    with pytest.raises(AttackError, match="train-evaluator"):
        attack("matching(priors=[noise(0.1)])", seen, task)
    network = evaluation.train(x[0].expand(64, -1, -1, -1), evaluation.EvaluatorTraining(width=2, steps=1))
    evaluation.save(network, tmp_path / "d.safetensors")
    text = f"matching(optimizer=lbfgs(iterations=2), priors=[noise({{}}, evaluator='{tmp_path}/d.safetensors')])"
    assert not torch.equal(attack(text.format(0.0), seen, task).x, attack(text.format(5.0), seen, task).x)
