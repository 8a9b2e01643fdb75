"""The way to a SuperLink, looked at before Flower connects: is it there, does it speak TLS, is its certificate the right one?

Flower's client would try a server that speaks otherwise for ever, or end with several lines of its transport's words.
"""

import logging
import os
import socket
import ssl
import time
from pathlib import Path

from fl_app.core.errors import said

log = logging.getLogger("thorns")
LOOK_SECONDS, CALL_SECONDS = 2.0, 5.0
PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")
"""With one of them gRPC goes another way than we would."""


def check_door(superlink: str, authority: Path | None, *, insecure: bool) -> None:
    """Wait until something listens there, and raise if it does not speak as this client does."""
    if any(os.environ.get(name) for name in PROXIES):
        return
    host, _, port = superlink.rpartition(":")
    host, waiting = host.strip("[]"), False
    context = _context(authority, insecure=insecure)
    while True:
        try:
            with socket.create_connection((host, int(port)), timeout=CALL_SECONDS) as line:
                _handshake(context, line, host, superlink, authority, insecure=insecure)
                return
        except OSError as error:
            if not waiting:
                log.info("no server at %s yet (%s): waiting for it", superlink, said(error))
            waiting = True
            time.sleep(LOOK_SECONDS)


def _context(authority: Path | None, *, insecure: bool) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=authority)
    except ssl.SSLError as error:
        raise ValueError(f"{authority} holds no certificates: --root-certificates is ca.crt of `thorns deploy keys`") from error
    context.set_alpn_protocols(["h2"])
    if insecure:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _handshake(
    context: ssl.SSLContext, line: socket.socket, host: str, superlink: str, authority: Path | None, *, insecure: bool
) -> None:
    try:
        context.wrap_socket(line, server_hostname=host).close()
    except ssl.SSLCertVerificationError as error:
        signer = authority or "an authority that this system knows"
        reason = f"its certificate does not hold ({error.verify_message}); it must be for {host}, and signed by {signer}"
        raise ValueError(f"the server at {superlink} is not trusted over TLS: {reason}") from None
    except (ssl.SSLError, OSError):  # also of a server that ends the connection or says nothing
        if not insecure:
            raise ValueError(f"the server at {superlink} does not speak TLS; only --insecure would connect to it") from None
        return
    if insecure:
        raise ValueError(f"the server at {superlink} speaks TLS: give --root-certificates and --key in place of --insecure")
