"""Certificates and node keys."""

import socket
import ssl
import stat
import threading

import pytest
from typer.testing import CliRunner

from fl_app.cli.deploy import app as deploy_app
from fl_app.engines.grpc.certificates import (
    Certificates,
    make_certificates,
    make_node_key,
    read_node_key,
    read_public_key,
)
from fl_app.engines.grpc.connection import NodeSettings
from fl_app.engines.grpc.link import Link


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
