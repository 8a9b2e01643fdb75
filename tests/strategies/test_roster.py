"""Which node is which client: asked once, waited for, and what a node cannot do to the others."""

import time

import pytest
import torch
from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.common.constant import ErrorCode

from fl_app.engines.inline import InlineGrid
from helpers.replies import app_of
from strategies.roster import IDENTIFY, Roster, RosterError, one_line, sample_clients


class Nodes(InlineGrid):
    """Nodes with these answers: a client's number, what its identity says, or an error; `asked` are all questions in order."""

    def __init__(self, answers, clients=3):
        super().__init__(app_of(None), clients, {})
        self.answers, self.clients, self.asked, self.timeouts = dict(answers), clients, [], []

    def get_node_ids(self):
        return list(self.answers)

    def _answer(self, message):
        node = message.metadata.dst_node_id
        assert message.metadata.message_type == IDENTIFY
        self.asked.append(node)
        message.metadata.__dict__["_message_id"] = str(next(self._ids))
        answer = self.answers[node]
        if isinstance(answer, int):
            answer = {"client": answer, "clients": self.clients}
        content = answer if isinstance(answer, Error) else RecordDict({"identity": ConfigRecord(answer)})
        return Message(content, reply_to=message)

    def send_and_receive(self, messages, *, timeout=None):
        self.timeouts.append(timeout)
        return super().send_and_receive(messages, timeout=timeout)


def test_clients_are_in_order_and_asked_once():
    grid = Nodes({30: 0, 10: 2, 20: 1})
    roster = Roster(3, patience=7.0)
    for _ in range(2):
        assert list(roster.connected(grid).items()) == [(0, 30), (1, 20), (2, 10)]
    assert grid.asked == [10, 20, 30]
    assert grid.timeouts == [7.0]


def test_the_first_time_it_waits_for_all_and_then_for_nobody(monkeypatch, caplog):
    grid, slept = Nodes({1: 0}), []

    def sleep(seconds):
        slept.append(seconds)
        grid.answers[len(slept) + 1] = len(slept)

    monkeypatch.setattr(time, "sleep", sleep)
    roster = Roster(3)
    assert roster.connected(grid) == {0: 1, 1: 2, 2: 3}
    assert len(slept) == 2
    del grid.answers[2]
    assert roster.connected(grid) == {0: 1, 2: 3}
    assert len(slept) == 2
    assert caplog.messages == []


def test_its_patience_ends_with_a_warning(monkeypatch, caplog):
    clock = iter(range(100))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    assert Roster(3, patience=4.0).connected(Nodes({1: 0})) == {0: 1}
    assert next(clock) == 6  # 0 when it began, then 1 to 5
    assert caplog.messages == ["only 1 of 3 clients are connected after 4 s"]


@pytest.mark.parametrize("code", [ErrorCode.NODE_UNAVAILABLE, ErrorCode.MESSAGE_UNAVAILABLE])
def test_a_node_that_is_away_is_asked_again(code, caplog):
    grid = Nodes({1: 0, 2: 1, 3: 2})
    roster = Roster(3)
    roster.connected(grid)
    grid.answers[4] = Error(code, "gone\nfor now")
    assert roster.connected(grid) == {0: 1, 1: 2, 2: 3}
    grid.answers[4] = 1
    assert roster.connected(grid) == {0: 1, 1: 4, 2: 3}
    assert grid.asked == [1, 2, 3, 4, 4]
    assert caplog.messages == ["node 4 did not say which client it is; it is asked again: gone for now"]


@pytest.mark.parametrize("answer", [-1, 3, {"client": "1", "clients": 3}, {}, {"client": 1.0, "clients": 3}])
def test_a_node_that_is_none_of_the_clients_is_ignored_for_good(answer, caplog):
    grid = Nodes({1: 0, 2: 1, 3: 2, 4: answer})
    roster = Roster(3)
    for _ in range(2):
        assert roster.connected(grid) == {0: 1, 1: 2, 2: 3}
    assert grid.asked == [1, 2, 3, 4]
    (message,) = caplog.messages
    assert message.startswith("node 4 is ignored: it calls itself client")


@pytest.mark.parametrize("answer", [Error(1, "no data"), {"client": 1, "clients": 9}])
def test_a_node_that_cannot_take_part_ends_no_run_but_its_own(answer, caplog):
    grid = Nodes({1: 0, 2: answer, 3: 2, 4: 1})
    roster = Roster(3)
    for _ in range(2):
        assert roster.connected(grid) == {0: 1, 1: 4, 2: 3}
    assert grid.asked == [1, 2, 3, 4]
    assert len(caplog.messages) == 1
    with pytest.raises(RosterError, match=r"node 2 cannot take part: no data|the federation has 9 nodes"):
        Roster(3).connected(Nodes({2: answer}))


def test_the_newest_node_speaks_for_a_client_and_the_old_one_no_more():
    grid = Nodes({1: 0, 2: 1, 3: 2})
    roster = Roster(3)
    roster.connected(grid)
    grid.answers[9] = 1
    for _ in range(2):
        assert roster.connected(grid) == {0: 1, 1: 9, 2: 3}
    assert roster.client_of == {1: 0, 9: 1, 3: 2}
    assert grid.asked == [1, 2, 3, 9], "the old node is not asked again though it is still there"


def test_what_a_client_says_is_one_line_of_some_characters():
    assert one_line("a\nb\x1bc") == "a b c"
    assert one_line("x" * 501) == "x" * 500
    assert one_line("abc", 2) == "ab"
    assert one_line(7) == "7"


def test_a_share_of_the_clients_is_drawn_but_never_fewer_than_the_least():
    assert sample_clients(4, 1.0, 1, 0, 1) == sample_clients(4, 0.1, 4, 0, 1) == [0, 1, 2, 3]
    assert len(sample_clients(10, 0.3, 1, 0, 1)) == len(sample_clients(10, 0.1, 3, 0, 1)) == 3
    assert sample_clients(10, 0.3, 1, 0, 1) == sorted(sample_clients(10, 0.3, 1, 0, 1))
    counts = torch.zeros(10)
    for server_round in range(300):
        counts[sample_clients(10, 0.3, 1, 5, server_round)] += 1
    assert counts.min() > 60
    assert sample_clients(10, 0.3, 1, 0, 1) != sample_clients(10, 0.3, 1, 0, 2)
