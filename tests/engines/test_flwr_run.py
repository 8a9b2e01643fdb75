"""`flwr run .` as in the README, with a SuperLink of its own whatever else runs on the machine."""

import os
import signal
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from fl_app.engines.grpc.processes import free_port, search_path
from fl_app.experiment.config import Experiment
from fl_app.store.runs import RunDir
from helpers.engines import go, same, weights_of
from helpers.paths import ROOT


@pytest.fixture
def somebodys_superlink(monkeypatch):
    """What looks like a SuperLink where Flower expects the one of this machine; the paths that it was asked for."""
    asked = []

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()

        do_POST = do_GET

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("FLWR_LOCAL_SUPERLINK_HTTP_API_PORT", str(server.server_port))
        yield asked
        server.shutdown()


@pytest.fixture
def own_superlink(tmp_path):
    """The environment of `flwr run` with a SuperLink of its own, which is stopped at the end: Flower leaves it running."""
    home = tmp_path / "home"
    yield {
        **os.environ,
        "FLWR_HOME": str(home),
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(free_port()),
        "FLWR_LOCAL_CONTROL_API_PORT": str(free_port()),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "PATH": search_path(),
    }
    stop_processes_of(home)


def stop_processes_of(home):
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/environ", "rb") as environ:
                    if f"FLWR_HOME={home}".encode() in environ.read().split(b"\0"):
                        os.kill(int(entry), signal.SIGTERM)
            except OSError:
                continue


def test_flwr_run_gives_the_weights_of_inline_beside_another_superlink(tmp_path, somebodys_superlink, own_superlink):
    experiment = Experiment(clients=2, rounds=3, eval_every=3, run_dir=str(tmp_path / "flwr"))
    settings = tmp_path / "settings.toml"
    settings.write_text(experiment.toml())
    command = ["flwr", "run", str(ROOT), "--stream", "-c", str(settings), "--federation-config", "num-supernodes=2"]
    done = subprocess.run(command, env=own_superlink, capture_output=True, text=True, timeout=240, check=False)
    assert (tmp_path / "flwr" / "checkpoint.safetensors").exists(), done.stdout[-3000:] + done.stderr[-3000:]
    assert somebodys_superlink == []
    inline = go(experiment.changed(run_dir=str(tmp_path / "inline")))
    assert same(weights_of(RunDir(tmp_path / "flwr")), weights_of(inline))
