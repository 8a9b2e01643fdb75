"""What a search becomes once it knows a defense: each setting of the defense, and what was granted, in its place."""

import dataclasses

import pytest

import adversary
import client_defenses
from adversary import Facts, informed
from adversary.informed import variant
from adversary.learned.ridge import Ridge
from adversary.search.optimizers import LBFGS, Adam
from client_defenses import Defense
from fl_app.core.spec import SpecError
from helpers.attacks import digits

ASKED = "optimizer=lbfgs(iterations=300, restarts=2, solved=0.1)"
RESCALED = "optimizer=lbfgs(iterations=300, restarts=2)"  # what was solved was on the scale of another loss
LIKELY = "space=class_gaussian, {}, optimizer=lbfgs(iterations=200)"
ROWS, JOINT = LIKELY.format("labels='rows'"), LIKELY.format("labels='joint'")
STRAIGHT = (
    "labels='rows', observers=[expected], optimizer=adam(iterations=300, restarts=2, solved=0.1, signed=True, decay=True)"
)
PROOF = f"objective=cosine, priors=[tv(weight=0.03)], labels='rows', {RESCALED}"
DENOISED = f"objective=cosine, priors=[tv(weight=0.003)], labels='rows', denoisers=[linear_gaussian({{}})], {RESCALED}"
FEW = "499 public examples are too few to learn from"
ALONE, BATCH = Facts(public=500), Facts(rounds=4, repeats=True, examples=2, public=500)

# One example in one round, with public examples; "!": why not.
OF_ONE = {
    "none": {},
    "bido": {"": "!there is something to know only from 2 examples per batch on", "ridge": "ridge"},
    "dp_gaussian(scale=0.02, clip=3.0)": {
        "most likely": f"objective=noise_law(scale=0.02, clip=3.0), {ROWS}",
        "noise-proof": PROOF,
        "denoised": DENOISED.format("noise=0.02, clip=3.0"),
        "ridge": "ridge",
    },
    "dp_gaussian(scale=0.0)": {"noise-proof": PROOF, "ridge": "ridge"},
    "drop_fedsgd(p=0.1, sigma=0.2, clip=3.0)": {
        "": "objective=kept_or_dropped(p=0.1, sigma=0.6000000000000001, clip=3.0), priors=[tv(weight=0.3)], labels='rows', "
        f"observers=[dropped(p=0.1)], {RESCALED}",
        "ridge": "ridge",
    },
    "drop_fedsgd(p=0.1, sigma=0.0)": {
        "": "objective=kept_or_dropped(p=0.1, sigma=1e-06), priors=[tv(weight=0.3)], labels='rows', "
        f"observers=[dropped(p=0.1)], {RESCALED}",
        "ridge": "ridge",
    },
    "drop_fedsgd(p=0.0)": {"": "!with p=0.0 there is no mask to look for", "ridge": "ridge"},
    "drop_fedsgd(p=1.0)": {"": "!with p=1.0 there is no mask to look for", "ridge": "ridge"},
    "fedem(rho_max=0.5)": {
        "replay": f"observers=[replay], {ASKED}",
        "common": "!nothing that reconstructions share can be estimated from a single one",
    },
    "recup(eps=0.25)": {
        "most likely": f"objective=noise_law(relative=0.25), {ROWS}",
        "noise-proof": PROOF,
        "ridge": "ridge",
    },
    "recup(eps=0)": {"ridge": "ridge"},
    "gradient_dropout(p=0.7, sigma=0.1)": {
        "": f"objective=mixture(p=0.7, sigma=0.1), priors=[tv(weight=0.3)], labels='count_rows', {RESCALED}",
        "denoised": DENOISED.format("kept=0.7, decoy=0.1"),
        "ridge": "ridge",
    },
    "gradient_dropout(p=0.6, sigma='match')": {
        "": f"objective=mixture(p=0.6), priors=[tv(weight=0.3)], labels='count_rows', {RESCALED}",
        "denoised": DENOISED.format("kept=0.6"),
        "ridge": "ridge",
    },
    "latent_perturbation": {
        "reads the latent": "objective=ignoring(objective=l2, layers=['last']), observers=[mean_latent, read_features], "
        + RESCALED,
        "mean": f"observers=[mean_latent], {ASKED}",
    },
    "ldpm(noise=0.01, clip=3.0)": {
        "most likely": f"objective=one_row(scale=0.06, clip=3.0), {JOINT}",
        "without the layer": "objective=ignoring(objective=cosine, layers=['last']), priors=[tv(weight=0.03)], labels='joint', "
        + RESCALED,
        "ridge": "ridge",
    },
    "mixup": {"": "!a batch of one is not mixed, so its label is read off the update as ever"},
    "prune(ratio=0.9, scope='tensor', memory=True)": {
        "most likely": f"objective=pruned(memory=True, scope='tensor'), {ROWS}",
        "": f"objective=masked(objective=l2), labels='rows', {RESCALED}",
        "ridge": "ridge",
    },
    "quantize(bits=3, stochastic=True)": {
        "most likely": f"objective=grid(bits=3, stochastic=True), {ROWS}",
        "straight-through": STRAIGHT,
        "ridge": "ridge",
    },
    "quantize(bits=3, memory=True)": {
        "most likely": f"objective=grid(memory=True, bits=3), {ROWS}",
        "straight-through": STRAIGHT,
        "ridge": "ridge",
    },
    "sign(scale='none', memory=True)": {
        "most likely": f"objective=signs(memory=True, scale='none'), {ROWS}",
        "straight-through": STRAIGHT,
        "ridge": "ridge",
    },
    "refiner(alpha=0.4, eps=0.3, evaluator='d')": {
        "most likely": f"objective=noise_law(relative=0.1), {ROWS}".replace("class_gaussian", "blended(alpha=0.4)"),
        "unblend": f"objective=cosine, observers=[unblend(alpha=0.4)], {RESCALED}",
        "knows D": "objective=cosine, priors=[noise(weight=0.001, evaluator='d')], observers=[unblend(alpha=0.4)], " + RESCALED,
        "shell": f"objective=shell(eps=0.3), {RESCALED}",
    },
    "refiner(alpha=1.0)": {
        "unblend": "!with alpha=1 the start holds nothing of the image",
        "knows D": "!the client's evaluation network is not at hand",
        "shell": "!eps is not set in the defense",
    },
    "refiner(alpha=0.0, evaluator='d')": {
        "unblend": f"objective=cosine, {RESCALED}",
        "knows D": f"objective=cosine, priors=[noise(weight=0.001, evaluator='d')], {RESCALED}",
        "shell": "!eps is not set in the defense",
    },
    "soteria(layer='fc1')": {
        "columns": f"objective=masked(objective=l2), {RESCALED}",
        "without the layer": f"objective=ignoring(objective=l2, layers=['fc1.weight']), {RESCALED}",
        "ridge": "ridge",
    },
    "mask + prune(ratio=0.5)": {  # masked once, not twice
        "most likely": f"objective=pruned, {ROWS}",
        "": f"objective=masked(objective=l2), labels='rows', {RESCALED}",
        "ridge": "ridge",
    },
}
# Four rounds on the same two examples: noise averages out, as the law of its mean says.
OF_BATCHES = {
    "bido": {"": f"observers=[penalised], {ASKED}"},
    "dp_laplace(scale=0.02)": {
        "most likely": f"objective=noise_law(scale=0.005, clip=1.0, law='laplace'), {ROWS}, rounds=4",
        "noise-proof": f"{PROOF}, rounds=4",
        "denoised": DENOISED.format("noise=0.028284271247461905, clip=1.0"),
    },
    "dp_sgd(noise=0.8, clip=3.0)": {  # of a sum over two, half
        "most likely": f"objective=noise_law(scale=0.6000000000000001, clip=3.0), {ROWS}, rounds=4",
        "noise-proof": f"{PROOF}, rounds=4",
        "denoised": DENOISED.format("noise=1.2000000000000002, clip=3.0"),
    },
    "fedem(rho_max=0.5)": {"replay": f"observers=[replay], {ASKED}", "common": f"observers=[common(rho=0.5)], {ASKED}"},
    "instahide": {"": f"labels='joint', {ASKED}"},
    "latent_perturbation(mu=0.0)": {
        "reads the latent": "!features can be read off the gradient of one example only",
        "mean": "!the noise has mean 0, so its mean moves nothing",
    },
    "ldpm(noise=0.01)": {
        "most likely": "!examples of a batch each keep a row of their own",
        "without the layer": "objective=ignoring(objective=cosine, layers=['last']), priors=[tv(weight=0.03)], labels='joint', "
        f"{RESCALED}, rounds=4",
    },
    "prune(memory=True)": {
        "most likely": f"objective=pruned(memory=True), {ROWS}, rounds=4",
        "": f"objective=masked(objective=l2), labels='rows', {RESCALED}",
    },
    "soteria": {
        "columns": "!each example has columns of its own",
        "without the layer": f"objective=ignoring(objective=l2, layers=['last']), {RESCALED}",
    },
    "soteria(masks='batch')": {
        "columns": f"objective=masked(objective=l2), {RESCALED}",
        "without the layer": f"objective=ignoring(objective=l2, layers=['last']), {RESCALED}",
    },
}


def told(defense, facts, search=f"matching({ASKED})"):
    """Name -> what the search becomes, or why not; in order."""
    found = adversary.build(search).informed(defense, facts)
    assert all(one.why and (one.attack is None) == bool(one.why_not) for one in found)
    return {one.name: f"!{one.why_not}" if one.attack is None else adversary.text_of(one.attack) for one in found}


def written(table):
    return {name: text if text[0] == "!" or text == "ridge" else f"matching({text})" for name, text in table.items()}


@pytest.mark.parametrize("defense", OF_ONE)
def test_who_attacks_one_example(defense):
    assert list(told(defense, ALONE).items()) == list(written(OF_ONE[defense]).items())


@pytest.mark.parametrize("defense", OF_BATCHES)
def test_who_attacks_rounds_on_the_same_batch(defense):
    assert list(told(defense, BATCH).items()) == list(written(OF_BATCHES[defense]).items())


def test_what_was_not_granted_is_not_counted_on():
    few = Facts(rounds=4, examples=1, public=499)
    assert told("dp_gaussian", few) == {"most likely": f"!{FEW}", "noise-proof": f"matching({PROOF})"}
    memory = told("sign(memory=True)", ALONE._replace(rounds=2))["most likely"]
    assert memory == "!what was left out of earlier rounds is not known where examples do not repeat"
    assert told("sign", ALONE._replace(rounds=2))["most likely"][0] != "!"
    four = told("ldpm(noise=0.01)", ALONE._replace(rounds=4, repeats=True))["most likely"]
    assert "one_row(scale=0.01)" in four  # the mean of four
    assert "one_row(scale=0.02)" in told("ldpm(noise=0.01)", ALONE._replace(rounds=4))["most likely"]
    assert "most likely" not in told("ldpm(noise=0.0)", ALONE)
    assert told("fedem(rho_max=0.0, rho_min=0.0)", BATCH) == {"replay": f"matching(observers=[replay], {ASKED})"}
    assert "knows D" in told("refiner", ALONE._replace(evaluator="theirs"))
    assert "evaluator='theirs'" in told("refiner(evaluator='d')", ALONE._replace(evaluator="theirs"))["knows D"]


def test_of_a_chain_each_combination_and_all_that_it_takes():
    found = adversary.build(f"matching({ASKED})").informed("fedem + refiner(evaluator='d')", BATCH)
    assert [one.name for one in found][:4] == ["replay + most likely", "replay + unblend", "replay + knows D", "replay + shell"]
    assert [one.grants for one in found][:3] == [("defense",), ("defense",), ("defense", "evaluator")]
    assert "; " in found[0].why
    assert found[3].why_not == "eps is not set in the defense"
    both = adversary.build(f"matching({ASKED})").informed("fedem + refiner", ALONE)
    assert both[-1].why_not.count("; ") == 1  # the common part of one, and eps


def test_a_prior_and_labels_are_changed_only_where_that_helps():
    strong = f"matching(priors=[tv(0.2), norm(0.1)], labels='given', {ASKED})"
    assert "priors=[tv(weight=0.2), norm(weight=0.1)], labels='given'" in told("dp_gaussian", ALONE, strong)["noise-proof"]
    assert "priors=[tv(weight=0.3), norm(weight=0.1)], labels='given'" in told("drop_fedsgd", ALONE, strong)[""]
    assert "priors=[tv(weight=0.0003), norm(weight=0.1)], labels='given'" in told("refiner", ALONE, strong)["unblend"]
    assert "priors=[tv(weight=0.001), norm(weight=0.1)]" in told("latent_perturbation", ALONE, strong)["reads the latent"]
    assert "labels='given'" in told("ldpm", ALONE, strong)["most likely"]
    assert "labels='joint'" in told("prune", ALONE, f"matching(labels='joint', {ASKED})")[""]
    # A search that already goes beyond the rounds that were captured, or does all that can be done, stays.
    assert "rounds=9" in told("dp_sgd", BATCH, f"matching(rounds=9, {ASKED})")["noise-proof"]
    assert told("bido", BATCH, f"matching(observers=[penalised], {ASKED})") == {}
    masked = told("mask", BATCH, f"matching(objective=masked(l2), {ASKED})")[""]
    assert masked == f"matching(objective=masked(objective=l2), labels='rows', {RESCALED})"


def test_gauss_newton_gives_way_where_there_are_no_squares():
    attack = adversary.build("gauss_newton").matching()
    assert variant.with_objective(attack, attack.objective).optimizer.products == 100
    assert isinstance(told_object("drop_fedsgd").optimizer, LBFGS)
    assert told_object("sign", "straight-through").optimizer == Adam(iterations=1000, signed=True, decay=True)
    assert told_object("sign", "most likely").optimizer == LBFGS(iterations=200)
    short = dataclasses.replace(attack, optimizer=LBFGS(iterations=7, restarts=3))
    assert {one.name: one.attack for one in short.informed("sign", ALONE)}["most likely"].optimizer == LBFGS(iterations=7)


def told_object(defense, name=""):
    return {one.name: one.attack for one in adversary.build("gauss_newton").informed(defense, ALONE)}[name]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Noisy(Defense):
    """Says nothing of what is expected of it."""

    def transform(self, grads, memory):
        return {name: value + memory.normal(value) for name, value in grads.items()}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Halved(Noisy):
    def expected(self, grads):
        return {name: value / 2 for name, value in grads.items()}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Told(Noisy):
    informed_by = "nowhere"


def test_a_defense_that_nobody_knows(monkeypatch):
    monkeypatch.setitem(client_defenses.DEFENSES, "noisy", Noisy)
    assert list(told("noisy", BATCH)) == ["noise-proof"]
    monkeypatch.setitem(client_defenses.DEFENSES, "halved", Halved)
    assert list(told("halved", BATCH)) == ["expected", "noise-proof"]
    assert informed.words(Noisy).startswith("Matches through what the defense is expected to send")
    assert informed.words(client_defenses.DEFENSES["mask"]) == "Matches only the entries that were sent."
    monkeypatch.setattr(Told, "informed_by", "helpers.plugged:TRACE")  # a text
    with pytest.raises(SpecError, match="not an informed attacker"):
        informed.variants_of(Told)
    monkeypatch.setattr(Told, "informed_by", "helpers.attacks:digits")
    assert informed.variants_of(Told) is digits
    monkeypatch.setattr(Told, "informed_by", "nowhere")
    with pytest.raises(SpecError, match="'nowhere' cannot be allowed"):
        informed.variants_of(Told)


def test_ridge_learns_where_an_update_is_of_one_example_and_cheap():
    ridge = adversary.build("matching").informed("sign", ALONE)[-1]
    assert (ridge.name, ridge.attack, ridge.grants, ridge.why_not) == ("ridge", Ridge(), ("defense",), "")
    for defense, facts in (
        ("none", ALONE),
        ("sign", ALONE._replace(public=499)),
        ("sign", ALONE._replace(examples=2)),
        ("fedem", ALONE),  # searches within its batch
        ("latent_perturbation", ALONE),  # learns first
        ("refiner", ALONE),
        ("sign + refiner", ALONE),
    ):
        assert "ridge" not in told(defense, facts), defense
