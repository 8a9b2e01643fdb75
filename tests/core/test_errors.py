"""What errors say for people, and how a command ends that was interrupted."""

import os
import signal
import threading

import pytest

from adversary import AttackError
from fl_app.core.ending import Terminated, exit_code, terminable
from fl_app.core.errors import said, told


def test_errors_are_said_on_one_line():
    assert said(ValueError("two\n  lines")) == "two lines"
    assert said(ValueError()) == "ValueError"
    assert said(FileNotFoundError(2, "No such file", "/secret")) == "no such file"
    assert said(OSError("without a number")) == "without a number"


def test_the_kind_of_an_error_is_told_unless_it_is_ours():
    assert told(ValueError("wrong")) == "ValueError: wrong"
    assert told(AttackError("too few")) == "too few"


def test_sigterm_ends_what_is_inside_and_is_as_before_afterwards():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Terminated), terminable():
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before
    done = []

    def beside():
        with terminable():
            done.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=beside)
    thread.start()
    thread.join()
    assert done == [before], "another thread may not handle signals"


def test_an_interrupted_command_ends_with_the_number_of_the_signal():
    assert exit_code(KeyboardInterrupt()) == 130
    assert exit_code(Terminated()) == 143
