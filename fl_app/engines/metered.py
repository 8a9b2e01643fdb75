"""What a round costs beyond its gradients: bytes that travel, and the time that the server waits for clients."""

import time
from collections.abc import Iterable

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.run import Run

from fl_app.core.wire import HEADER, TensorArray


def payload(content: RecordDict) -> int:
    """Bytes of numbers in arrays, and of bytes in config records: what grows with the model, on every engine the same."""
    total = 0
    for record in content.array_records.values():
        for array in record.values():
            # Within one process arrays are not made into bytes, and must not be for the sake of counting.
            if isinstance(array, TensorArray):
                total += array.tensor.nbytes
            else:
                header = HEADER.match(array.data)
                total += len(array.data) - (header.end() if header else 0)
    for config in content.config_records.values():
        for value in config.values():
            parts = value if isinstance(value, list) else [value]
            total += sum(len(part) for part in parts if isinstance(part, bytes))
    return total


class MeteredGrid(Grid):
    """Any grid, with a count of what goes through it."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._sent = self._received = 0
        self._seconds = 0.0

    def spent(self) -> dict[str, float | int]:
        """What was spent since the last call: bytes to clients, bytes from them, seconds until they had answered."""
        found = {"sent_bytes": self._sent, "received_bytes": self._received, "clients_seconds": round(self._seconds, 4)}
        self._sent, self._received, self._seconds = 0, 0, 0.0
        return found

    def set_run(self, run: Run) -> None:
        """Set the run."""
        self._grid.set_run(run)

    @property
    def run(self) -> Run:
        """The run."""
        return self._grid.run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """Make a message."""
        return self._grid.create_message(content, message_type, dst_node_id, group_id, ttl)

    def get_node_ids(self) -> Iterable[int]:
        """The connected nodes."""
        return self._grid.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages; their ids."""
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The replies that are there."""
        return self._grid.pull_messages(message_ids)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Send messages, collect the replies, count both."""
        messages, began = list(messages), time.monotonic()
        self._sent += sum(payload(message.content) for message in messages)
        replies = list(self._grid.send_and_receive(messages, timeout=timeout))
        self._received += sum(payload(reply.content) for reply in replies if reply.has_content())
        self._seconds += time.monotonic() - began
        return replies
