"""What a round costs beyond its gradients: bytes that travel, and the time that the server waits for clients."""

import time
from collections.abc import Iterable

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fl_app.core.wire import HEADER, TensorArray
from fl_app.engines.around import GridAround


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


class MeteredGrid(GridAround):
    """Any grid, with a count of what goes through it."""

    def __init__(self, grid: Grid) -> None:
        super().__init__(grid)
        self._sent = self._received = 0
        self._seconds = 0.0

    def spent(self) -> dict[str, float | int]:
        """What was spent since the last call: bytes to clients, bytes from them, seconds until they had answered."""
        found = {"sent_bytes": self._sent, "received_bytes": self._received, "clients_seconds": round(self._seconds, 4)}
        self._sent, self._received, self._seconds = 0, 0, 0.0
        return found

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Send messages, collect the replies, count both."""
        messages, began = list(messages), time.monotonic()
        self._sent += sum(payload(message.content) for message in messages)
        replies = list(self._grid.send_and_receive(messages, timeout=timeout))
        self._received += sum(payload(reply.content) for reply in replies if reply.has_content())
        self._seconds += time.monotonic() - began
        return replies
