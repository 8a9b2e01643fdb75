"""The papers' attacks as searches: each setting, with the default that it is documented with, in its place."""

import pytest

import adversary
from adversary import Facts
from fl_app.core.local import LocalRule

FREE = "space=pixels(init='uniform', boxed=False)"
SEARCHES = {
    "dlg": f"{FREE}, labels='joint', optimizer=lbfgs(iterations=4000, restarts=2, solved=3e-06)",
    "dlg(iterations=9, restarts=3, solved=1.0, init='grey', labels='given', compiled=True)": "space=pixels(init='grey', "
    "boxed=False), labels='given', optimizer=lbfgs(iterations=9, restarts=3, solved=1.0), compiled=True",
    "idlg": f"{FREE}, labels='sign', optimizer=lbfgs(iterations=4000, restarts=2, solved=3e-06)",
    "inverting_gradients": "objective=cosine, priors=[tv(weight=0.1)], "
    "optimizer=adam(iterations=4000, signed=True, decay=True)",
    "inverting_gradients(tv=0, lr=0.2, iterations=9, signed=False, seeds=3, init='uniform', labels='rows', compiled=True)": (
        "objective=cosine, space=pixels(init='uniform'), labels='rows', optimizer=adam(iterations=9, lr=0.2, decay=True), "
        "seeds=3, compiled=True"
    ),
    "cosine_lbfgs": f"objective=cosine, {FREE}, priors=[tv(weight=0.001)], optimizer=lbfgs",
    "cosine_lbfgs(tv=0, iterations=9, init='normal', labels='rows', compiled=True)": "objective=cosine, "
    "space=pixels(boxed=False), labels='rows', optimizer=lbfgs(iterations=9), compiled=True",
    "ci_net": "objective=cosine, space=untrained, optimizer=adam(iterations=2000, lr=0.001, signed=True), at_once=16",
    "ci_net(lr=0.2, iterations=9, seeds=3, channels=5, labels='rows', compiled=True)": "objective=cosine, "
    "space=untrained(channels=5), labels='rows', optimizer=adam(iterations=9, lr=0.2, signed=True), seeds=3, at_once=16, "
    "compiled=True",
    "ci_net_lbfgs": "objective=cosine, space=untrained, optimizer=lbfgs(iterations=250), "
    "phases=[phase(space=pixels(boxed=False), optimizer=lbfgs(iterations=150), pooled=True)], seeds=4, at_once=16",
    "ci_net_lbfgs(iterations=9, seeds=3, tries=4, refined=0, channels=5, labels='rows', compiled=True)": "objective=cosine, "
    "space=untrained(channels=5), labels='rows', optimizer=lbfgs(iterations=9), seeds=3, tries=4, at_once=16, compiled=True",
    "gauss_newton": "objective=relative, space=pixels(init='grey', boxed=False), priors=[tv(weight=0.0001), box(weight=1.0)], "
    "optimizer=gauss_newton(solved=1e-07)",
    "gauss_newton(tv=0, iterations=9, products=7, solved=0.5, labels='rows')": "objective=relative, "
    "space=pixels(init='grey', boxed=False), priors=[box(weight=1.0)], labels='rows', "
    "optimizer=gauss_newton(iterations=9, solved=0.5, products=7)",
    "grad_inversion": "priors=[tv(weight=0.0001), norm(weight=1e-06), group(weight=0.01)], labels='min_column', "
    "optimizer=adam(iterations=2000, lr=0.01), seeds=4",
    "grad_inversion(tv=0, norm=0, group=0, bn=0.1, lr=0.2, iterations=9, seeds=3, labels='count')": (
        "priors=[batchnorm(weight=0.1)], optimizer=adam(iterations=9, lr=0.2), seeds=3"
    ),
    "rog": "space=lowres, optimizer=adam(iterations=100, lr=0.05, decay=True), "
    "phases=[phase(space=pixels, optimizer=adam(iterations=50, lr=0.05, decay=True))]",
    "rog(factor=2, lr=0.2, iterations=9, release=7, labels='rows')": "space=lowres(factor=2), labels='rows', "
    "optimizer=adam(iterations=9, lr=0.2, decay=True), "
    "phases=[phase(space=pixels, optimizer=adam(iterations=7, lr=0.2, decay=True))]",
    "coarse_to_fine(coarsest=3, finest=2, iterations=9, labels='rows')": "objective=relative, "
    "space=contrast(space=lowres(factor=3, boxed=False)), priors=[tv(weight=0.03)], labels='rows', "
    "optimizer=lbfgs(iterations=9), phases=[phase(space=contrast(space=lowres(factor=2, boxed=False)), "
    "optimizer=lbfgs(iterations=9))]",
    "rows": "objective=cosine, space=cells, optimizer=adam(iterations=1500, lr=0.02, signed=True, decay=True), recounts=1",
    "rows(lr=0.2, iterations=9, seeds=3, labels='rows')": "objective=cosine, space=cells, labels='rows', "
    "optimizer=adam(iterations=9, lr=0.2, signed=True, decay=True), seeds=3, recounts=1",
    "sme": f"objective=cosine, {FREE}, priors=[tv(weight=0.001)], observers=[surrogate], optimizer=lbfgs",
    "sme(tv=0, iterations=9, lbfgs=False, lr=0.2, init='normal', labels='rows', compiled=True)": "objective=cosine, "
    "labels='rows', observers=[surrogate], optimizer=adam(iterations=9, lr=0.2, decay=True), compiled=True",
    "epochwise": "objective=cosine, space=epochs(number=1, boxed=False), "
    "priors=[tv(weight=0.001), same_mean(weight=1.0, epochs=1)], optimizer=lbfgs(iterations=500)",
    "epochwise(tv=0, tie=0, iterations=9, init='normal', labels='rows', compiled=True)": "objective=cosine, "
    "space=epochs(number=1, init='normal', boxed=False), labels='rows', optimizer=lbfgs(iterations=9), compiled=True",
}
ONE = LocalRule(batch_size=1)


@pytest.mark.parametrize("text", SEARCHES)
def test_a_preset_is_a_search(text):
    preset = adversary.build(text)
    assert adversary.text_of(preset.matching()) == f"matching({SEARCHES[text]})"
    search = preset.matching()
    assert preset.cost(3, ONE) == search.cost(3, ONE)
    assert preset.shortened(2) == search.shortened(2)
    assert preset.informed("mask", Facts()) == search.informed("mask", Facts()) != []


def test_epochs_are_those_of_the_rule():
    assert adversary.text_of(adversary.build("epochwise").matching(3)).count("=3") == 2  # of the space, and of what ties it


def test_the_cost_of_an_attempt():
    assert adversary.build("gauss_newton(iterations=3, products=5)").cost(2, ONE) == 3 * 5 * 2 * 2
    rule = LocalRule(kind="delta", batch_size=1, steps=5, lr=0.1)
    assert adversary.build("sme(iterations=7)").cost(2, rule) == 7 * 2  # nothing is unrolled
