"""Certificates and node keys."""

import socket
import ssl
import stat
import threading

import pytest
from flwr.common.config import parse_config_args
from typer.testing import CliRunner

from fl_app.cli.deploy import app as deploy_app
from fl_app.client.node_config import check_place, read_node_config
from fl_app.client.policy import GUARD, KEY_FILE, OwnConfig, own_config
from fl_app.core.spec import SpecError, settings_of
from fl_app.engines.grpc.certificates import (
    Certificates,
    make_certificates,
    make_node_key,
    read_node_key,
    read_public_key,
)
from fl_app.engines.grpc.connection import NodeSettings
from fl_app.engines.grpc.link import Link
from fl_app.experiment.toml import ConfigError


def handshake(server_files, authority, host):
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(server_files.server, server_files.server_key)
    client = ssl.create_default_context(cafile=str(authority))
    one, other = socket.socketpair()

    def serve():
        try:
            server.wrap_socket(one, server_side=True).close()
        except (ssl.SSLError, OSError):
            one.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        client.wrap_socket(other, server_hostname=host).close()
    finally:
        other.close()
        thread.join()


def test_certificates_hold_for_their_hosts_and_authority_alone(tmp_path):
    (tmp_path / "other").mkdir()
    files = make_certificates(tmp_path, ("fl.example.org", "127.0.0.1"))
    other = make_certificates(tmp_path / "other")
    for host in ("fl.example.org", "127.0.0.1"):
        handshake(files, files.authority, host)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(files, files.authority, "else.example.org")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(files, other.authority, "127.0.0.1")


def test_private_files_are_private_and_never_overwritten(tmp_path):
    files, key = make_certificates(tmp_path), make_node_key(tmp_path, 3)
    for path in (files.server_key, key):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for again in (lambda: make_certificates(tmp_path), lambda: make_node_key(tmp_path, 3)):
        with pytest.raises(ValueError, match="exists"):
            again()
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes

    assert read_public_key(key.with_suffix(".pub")) == public_key_to_bytes(read_node_key(key)[1])
    with pytest.raises(ValueError, match="not a node key"):
        read_node_key(files.server)
    with pytest.raises(ValueError, match="thorns deploy keys"):
        Certificates.inside(tmp_path / "nothing")


def test_insecure_is_asked_for_by_name(tmp_path):
    files = make_certificates(tmp_path)
    secure = Link("127.0.0.1:1", 2, tmp_path / "secret", files).command()
    assert "--insecure" not in secure
    assert "--enable-supernode-auth" in secure
    assert "--insecure" in Link("127.0.0.1:1", 2, tmp_path / "secret").command()
    with pytest.raises(ValueError, match="in the clear"):
        NodeSettings("127.0.0.1:1", {}, key=tmp_path / "key", insecure=True)


def test_a_server_without_enough_keys_does_not_start(tmp_path):
    runner = CliRunner()
    assert runner.invoke(deploy_app, ["keys", str(tmp_path), "--clients", "2"]).exit_code == 0
    result = runner.invoke(deploy_app, ["server", str(tmp_path), "-c", "clients=3"])
    assert isinstance(result.exception, ValueError)
    assert "2 public keys" in str(result.exception)


def test_each_client_gets_a_file_to_begin_with(tmp_path):
    assert CliRunner().invoke(deploy_app, ["keys", str(tmp_path), "--clients", "2"]).exit_code == 0
    text = (tmp_path / "client-1.toml").read_text()
    found = read_node_config(str(tmp_path / "client-1.toml"))
    check_place(found)
    assert found == {"partition-id": 1, "num-partitions": 2}
    assert own_config(found) is None
    # What stands there as a comment is accepted once it is none, but for one of the two that exclude each other.
    named = [line.removeprefix("# ") for line in text.splitlines() if " = " in line and not line.startswith("# demand")]
    (tmp_path / "own.toml").write_text("\n".join(named))
    assert own_config(read_node_config(str(tmp_path / "own.toml"))).min_examples == 16
    assert {line.split(" = ")[0].strip("# ") for line in text.splitlines() if " = " in line} == {
        "partition-id",
        "num-partitions",
        KEY_FILE,
        *GUARD,
        *(name.replace("_", "-") for name in settings_of(OwnConfig)),
    }


def test_settings_of_a_client_are_spelled_as_its_file_has_them():
    with pytest.raises(SpecError, match=r"no setting 'min-exampels'; did you mean 'min-examples'\?"):
        own_config({"min-exampels": 3})
    with pytest.raises(SpecError, match="min-examples=-1 is not allowed"):
        own_config({"min-examples": -1})


@pytest.mark.parametrize("text", ["partition-id", "partition-id=0 defense = prune", "partition-id=0 defense='prune", "=1"])
def test_no_part_of_a_node_config_is_ignored(text):
    with pytest.raises(ConfigError, match="is not of the form key=value"):
        read_node_config(text)


def test_a_node_config_is_read_as_flower_reads_it():
    line = 'partition-id=0 num-partitions=2 defense="dp_sgd(clip=1.0, noise=1.0)" min-examples=4'
    assert read_node_config(line) == parse_config_args([line])
    for place in (
        {},
        {"partition-id": 0},
        {"partition-id": 2, "num-partitions": 2},
        {"partition-id": "0", "num-partitions": 2},
    ):
        with pytest.raises(ConfigError, match="which client this is"):
            check_place(place)
