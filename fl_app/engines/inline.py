"""The inline engine: an in-process Flower Grid that calls the same ClientApp, for thousands of small rounds."""

import logging
from collections.abc import Iterable
from itertools import count

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from fl_app.experiment.toml import Value

log = logging.getLogger("thorns")


class InlineGrid(Grid):
    """Real Messages and Contexts, no processes, no polling; node `i + 1` is client `i`."""

    def __init__(self, client_app: ClientApp, clients: int, run_config: dict[str, Value]) -> None:
        self._app = client_app
        self._run = Run.create_empty(run_id=1)
        # The Message constructor takes the sender from here.
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, SUPERLINK_NODE_ID
        self.contexts = {
            client + 1: Context(
                run_id=1,
                node_id=client + 1,
                node_config={"partition-id": client, "num-partitions": clients},
                state=RecordDict(),
                run_config=run_config,
            )
            for client in range(clients)
        }
        self._replies: dict[str, Message] = {}
        self._ids = count(1)

    def set_run(self, run: Run) -> None:
        """Set the run."""
        self._run = run

    @property
    def run(self) -> Run:
        """The run."""
        return self._run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """Make a message."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """The nodes, one per client."""
        return self.contexts.keys()

    def _answer(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        self._number(message)
        try:
            reply = self._app(message, self.contexts[node])
        except Exception as error:  # as in Flower's own engines, a client that fails must not end the server
            log.debug("client on node %d failed", node, exc_info=error)
            reply = Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, f"{type(error).__name__}: {error}"), reply_to=message)
        self._number(reply)
        return reply

    def _number(self, message: Message) -> None:
        """Give a message an id, unless the process that it comes from did."""
        if not message.metadata.message_id:
            message.metadata.__dict__["_message_id"] = str(next(self._ids))

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Answer each message at once and keep the replies."""
        messages = list(messages)
        for message, reply in zip(messages, self.send_and_receive(messages), strict=True):
            self._replies[message.metadata.message_id] = reply
        return [message.metadata.message_id for message in messages]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The kept replies to these messages."""
        return [self._replies.pop(key) for key in message_ids if key in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Answer each message."""
        return [self._answer(message) for message in messages]
