"""Clients of a round side by side: a grid that deals messages out to helpers, each with an inline grid of its own."""

import logging
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain
from typing import Any, NamedTuple

from flwr.app import Message

from fl_app.engines.frames import Frames, from_frames, to_frames
from fl_app.engines.inline import InlineGrid
from fl_app.store.files import RunError

log = logging.getLogger("thorns")


class Line(NamedTuple):
    """A line of a helper's log."""

    level: int
    text: str


class Answered(NamedTuple):
    """A client's reply as frames (a head, its bodies), what its helper logged, whether the client now has a state there."""

    head: bytes
    bodies: Sequence[Any]
    lines: Sequence[Line]
    stateful: bool


class Noted(logging.Handler):
    """Keeps the lines of a log: a helper's own terminal is nobody's."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[Line] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line."""
        self.lines.append(Line(record.levelno, record.getMessage()))

    def taken(self) -> list[Line]:
        """The lines since the last call."""
        lines, self.lines = self.lines, []
        return lines


def answered(grid: InlineGrid, message: Message, noted: Noted) -> Answered:
    """What a helper does with a message."""
    (reply,) = InlineGrid.send_and_receive(grid, [message])
    head, bodies = to_frames([reply])
    return Answered(head, bodies, noted.taken(), len(grid.contexts[message.metadata.dst_node_id].state) > 0)


class HelperLost(Exception):
    """A helper that is no longer there; what it had not answered is dealt anew."""


class DealtGrid(InlineGrid):
    """Deals each batch of messages out evenly; a client that has a state stays with the helper that holds it."""

    @abstractmethod
    def begin(self, number: int) -> int:
        """Start the helpers for a batch of `number` messages; how many there are, 0 to go on without."""

    @abstractmethod
    def ask(self, frames: Frames, shares: dict[int, range]) -> Iterator[tuple[int, Answered | HelperLost]]:
        """Have each helper answer its share of the messages, in order.

        Yields (helper, answer) as they come; of a helper that is lost, nothing more.
        """

    _helpers: set[int] | None = None
    _home: dict[int, int]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Answer each message, side by side."""
        messages = list(messages)
        training = any(message.metadata.message_type.startswith("train") for message in messages)
        if self._helpers is None and training and len(messages) > 1:
            self._helpers, self._home = set(range(self.begin(len(messages)))), {}
        if not self._helpers:  # none yet, or none at all
            return super().send_and_receive(messages, timeout=timeout)
        for message in messages:
            self._number(message)
        replies: dict[str, Message] = {}
        while waiting := [message for message in messages if message.metadata.message_id not in replies]:
            dealt = self._deal(waiting)
            unanswered = {helper: iter(some) for helper, some in dealt.items()}
            ends = list(accumulate(map(len, dealt.values()), initial=0))
            shares = dict(zip(dealt, map(range, ends, ends[1:]), strict=True))
            for helper, answer in self.ask(to_frames(list(chain(*dealt.values()))), shares):
                if isinstance(answer, HelperLost):
                    self._lose(helper, answer)
                    continue
                message = next(unanswered[helper])
                replies[message.metadata.message_id] = self._take(helper, message, answer)
        return [replies[message.metadata.message_id] for message in messages]

    def _deal(self, messages: list[Message]) -> dict[int, list[Message]]:
        dealt: dict[int, list[Message]] = {helper: [] for helper in sorted(self._helpers or ())}
        free = []
        for message in messages:
            home = self._home.get(message.metadata.dst_node_id)
            free.append(message) if home is None else dealt[home].append(message)
        for message in free:
            min(dealt.values(), key=len).append(message)
        return {helper: some for helper, some in dealt.items() if some}

    def _take(self, helper: int, message: Message, answer: Answered) -> Message:
        if answer.stateful:
            self._home[message.metadata.dst_node_id] = helper
        for line in answer.lines:
            log.log(line.level, "%s", line.text)
        (reply,) = from_frames(answer.head, answer.bodies)
        return reply

    def _lose(self, helper: int, lost: HelperLost) -> None:
        assert self._helpers is not None  # set before anything is asked
        self._helpers.discard(helper)
        theirs = sorted(node - 1 for node, home in self._home.items() if home == helper)
        if theirs or not self._helpers:
            what = f"with what the defense of clients {theirs[:5]} remembered" if theirs else "and none is left"
            run = next(iter(self.contexts.values())).run_config.get("run-dir")
            raise RunError(f"{lost}, {what}: go on from the last checkpoint with `thorns run --resume {run}`")
        log.warning("%s: its clients are asked again elsewhere", lost)
