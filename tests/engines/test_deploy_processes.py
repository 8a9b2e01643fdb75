"""What is started ends with who started it."""

import signal
import subprocess
import sys
import time

import pytest

from fl_app.engines.grpc.processes import Processes, free_port


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as text:
            return text.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone(pids, seconds=10.0):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and any(alive(pid) for pid in pids):
        time.sleep(0.02)
    return not any(alive(pid) for pid in pids)


def test_processes_and_what_they_started_end_with_the_block(tmp_path):
    with Processes(tmp_path, {}) as processes:
        stubborn = processes.start("shell", ["sh", "-c", "trap '' TERM; sleep 60 & echo $!; exec sleep 60"])
        while not (text := (tmp_path / "shell.log").read_text().strip()):
            time.sleep(0.01)
        pids = [stubborn.pid, int(text)]
        assert all(alive(pid) for pid in pids)
    assert gone(pids)


def test_a_process_that_ends_by_itself_is_reported_with_its_last_words(tmp_path):
    with Processes(tmp_path, {}) as processes:
        processes.start("node", ["sh", "-c", "echo no such key; exit 3"]).wait()
        with pytest.raises(RuntimeError, match=r"node ended with code 3(.|\n)*no such key"):
            processes.wait_for_port(free_port())


@pytest.mark.skipif(sys.platform != "linux", reason="needs prctl")
def test_children_of_a_killed_parent_do_not_linger(tmp_path):
    code = (
        "import sys, time; from pathlib import Path; from fl_app.engines.grpc.processes import Processes\n"
        "with Processes(Path(sys.argv[1]), {}) as p: print(p.start('a', ['sleep', '60']).pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True) as parent:
        child = int(parent.stdout.readline())
        assert alive(child)
        parent.send_signal(signal.SIGKILL)
    assert gone([child])
