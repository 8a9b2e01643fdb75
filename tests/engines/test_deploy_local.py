"""`thorns deploy local` as a person uses it: real processes, TLS, node keys, Ctrl-C; the weights of the inline engine."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from contextlib import contextmanager

from fl_app import engines
from fl_app.engines.grpc.certificates import make_certificates, make_node_key
from fl_app.engines.grpc.processes import free_port
from fl_app.engines.watcher import Watcher
from fl_app.store.captures import Captures
from fl_app.store.runs import RunDir
from helpers.cli import THORNS, settings_of
from helpers.engines import same, weights_of

MARK = "THORNS_TEST_DEPLOYMENT"


def marked(value):
    """The processes that inherited our mark: whatever was started, directly or not."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as text:
                if f"{MARK}={value}".encode() in text.read():
                    found.append(int(pid))
        except OSError:
            continue
    return found


def rounds_in(path):
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line)["round"] for line in lines if line.endswith("}")]


@contextmanager
def deploy_local(experiment, folder, mark):
    """`thorns deploy local` in a folder, once it has finished some rounds; its output is collected by `communicate`."""
    env = {**os.environ, MARK: mark, "COLUMNS": "200", "NO_COLOR": "1", "TMPDIR": str(folder)}
    command = [*THORNS, "deploy", "local", *settings_of(experiment), "-c", "run-dir=out", "--logs", "logs"]
    metrics = folder / "out" / "metrics.jsonl"
    with subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as thorns:
        try:
            deadline = time.monotonic() + 280
            while max(rounds_in(metrics), default=0) < 3 and thorns.poll() is None and time.monotonic() < deadline:
                time.sleep(0.1)
            yield thorns
        finally:
            if thorns.poll() is None:
                thorns.send_signal(signal.SIGINT)


def test_real_clients_give_the_weights_of_inline_and_ctrl_c_leaves_nothing(small, tmp_path):
    experiment = small.changed(
        clients=2, rounds=500, eval_every=100, capture="1-2", defense="dp_gaussian(scale=0.01) + prune(ratio=0.5)"
    ).changed(server="loki(bins=20)")  # sends each client weights of its own
    mark = uuid.uuid4().hex
    with deploy_local(experiment, tmp_path, mark) as thorns:
        assert len(marked(mark)) == 4 or thorns.poll() is not None  # the command, a SuperLink, two SuperNodes
        thorns.send_signal(signal.SIGINT)
        output, _ = thorns.communicate(timeout=120)
    assert thorns.returncode == 130, output
    assert "TLS and node keys" in output
    assert "thorns run --resume out" in output
    assert marked(mark) == []
    assert not list(tmp_path.glob("thorns-deploy-*"))  # keys and certificates are gone, too
    assert "over TLS" in (tmp_path / "logs" / "client-0.log").read_text()
    assert "running on https" in (tmp_path / "logs" / "superlink.log").read_text()

    deployed = RunDir.open(tmp_path / "out")
    done = deployed.load_checkpoint().server_round
    inline = engines.run(experiment.changed(rounds=done, run_dir=str(tmp_path / "inline")), "inline", Watcher())
    assert done >= 3
    assert same(weights_of(inline), weights_of(deployed))
    seen = [Captures(run.path / "captures").read_all()[0] for run in (inline, deployed)]
    assert len(seen[0]) == len(seen[1]) == 4
    assert all(same(a.update, b.update) and same(a.params, b.params) for a, b in zip(*seen, strict=True))


def test_sigterm_ends_all_that_was_started(small, tmp_path):
    mark = uuid.uuid4().hex
    with deploy_local(small.changed(clients=1, rounds=100000), tmp_path, mark) as thorns:
        thorns.send_signal(signal.SIGTERM)
        output, _ = thorns.communicate(timeout=120)
    assert thorns.returncode == 128 + signal.SIGTERM, output
    assert "Traceback" not in output
    assert marked(mark) == []
    assert not list(tmp_path.glob("thorns-deploy-*"))


def test_help_answers_without_heavy_imports():
    code = "import sys; import fl_app.cli.main; sys.exit('torch' in sys.modules or 'flwr' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


NODE = "partition-id=0 num-partitions=1"


def test_a_client_whose_server_is_away_stops_when_told_to(tmp_path):
    files = make_certificates(tmp_path)
    command = [*THORNS, "deploy", "client", "--superlink", f"127.0.0.1:{free_port()}", "--node-config", NODE]
    command += ["--root-certificates", str(files.authority), "--key", str(make_node_key(tmp_path, 0))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as client:
        assert any("waiting for it" in line for line in client.stdout)  # it waits for the server
        client.send_signal(signal.SIGTERM)
        assert client.wait(timeout=60) == 128 + signal.SIGTERM
