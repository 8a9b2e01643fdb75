"""How a client's update reaches the server: as it is, masked (secagg) or encrypted, as the run's `visibility` says."""

import logging
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from flwr.app import Context, Message
from flwr.clientapp.typing import ClientAppCallable

from fl_app.client.policy import KEY_FILE
from fl_app.client.secret import make_private, read_private
from fl_app.core.refusal import refusal
from fl_app.store.files import RunError
from fl_app.store.runs import RunDir

# Masks bring Flower's old server with them, and ciphertexts TenSEAL: imported by the runs that use them.
if TYPE_CHECKING:
    from strategies.ckks import Key

log = logging.getLogger("thorns")
RUN_KEY = "encryption.key"
"""In the folder `clients` of a run directory: the key of a simulation, whose clients are all on one machine."""


def aggregation_mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """The protocol of the run around this client."""
    visibility = context.run_config.get("visibility")
    if KEY_FILE in context.node_config and visibility != "encrypted" and message.metadata.message_type.startswith("train"):
        return refusal(message, "this client has an encryption key: it answers runs with visibility='encrypted' alone")
    if visibility == "secagg":
        from strategies.secagg import secagg_mod

        return secagg_mod(message, context, call_next)
    if visibility == "encrypted":
        from strategies.encrypted import encrypted_mod

        return encrypted_mod(key_of)(message, context, call_next)
    return call_next(message, context)


def key_of(context: Context) -> "Key":
    """The key of this client: of the file in its node config, else of the run directory if that is on this machine."""
    from strategies.ckks import CipherError, Key

    given = context.node_config.get(KEY_FILE)
    try:
        if given is None:
            run = RunDir.open(Path(str(context.run_config.get("run-dir", ""))))
            path = run.path / "clients" / RUN_KEY
            if not path.exists():
                make_private(path, Key.make().to_bytes())
        else:
            path = Path(str(given)).expanduser()
        stamp = path.stat()
        return _read(path, stamp.st_ctime_ns, stamp.st_size)
    except RunError:
        raise CipherError(f"this client has no encryption key: name its file in the node config, {KEY_FILE}=...") from None
    except OSError as error:
        why: object = error.strerror
    except CipherError as error:
        why = error
    log.error("the encryption key cannot be used: %s", why)
    raise CipherError("this client's encryption key cannot be used; its log says why")


@lru_cache(maxsize=4)
def _read(path: Path, changed: int, size: int) -> "Key":
    """Reading a key takes longer than sealing with it; one that was changed is read again."""
    from strategies.ckks import KEY_BYTES, Key

    return Key.from_bytes(read_private(path, KEY_BYTES + 1))
