"""TLS certificates and SuperNode keys: a throw-away authority for tests and trials; bring your own for anything else."""

import os
import re
import ssl
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_ssh_private_key,
    load_ssh_public_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fl_app.core.errors import said

LOOPBACK = ("localhost", "127.0.0.1", "::1")
HOST = re.compile(r"(\*\.)?[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?")


class Certificates(NamedTuple):
    """The files that a SuperLink needs for TLS; clients need `authority` alone."""

    authority: Path
    server: Path
    server_key: Path

    @classmethod
    def inside(cls, folder: Path) -> "Certificates":
        """The files in a folder that `make_certificates` wrote, or that were put there by hand."""
        files = cls(folder / "ca.crt", folder / "server.crt", folder / "server.key")
        missing = [path.name for path in files if not path.is_file()]
        if missing:
            raise ValueError(f"{folder} has no {', '.join(missing)}: make them with `thorns deploy keys {folder}`")
        return files

    def check(self) -> None:
        """Refuse files that a SuperLink could not use, which it would say in a page of its own words."""
        for path in (self.authority, self.server):
            try:
                x509.load_pem_x509_certificate(path.read_bytes())
            except (OSError, ValueError) as error:
                raise ValueError(f"{path} is not a certificate in PEM: {said(error)}") from error
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.server, self.server_key)
        except OSError as error:  # ssl.SSLError is one
            raise ValueError(f"{self.server_key} is not the key of {self.server}, or cannot be read: {said(error)}") from error


def write_private(path: Path, content: bytes) -> None:
    """Write a new file that only its owner may read; an existing one is never overwritten."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise ValueError(f"{path} exists: choose another folder, or remove it first") from None
    with os.fdopen(descriptor, "wb") as out:
        out.write(content)


def make_certificates(folder: Path, hosts: tuple[str, ...] = LOOPBACK, days: int = 30) -> Certificates:
    """Make an authority, sign one server certificate for these hosts, and forget the authority's key."""
    names = [_host(host) for host in hosts]
    authority_key, server_key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    start = datetime.now(UTC) - timedelta(minutes=5)  # clocks of other machines may be behind
    end = start + timedelta(days=days)
    issuer = _name("Thorns authority")
    authority = (
        _builder(issuer, issuer, authority_key.public_key(), start, end)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, SHA256())
    )
    server = (
        _builder(_name(hosts[0]), issuer, server_key.public_key(), start, end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, SHA256())
    )
    files = Certificates(folder / "ca.crt", folder / "server.crt", folder / "server.key")
    write_private(files.server_key, server_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    files.authority.write_bytes(authority.public_bytes(Encoding.PEM))
    files.server.write_bytes(server.public_bytes(Encoding.PEM))
    return files


def make_node_key(folder: Path, client: int) -> Path:
    """A client's key pair: client-3 (private, stays with the client) and client-3.pub (the server registers it)."""
    path = folder / f"client-{client}"
    key = ec.generate_private_key(ec.SECP256R1())
    write_private(path, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    path.with_suffix(".pub").write_bytes(key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n")
    return path


def read_node_key(path: Path) -> tuple[ec.EllipticCurvePrivateKey, ec.EllipticCurvePublicKey]:
    """A client's own key pair."""
    try:
        key = load_ssh_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ValueError(f"{path} is not a node key: {said(error)}; make one with `thorns deploy keys`") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError(f"{path} is not an elliptic-curve key; make one with `thorns deploy keys`")
    return key, key.public_key()


def read_public_key(path: Path) -> bytes:
    """A client's public key, as a SuperLink wants it."""
    try:
        key = load_ssh_public_key(path.read_bytes())
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise ValueError(f"{path} is not a public node key: {said(error)}") from error
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise ValueError(f"{path} is not an elliptic-curve key; make one with `thorns deploy keys`")
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def check_public_keys(paths: list[Path]) -> None:
    """Refuse files that are no keys, and the same key twice: a SuperLink knows a client by its key."""
    seen: dict[bytes, Path] = {}
    for path in paths:
        if (other := seen.setdefault(read_public_key(path), path)) != path:
            raise ValueError(f"{other} and {path} are the same key: each client needs one of its own")


def fingerprint(key: ec.EllipticCurvePublicKey) -> str:
    """A short name of a key, the same wherever its file lies."""
    return sha256(key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)).hexdigest()[:20]


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(text))
    except ValueError:
        pass
    if len(text) > 64 or not HOST.fullmatch(text):
        raise ValueError(f"--host {text!r} is neither a name such as fl.example.org, in ASCII, nor an address")
    return x509.DNSName(text)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, start: datetime, end: datetime
) -> x509.CertificateBuilder:
    return x509.CertificateBuilder(issuer, subject, key, x509.random_serial_number(), start, end)


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
