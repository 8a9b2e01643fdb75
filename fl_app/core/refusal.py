"""How a mod refuses a message: with an error reply, as Flower's own mods do.

Every strategy shows it as one line. An exception would be a client that crashed, and Flower would print its traceback.
"""

import logging

from flwr.app import Error, Message
from flwr.common.constant import ErrorCode


def refusal(message: Message, reason: str, why: str = "") -> Message:
    """The reply that refuses a message; the reason is also in the client's own log, which may say more by `why`."""
    line = " ".join(reason.split())
    logging.getLogger("flwr").error(why or line)
    return Message(Error(ErrorCode.MOD_FAILED_PRECONDITION, line), reply_to=message)
