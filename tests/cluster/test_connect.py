"""A cluster that cannot be used is refused in one line, before anything is done."""

import socket

import pytest

from fl_app.cluster import connect
from fl_app.cluster.connect import ClusterError, about, check_same, knock
from fl_app.cluster.team import part_of_gpu


def nobody():
    """A port that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.parametrize(
    "address", ["here", "host:", ":6379", "http://host:80", "ray://host", "host:99999", "ray://h:1/x", "[::1"]
)
def test_what_is_no_address_is_refused(address):
    with pytest.raises(ClusterError, match="is no address of a Ray cluster: use ray://HOST:PORT, HOST:PORT or auto"):
        knock(address)


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_an_address_is_tried_before_ray_tries_it_for_minutes(scheme):
    with pytest.raises(ClusterError, match=r"no Ray cluster answers at .* \(Connection refused\)"):
        knock(f"{scheme}127.0.0.1:{nobody()}")
    with socket.create_server(("127.0.0.1", 0)) as server:
        knock(f"{scheme}127.0.0.1:{server.getsockname()[1]}")


@pytest.mark.parametrize(
    "words",
    [
        ("sweep", "FILE", "--out", "out"),
        ("sweep", "FILE", "--dry-run"),
        ("run", "--engine", "ray", "-c", "clients=2", "-c", "rounds=1"),
    ],
)
def test_commands_refuse_a_cluster_that_does_not_answer(words, typed, file, small, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("THORNS_RAY_ADDRESS", "")
    words = [str(file()) if word == "FILE" else word for word in words]
    if words[0] == "run":
        words += ["-c", f"dataset={small.dataset}"]
    done = typed(*words, "--cluster", f"127.0.0.1:{nobody()}")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "no Ray cluster answers at 127.0.0.1:" in done.stderr
    assert not (tmp_path / "runs").exists()
    assert not list(tmp_path.rglob("plan.json"))


def test_a_cluster_is_for_the_engine_that_uses_it(typed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("THORNS_RAY_ADDRESS", "")
    done = typed("run", "--cluster", "auto")
    assert done.returncode == 2
    assert "--cluster is for --engine ray" in done.stderr


def test_a_node_with_other_code_or_without_a_plug_in_is_named():
    check_same("10.0.0.3", about([]))
    for name in ("thorns", "torch", "flwr", "thorns' code"):
        with pytest.raises(ClusterError, match=f"node 10.0.0.3 has {name} 0.0, and this machine has "):
            check_same("10.0.0.3", about([]) | {name: "0.0"})
    check_same("10.0.0.3", about(["json:loads"]))
    with pytest.raises(ClusterError, match=r"node 10.0.0.3 cannot import no_such_module \(ModuleNotFoundError: No module"):
        check_same("10.0.0.3", about(["json:loads", "no_such_module:Defense"]))


def test_the_checksum_of_our_code_is_that_of_every_file(tmp_path, monkeypatch):
    before = connect._code()
    connect._code.cache_clear()
    assert connect._code() == before
    connect._code.cache_clear()
    monkeypatch.setattr(connect.plugins, "OURS", ("fl_app",))
    assert connect._code() != before
    connect._code.cache_clear()


@pytest.mark.parametrize(
    ("device", "asked", "gpus", "share"),
    [("cpu", 4, 2, 0), ("auto", 0, 0, 0), ("auto", 0, 2, 1), ("cuda", 0, 0, 1), ("cuda", 2, 2, 1), ("cuda", 3, 2, 0.5)],
)
def test_workers_take_a_gpu_or_the_part_that_gives_all_of_them_room(device, asked, gpus, share):
    assert part_of_gpu(device, asked, gpus) == share
