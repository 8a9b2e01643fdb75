"""Every function of an attack gives what it gave: small targets, few iterations, all return values looked at.

After a change that is meant: scripts/keep_traces.py, and the difference of tests/golden/traces says what changed.
"""

from contextlib import suppress
from dataclasses import replace

import pytest
import torch

import adversary
from adversary import cases, contracts
from fl_app.core.local import LocalRule
from fl_app.core.observation import Knowledge
from fl_app.models.statistics import batchnorm_statistics
from helpers import small_scenes as small
from helpers.traces import check, traced

torch.func.jacfwd(torch.sin)(torch.ones(1))  # imports for seconds when it is used first
STEPS = LocalRule(kind="delta", batch_size=1, steps=2, lr=0.1)
TWICE = LocalRule(kind="delta", batch_size=1, steps=2, lr=0.1, examples=1)
EPOCHS = LocalRule(kind="delta", batch_size=1, steps=4, lr=0.1, examples=2)
DECAYED = LocalRule(kind="delta", batch_size=1, steps=3, lr=0.2, examples=1, momentum=0.5, weight_decay=0.01)
BY_ADAM = LocalRule(kind="delta", batch_size=1, steps=2, lr=0.01, optimizer="adam")
SEARCH = ("adversary/search/", "adversary/spaces/", "adversary/objectives", "adversary/priors", "adversary/labels")
EXACT = ("adversary/exact/", "adversary/labels")
STAGES = 8
"""Iterations: more than an objective has stages."""
PRIORS = "priors=[tv(0.1), norm(0.01), group(0.05), box(0.3)]"

CASES = {
    "readout": ("readout", EXACT, small.gated, {}),
    "readout-batch": ("readout", EXACT, small.gated, {"examples": 3}),
    "readout-softmax": ("readout", EXACT, small.softmax, {"examples": 2}),
    "readout-softmax-double": ("readout", EXACT, small.softmax, {"examples": 2, "dtype": torch.float64}),
    "spear": ("spear(draws=300)", EXACT, small.gated, {"examples": 3, "dtype": torch.float64}),
    "spear-two": ("spear(draws=300)", EXACT, small.gated, {"examples": 2, "dtype": torch.float64}),
    "spear-many": ("spear(draws=300)", EXACT, small.gated, {"examples": 5, "targets": 1, "dtype": torch.float64}),
    "spear-tolerance": (
        "spear(draws=300, tolerance=0.001)",
        EXACT,
        small.gated,
        {"examples": 4, "targets": 1, "dtype": torch.float64},
    ),
    "spear-features": ("spear(draws=300, iterations=3, seeds=2)", EXACT, small.pooled, {"examples": 2}),
    "spear-public": ("spear(draws=300, iterations=3, public=True)", EXACT, small.pooled, {"examples": 2}),
    "cocktail": ("cocktail_party(iterations=3)", EXACT, small.gated, {"examples": 2}),
    "peeling": ("peeling(iterations=3, seeds=2)", EXACT, small.pooled, {}),
    "peeling-public": ("peeling(iterations=3, public=True)", EXACT, small.pooled, {}),
    "peeling-steps": ("peeling(iterations=3)", EXACT, small.pooled, {"rule": TWICE, "targets": 1}),
    "patches": ("patches", EXACT, small.transformer, {}),
    "patches-batch": ("patches", EXACT, small.transformer, {"examples": 2}),
    "ridge": ("ridge", ("adversary/learned/",), small.smooth, {}),
    "dlg": ("dlg(iterations=4)", SEARCH, small.smooth, {"examples": 2}),
    "idlg": ("idlg(iterations=4, solved=0.5)", SEARCH, small.smooth, {}),
    "inverting_gradients": ("inverting_gradients(iterations=8, seeds=2)", SEARCH, small.smooth, {"examples": 3}),
    "cosine_lbfgs": ("cosine_lbfgs(iterations=4)", SEARCH, small.smooth, {"examples": 2, "rounds": 2}),
    "cosine_lbfgs-steps": ("cosine_lbfgs(iterations=4)", SEARCH, small.smooth, {"examples": 2, "rule": STEPS}),
    "cosine_lbfgs-adam": ("cosine_lbfgs(iterations=4)", SEARCH, small.smooth, {"examples": 2, "rule": BY_ADAM}),
    "gauss_newton": ("gauss_newton(iterations=3, products=4)", SEARCH, small.smooth, {"examples": 2}),
    "grad_inversion": ("grad_inversion(iterations=3, seeds=2)", SEARCH, small.smooth, {"examples": 2}),
    "ci_net": ("ci_net(iterations=2, channels=3)", SEARCH, small.smooth, {"examples": 2}),
    "ci_net_lbfgs": ("ci_net_lbfgs(iterations=2, channels=2)", SEARCH, small.smooth, {}),
    "sme": ("sme(iterations=4)", SEARCH, small.smooth, {"examples": 2, "rule": EPOCHS}),
    "sme-adam": ("sme(iterations=4, lbfgs=False)", SEARCH, small.smooth, {"examples": 2, "rule": EPOCHS}),
    "epochwise": ("epochwise(iterations=4)", SEARCH, small.smooth, {"examples": 2, "rule": EPOCHS}),
    "rounds": (
        f"matching(rounds=2, {PRIORS}, seeds=2, optimizer=adam(iterations=4, signed=True, decay=True, restarts=2))",
        SEARCH,
        small.smooth,
        {"examples": 2, "rounds": 2},
    ),
    "assumed": (
        "matching(observers=[assumed(momentum=0.3, weight_decay=0.1)], optimizer=lbfgs(iterations=3))",
        SEARCH,
        small.smooth,
        {"rule": DECAYED},
    ),
    "gaussian": ("matching(space=class_gaussian, optimizer=lbfgs(iterations=3))", SEARCH, small.smooth, {}),
    "gaussian-newton": (
        "matching(objective=relative, space=class_gaussian, optimizer=gauss_newton(iterations=2, products=3))",
        SEARCH,
        small.smooth,
        {"examples": 2},
    ),
    "blended": ("matching(space=blended(alpha=0.4), optimizer=lbfgs(iterations=3))", SEARCH, small.smooth, {"examples": 2}),
    "robust": ("matching(objective=masked(robust), optimizer=adam(iterations=8))", SEARCH, small.smooth, {}),
    "ignoring": (
        "matching(objective=ignoring(cosine, layers=['last']), labels=rows, optimizer=gauss_newton(iterations=2))",
        SEARCH,
        small.smooth,
        {},
    ),
    "wrong_signs": (
        "matching(objective=wrong_signs, labels=count_rows, optimizer=adam(iterations=3))",
        SEARCH,
        small.smooth,
        {"examples": 2, "rule": BY_ADAM},
    ),
    "batchnorm": ("grad_inversion(bn=0.1, iterations=2)", SEARCH, small.normed, {"examples": 2}),
    "given": (
        "matching(labels=given, optimizer=adam(iterations=2))",
        SEARCH,
        small.smooth,
        {"examples": 2, "labels": torch.tensor([0, 1])},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_every_function_gives_what_it_gave(name):
    text, parts, network, settings = CASES[name]
    seen, task = small.scene(network, **settings)
    attack = adversary.build(text)

    if network is small.normed:
        x = small.truth(len(seen), 2)[0]
        known = [batchnorm_statistics(task.model, one.params, own) for one, own in zip(seen, x, strict=True)]
        seen = [replace(one, knowledge=Knowledge(statistics=own)) for one, own in zip(seen, known, strict=True)]

    def work():
        ready = attack
        if attack.trained:
            ready = attack.taught(attack.learn(task, seen[0], small.public(), torch.Generator().manual_seed(3)))
        return ready(seen, task, 5)

    check(f"attack-{name}", traced(work, *parts))


ZEROS = [name for name, (_, parts, *_) in CASES.items() if parts is EXACT] + ["dlg", "gauss_newton", "grad_inversion", "sme"]
DOUBLE = ["readout", "readout-batch", "cocktail", "peeling", "patches", "spear-features"]


@pytest.mark.parametrize("name", ZEROS)
def test_of_an_update_of_zeros_every_function_makes_what_it_made(name):
    text, parts, network, settings = CASES[name]
    seen, task = small.scene(network, **settings)
    nothing = [replace(one, update={key: torch.zeros_like(value) for key, value in one.update.items()}) for one in seen]

    def work():
        with suppress(adversary.AttackError):
            adversary.build(text.replace(", public=True", ""))(nothing, task, 5)

    check(f"zeros-{name}", traced(work, *parts))


@pytest.mark.parametrize("name", [name for name in ZEROS if name != "peeling-steps"])  # which takes seconds
def test_of_a_tiny_update_every_function_makes_what_it_made(name):
    """Where guards against a division by zero must not show."""
    text, parts, network, settings = CASES[name]
    seen, task = small.scene(network, **settings)
    tiny = [replace(one, update={key: 1e-5 * value for key, value in one.update.items()}) for one in seen]
    check(f"tiny-{name}", traced(lambda: adversary.build(text.replace(", public=True", ""))(tiny, task, 5), *parts))


@pytest.mark.parametrize("name", DOUBLE)
def test_types_and_graphs_within_an_attack_are_what_they_were(name):
    """In double precision, with weights and updates that autograd tracks."""
    text, parts, network, settings = CASES[name]
    seen, task = small.scene(network, **{**settings, "dtype": torch.float64})
    for one in seen:
        for value in (*one.params.values(), *one.update.values()):
            value.requires_grad_()
    check(f"double-{name}", traced(lambda: adversary.build(text)(seen, task, 5), *parts))


INFORMED = {
    "bido": ("bido(lambda_x=1.0, lambda_y=2.0)", 2, 1),
    "bido-gaussian": ("bido(kernel='gaussian', normalized=False)", 3, 1),
    "dp_gaussian": ("dp_gaussian(scale=0.02, clip=3.0)", 1, 1),
    "dp_laplace": ("dp_laplace(scale=0.02)", 2, 2),
    "dp_sgd": ("dp_sgd(noise=0.5, clip=2.0)", 2, 1),
    "drop_fedsgd": ("drop_fedsgd(p=0.2, sigma=0.2, clip=0.5)", 1, 1),
    "drop_fedsgd-batch": ("drop_fedsgd(p=0.1)", 2, 2),
    "fedem": ("fedem(steps=2, rho_max=0.5)", 2, 2),
    "gradient_dropout": ("gradient_dropout(p=0.6)", 1, 1),
    "gradient_dropout-match": ("gradient_dropout(p=0.6, sigma='match')", 2, 2),
    "instahide": ("instahide(k=2)", 2, 1),
    "latent_perturbation": ("latent_perturbation(mu=0.5, pretrain_epochs=1, layer='1')", 1, 1),
    "ldpm": ("ldpm(noise=0.01, clip=2.0)", 1, 1),
    "ldpm-rounds": ("ldpm(noise=0.01, clip=2.0)", 1, 2),
    "mask": ("mask(ratio=0.5)", 1, 1),
    "mixup": ("mixup(alpha=0.5)", 2, 1),
    "prune": ("prune(ratio=0.7)", 1, 1),
    "prune-memory": ("prune(ratio=0.7, scope='tensor', memory=True)", 1, 2),
    "quantize": ("quantize(bits=3, stochastic=True)", 1, 1),
    "quantize-memory": ("quantize(bits=1, memory=True)", 1, 2),
    "sign": ("sign", 1, 1),
    "sign-none": ("sign(scale='none', memory=True)", 1, 2),
    "soteria": ("soteria(ratio=0.5)", 1, 1),
    "soteria-batch": ("soteria(masks='batch')", 2, 1),
    "ppfa": ("ppfa(budget=0.9)", 1, 1),
    "chain": ("mask(ratio=0.4) + quantize(bits=4)", 1, 1),
}
KNOWING = ("adversary/informed/", "adversary/spaces/gaussian", "adversary/search/observers", "adversary/objectives")


@pytest.mark.parametrize("name", INFORMED)
def test_every_function_of_those_who_know_the_defense_gives_what_it_gave(name):
    defense, examples, rounds = INFORMED[name]
    seen, task = small.scene(small.smooth, examples, rounds=rounds, defense=defense)
    seen = small.protected(seen, task, defense)
    facts = adversary.Facts(rounds=rounds, repeats=rounds > 1, examples=examples, public=500)

    def work():
        for one in adversary.build("cosine_lbfgs(iterations=3, tv=0.01)").informed(defense, facts):
            if one.attack is not None and one.name != "ridge":
                attack, own = one.attack.shortened(STAGES), torch.Generator().manual_seed(3)
                ready = attack.taught(attack.learn(task, seen[0], small.public(), own)) if attack.trained else attack
                ready(seen, task, 5)

    check(f"informed-{name}", traced(work, *KNOWING))


@pytest.mark.parametrize("text", ["readout", "imprint", "loki", "patches"])
def test_every_function_of_the_contracts_gives_what_it_gave(text):
    def work():
        for name, contract in contracts.CONTRACTS.items():
            if name != "beats_blind":
                contract(adversary.build(text))

    check(f"contracts-{text}", traced(work, "adversary/contracts", "fl_app/core/contracts"))


def test_every_case_of_the_contracts_is_what_it_was():
    check("contracts-cases", traced(lambda: [cases.case_of(one) for one in cases.NETWORKS], "adversary/cases"))
