"""Where what a defense is asked for begins to be refused: at each bound, and right beside it."""

import pytest

from client_defenses import build
from client_defenses.drop_fedsgd import calibrate
from client_defenses.gradient_dropout import largest_p
from client_defenses.tools.accounting import epsilon
from fl_app.core.spec import SpecError

GOOD = {"epsilon": 1.0, "delta": 0.5, "p": 0.1, "sensitivity": 1.0}
COUNTED = {"examples": 10, "batch_size": 2, "steps": 3, "delta": 1e-3}


@pytest.mark.parametrize(
    "wrong",
    [{"epsilon": 0.0}, {"epsilon": -1.0}, {"sensitivity": 0.0}, {"p": 0.0}, {"p": 1.0}, {"delta": 1.0}, {"delta": 1 - 0.9**2}],
)
def test_what_no_sigma_promises(wrong):
    assert calibrate(**GOOD).sigma > 0
    with pytest.raises(ValueError, match=r"must be above 0 and p inside|the theorem needs a delta between"):
        calibrate(**{**GOOD, **wrong})


def test_what_no_p_promises():
    assert largest_p(0.0, 0.5) == 1.0
    assert largest_p(0.2, 0.5) == pytest.approx(0.2)
    for loss, sigma in ((-0.1, 0.5), (0.0, 0.0), (0.1, -1.0)):
        with pytest.raises(ValueError, match="the loss must be at least 0 and sigma above 0"):
            largest_p(loss, sigma)
    with pytest.raises(ValueError, match=r"no p guarantees a loss above 0\.25"):
        largest_p(0.25, 0.5)


def test_what_has_no_epsilon():
    for least in ({"examples": 1, "batch_size": 1}, {"batch_size": 1}, {"steps": 0}):
        assert epsilon(build("dp_sgd"), **{**COUNTED, **least}).as_drawn >= 0
    for wrong in ({"examples": 0}, {"batch_size": 0}, {"steps": -1}):
        with pytest.raises(SpecError, match="examples and batch_size must be at least 1, steps at least 0"):
            epsilon(build("dp_sgd"), **{**COUNTED, **wrong})
    for delta in (0.0, 1.0):
        with pytest.raises(SpecError, match="delta must lie between 0 and 1"):
            epsilon(build("dp_sgd"), **{**COUNTED, "delta": delta})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("fedem(rho_min=0.2, rho_max=0.1)", "rho_min=0.2 is more than rho_max=0.1"),
        ("instahide(k=3, c1=0.3)", "c1"),
    ],
)
def test_settings_that_contradict_each_other(text, said):
    with pytest.raises(SpecError, match=said):
        build(text)
    for fine in ("fedem(rho_min=0.1, rho_max=0.1)", "instahide(k=4, c1=0.25)", "instahide(k=1, c1=0.5)"):
        assert build(fine)
