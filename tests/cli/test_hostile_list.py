"""The list of hostile commands: long, complete, and with a judge that notices what is wrong; CI runs `scripts/hostile.py`."""

import sys

import pytest

from helpers.paths import ROOT

sys.path.insert(0, str(ROOT / "scripts"))

import hostile
from abuse.case import Answer, Case, faults

CASE = Case("run -c modle=lenet", 2, "did you mean 'model'?")
GOOD = "error: unknown setting 'modle'; did you mean 'model'? valid: model\n"


def test_the_list_is_long_and_tries_every_command():
    assert len(hostile.CASES) >= 200
    assert hostile.untried() == []


@pytest.mark.parametrize(
    ("code", "err", "fault"),
    [
        (2, GOOD, None),
        (1, GOOD, "exit code 1, not 2"),
        (2, "error: no\n", "does not say \"did you mean 'model'?\""),
        (2, f"Traceback (most recent call last):\n{GOOD}", "shows a traceback"),
        (2, f"{GOOD}[Errno 2] no\n", "shows the number of an error of the system"),
        (2, f"{GOOD[:-1]} did you mean 'mode'?\n", "asks twice what was meant"),
        (2, f"KeyError: 'x'\n{GOOD}", "names Python's KeyError"),
        (2, GOOD + GOOD, "complains more than once"),
        (2, GOOD + "x " * 700, "takes 1466 characters to say it"),
    ],
)
def test_what_is_wrong_with_an_answer_is_noticed(code, err, fault):
    assert faults(CASE, Answer(code, "", err, 0.1)) == ([fault] if fault else [])


def test_a_command_is_run_in_a_process_of_its_own(tmp_path):
    template = tmp_path / "stage"
    template.mkdir()
    (template / "cache").mkdir()
    ((case, answer),) = hostile.answers([CASE], template, 1)
    assert faults(case, answer) == []
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["stage"]
