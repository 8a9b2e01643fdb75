"""The strategy: means and steps against plain torch, and replies that must not get through."""

import logging

import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_app.core.local import LocalRule
from fl_app.core.wire import to_record, to_tensors
from fl_app.engines.inline import InlineGrid
from helpers.replies import app_of, good, make, tensors
from strategies import FedDelta
from strategies.roster import Roster, RosterError


def one_round(strategy, grid, weights=None, server_round=1):
    weights = weights or to_record(tensors(0))
    replies = grid.send_and_receive(strategy.configure_train(server_round, weights, ConfigRecord(), grid))
    return strategy.aggregate_train(server_round, replies)


@pytest.mark.parametrize(("weighting", "mean"), [("examples", (1 * 2 + 2 * 4 + 3 * 8) / 14), ("equal", 2.0)])
def test_the_mean_is_weighted_as_configured(weighting, mean):
    strategy, grid = make(lambda client, _: good(client + 1, 2 ** (client + 1)), weighting=weighting)
    arrays, metrics = one_round(strategy, grid)
    for value in to_tensors(arrays).values():
        torch.testing.assert_close(value, torch.full_like(value, -mean))
    assert dict(metrics) == {"accepted": 3, "rejected": 0, "applied": 1}


def test_a_delta_is_added():
    rule = LocalRule(kind="delta", batch_size=4, steps=2, lr=0.1)
    strategy, grid = make(lambda client, _: good(client + 1), kind=FedDelta, rule=rule)
    arrays, _ = one_round(strategy, grid)
    assert all(torch.all(value == 2.0) for value in to_tensors(arrays).values())


@pytest.mark.parametrize(
    ("spec", "reference"),
    [
        ("sgd(lr=0.1, momentum=0.9, weight_decay=0.01)", lambda p: torch.optim.SGD(p, 0.1, 0.9, weight_decay=0.01)),
        ("adam(lr=0.05)", lambda p: torch.optim.Adam(p, 0.05)),
    ],
)
def test_the_optimizer_is_torchs_and_its_rate_drops_when_told(spec, reference):
    strategy, grid = make(lambda client, r: good((client - 1) + r), optimizer=spec[:-1] + ", drop_at=[3], drop=0.5)")
    weights = to_record(tensors(1))
    params = [torch.nn.Parameter(value.clone()) for value in tensors(1).values()]
    optimizer = reference(params)
    for server_round in range(1, 6):
        weights, _ = one_round(strategy, grid, weights, server_round)
        if server_round == 3:
            optimizer.param_groups[0]["lr"] *= 0.5
        for p in params:
            p.grad = torch.full_like(p, float(server_round))
        optimizer.step()
        for ours, theirs in zip(to_tensors(weights).values(), params, strict=True):
            torch.testing.assert_close(ours, theirs.detach())


def test_published_weights_are_never_changed_afterwards():
    strategy, grid = make(lambda client, _: good(1))
    first, _ = one_round(strategy, grid)
    copy = {name: value.clone() for name, value in to_tensors(first).items()}
    one_round(strategy, grid, first, 2)
    assert all(torch.equal(copy[name], value) for name, value in to_tensors(first).items())


def raw(name, shape, dtype="float32", data=None):
    record = to_record(tensors(1))
    array = Array(torch.zeros(shape, dtype=getattr(torch, dtype)).numpy())
    record[name] = array if data is None else Array(array.dtype, array.shape, array.stype, data)
    return record


def without(name):
    record = to_record(tensors(1))
    del record[name]
    return record


BAD = {
    "missing": (lambda: (without("a"), good(1)[1]), "missing ['a']"),
    "unknown": (lambda: (raw("c", (2,)), good(1)[1]), "unknown ['c']"),
    "shape": (lambda: (raw("a", (2, 3)), good(1)[1]), "a has the shape (2, 3), not (3, 2)"),
    "dtype": (lambda: (raw("a", (3, 2), "float64"), good(1)[1]), "torch.float64"),
    "nan": (lambda: good(float("nan")), "not finite"),
    "infinite": (lambda: good(float("-inf")), "not finite"),
    "bytes": (lambda: (raw("a", (3, 2), data=b"junk"), good(1)[1]), "a does not start"),
    "no examples": (lambda: (good(1)[0], MetricRecord({"loss": 1.0})), "num-examples is None"),
    "too many examples": (lambda: good(1, 9), "num-examples is 9"),
    "negative examples": (lambda: good(1, -8), "num-examples is -8"),
    "raises": (lambda: 1 / 0, "the client failed: ZeroDivisionError"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_reply_is_rejected_with_one_warning_and_the_round_goes_on(kind, caplog):
    make_bad, reason = BAD[kind]
    strategy, grid = make(lambda client, _: make_bad() if client == 1 else good(client + 1))
    with caplog.at_level(logging.WARNING, "thorns"):
        arrays, metrics = one_round(strategy, grid, server_round=7)
    assert all(torch.all(value == -2.0) for value in to_tensors(arrays).values())  # the mean of 1 and 3
    assert dict(metrics) == {"accepted": 2, "rejected": 1, "applied": 1}
    (warning,) = caplog.messages
    assert warning.startswith("round 7: the reply of client 1 is rejected")
    assert reason in warning


def test_with_too_few_replies_the_weights_stay(caplog):
    strategy, grid = make(lambda client, _: good(1) if client == 0 else good(float("nan")), min_clients=2)
    arrays, metrics = one_round(strategy, grid)
    assert arrays is None
    assert dict(metrics) == {"accepted": 1, "rejected": 2, "applied": 0}
    assert "the weights stay as they were" in caplog.messages[-1]


def test_finite_updates_whose_sum_overflows_change_nothing():
    strategy, grid = make(lambda client, _: good(3e38), weighting="equal", clients=1)
    assert one_round(strategy, grid)[0] is not None
    strategy, grid = make(lambda client, _: (to_record({k: v * 1e38 * 3.4 for k, v in tensors(1).items()}), good(1)[1]))
    strategy._mean.fill_(0)
    arrays, _ = one_round(strategy, grid)
    assert arrays is None or all(bool(value.isfinite().all()) for value in to_tensors(arrays).values())


def test_replies_nobody_asked_for_and_second_replies_are_rejected(caplog):
    strategy, grid = make(lambda client, _: good(client + 1), fraction=0.34)
    asked = strategy.configure_train(1, to_record(tensors(0)), ConfigRecord(), grid)
    (message,) = asked
    replies = list(grid.send_and_receive([message, message]))
    stranger = next(node for node in grid.get_node_ids() if node != message.metadata.dst_node_id)
    foreign = Message(RecordDict({"arrays": message.content["arrays"], "config": message.content["config"]}), stranger, "train")
    replies += grid.send_and_receive([foreign])
    _, metrics = strategy.aggregate_train(1, replies)
    assert dict(metrics) == {"accepted": 1, "rejected": 2, "applied": 1}
    assert "second reply" in caplog.text
    assert "not asked" in caplog.text


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(st.sampled_from(["a", "b", "c", ""]), st.binary(max_size=150), max_size=3),
    st.dictionaries(st.sampled_from(["num-examples", "x"]), st.integers(-(2**62), 2**62) | st.floats(), max_size=2),
)
def test_fuzzed_replies_neither_crash_nor_change_the_weights(arrays, metrics):
    record = ArrayRecord({name: Array("float32", (2,), "numpy.ndarray", data) for name, data in arrays.items()})
    strategy, grid = make(lambda client, _: (record, MetricRecord(metrics)))
    assert one_round(strategy, grid)[0] is None
    assert strategy.last_counts == {"accepted": 0, "rejected": 3, "applied": 0}


def test_sampling_is_a_function_of_the_seed():
    def chosen(seed, **settings):
        strategy, _ = make(None, clients=20, seed=seed, **settings)
        return [strategy.chosen(server_round) for server_round in range(1, 50)]

    rounds = chosen(1, fraction=0.25)
    assert all(len(clients) == 5 for clients in rounds)
    assert {client for clients in rounds for client in clients} == set(range(20))
    assert rounds == chosen(1, fraction=0.25)
    assert rounds != chosen(2, fraction=0.25)
    assert chosen(1, fraction=0.01, min_clients=3)[0] == chosen(1, fraction=0.15)[0]


def test_a_federation_of_another_size_is_explained():
    grid = InlineGrid(app_of(None, clients=2), 4, {})
    with pytest.raises(RosterError, match=r"clients=4, but the federation has 2 nodes.*num-supernodes=4"):
        Roster(4).connected(grid)


def test_a_restarted_client_is_the_same_client():
    grid = InlineGrid(app_of(None), 3, {})
    roster = Roster(3)
    assert roster.connected(grid) == {0: 1, 1: 2, 2: 3}
    context = grid.contexts.pop(2)
    assert roster.connected(grid) == {0: 1, 2: 3}
    grid.contexts[77] = context
    assert roster.connected(grid) == {0: 1, 1: 77, 2: 3}


def test_an_optimizer_goes_on_from_what_it_remembered():
    def made():
        return make(lambda client, server_round: good(client + server_round), optimizer="sgd(lr=0.1, momentum=0.9)")

    whole, grid = made()
    first, _ = one_round(whole, grid)
    state = whole.optimizer_state()
    expected = to_tensors(one_round(whole, grid, first, 2)[0])
    assert not torch.equal(state["momentum_buffer"], whole.optimizer_state()["momentum_buffer"]), "a copy of that time"
    resumed, grid = made()
    given = dict(state)
    resumed.restore_optimizer(given)
    given.clear()
    kept = resumed.optimizer_state()
    assert kept.keys() == state.keys() == {"momentum_buffer"}
    kept.clear()  # neither what was given nor what is handed out is the strategy's own
    found = to_tensors(one_round(resumed, grid, first, 2)[0])
    assert all(torch.equal(found[name], value) for name, value in expected.items())
