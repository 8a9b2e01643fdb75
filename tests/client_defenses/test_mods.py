"""A defense as a Flower mod: what it changes, what it keeps, and every wrong use with its answer."""

import subprocess
import sys
from dataclasses import dataclass

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.supercore.task_identity import TaskIdentity

import client_defenses
from client_defenses import Defense, Memory, build, defense_mod
from client_defenses.mods import MEMORY, ModError, check_payload
from fl_app.core import plugins
from fl_app.core.seeds import derive

OLD = {"w": torch.linspace(-1, 1, 60).view(6, 10), "b": torch.full((6,), 0.5), "count": torch.tensor(7)}
STEP = {name: torch.linspace(0.01, 0.3, value.numel()).view_as(value) for name, value in OLD.items() if name != "count"}
NEW = {**{name: OLD[name] - 0.1 * value for name, value in STEP.items()}, "count": torch.tensor(8)}


@dataclass(frozen=True, kw_only=True)
class DataSide(Defense):
    """Changes the data."""

    def on_batch(self, step, memory):
        return step


def context(settings, client=0):
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    return Context(run_id=1, node_id=77, node_config={"partition-id": client}, state=RecordDict(), run_config=settings)


def request(kind="train", old=OLD, name="arrays"):
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    content = RecordDict({name: ArrayRecord(dict(old)), "config": ConfigRecord({"server-round": 1})})
    message = Message(content, 77, kind)
    message.metadata.__dict__["_message_id"] = "1"
    return message


def client(reply=NEW, name="arrays", seen=None, more=None):
    """What stands behind the mod."""

    def call_next(message, ctx):
        if seen is not None:
            seen.append(message)
        content = RecordDict({name: ArrayRecord(dict(reply)), "metrics": MetricRecord({"num-examples": 4}), **(more or {})})
        return Message(content, reply_to=message)

    return call_next


def sent(mod, settings, reply=NEW, ctx=None, **named):
    answer = mod(request(**named), ctx or context(settings), client(reply))
    return answer.content["arrays"].to_torch_state_dict()


def reason(mod, settings, reply=NEW, **named):
    """Why a message is refused: an error reply with one line, as no strategy or engine shows more of it."""
    answer = mod(request(), context(settings), client(reply, **named))
    assert answer.has_error()
    assert answer.error.code == ErrorCode.MOD_FAILED_PRECONDITION
    assert answer.error.reason.startswith("defense_mod: ")
    assert len(answer.error.reason.splitlines()) == 1
    return answer.error.reason


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) and a[name].dtype == b[name].dtype for name in a)


def test_no_defense_is_none_to_the_last_bit():
    generator = torch.Generator().manual_seed(0)
    old = {"w": torch.randn(2000, generator=generator)}
    new = {"w": old["w"] + torch.randn(2000, generator=generator) / 2}
    new["w"][0] = 1e-12
    assert not torch.equal(old["w"] + (new["w"] - old["w"]), new["w"])  # what a naive mod would send
    for payload in ("weights", "delta", "gradient"):
        given = new if payload == "weights" else {"w": new["w"] - old["w"]}
        assert same(sent(defense_mod(payload), {"defense": "none + none"}, given, old=old), given)


def test_weights_become_old_plus_the_protected_change():
    got = sent(defense_mod(), {"defense": "prune(ratio=0.5)"})
    update = {name: NEW[name] - OLD[name] for name in STEP}
    expected = build("prune(ratio=0.5)").transform(update, Memory.fresh(0))
    assert same(got, {**{name: OLD[name] + value for name, value in expected.items()}, "count": NEW["count"]})
    pruned = torch.cat([(expected[name] == 0).flatten() for name in STEP])
    assert pruned.sum() == 33
    unchanged = torch.cat([(got[name] == OLD[name]).flatten() for name in STEP])
    assert torch.equal(pruned, unchanged)  # not a digit of what is not sent


@pytest.mark.parametrize("payload", ["delta", "gradient"])
def test_updates_are_transformed_as_they_are(payload):
    got = sent(defense_mod(payload), {"defense": "sign(scale='none')"}, {**STEP, "count": torch.tensor(8)})
    assert same(got, {**{name: torch.sign(value) for name, value in STEP.items()}, "count": torch.tensor(8)})


def test_a_gradient_needs_no_entry_for_buffers():
    assert sent(defense_mod("gradient"), {"defense": "sign"}, {"w": STEP["w"]}).keys() == {"w"}


def test_types_stay_and_float16_is_subtracted_in_float32():
    old = {"w": torch.tensor([1.0, 2.0, 3.0], dtype=torch.float16), "v": torch.ones(2, dtype=torch.float64)}
    new = {"w": torch.tensor([1.5, 2.25, 3.0], dtype=torch.float16), "v": torch.full((2,), 1 + 1e-12, dtype=torch.float64)}
    got = sent(defense_mod(), {"defense": "prune(ratio=0.5)"}, new, old=old)
    assert got["w"].tolist() == [1.5, 2.25, 3.0]
    assert (got["w"].dtype, got["v"].dtype) == (torch.float16, torch.float64)
    # Flower's FedAvg turns counters into floats: the app's next reply has integers again.
    floated = {**OLD, "count": torch.tensor(7.5, dtype=torch.float64)}
    assert sent(defense_mod(), {"defense": "sign"}, old=floated)["count"] == 8


def test_updates_keep_their_types():
    given = {"w": STEP["w"].half(), "b": STEP["b"].double()}
    got = sent(defense_mod("gradient"), {"defense": "sign(scale='none')"}, given)
    assert {name: value.dtype for name, value in got.items()} == {"w": torch.float16, "b": torch.float64}


def test_calls_with_a_fixed_seed_are_counted_one_by_one():
    ctx = context({"defense": "dp_gaussian(scale=0.1)", "defense-seed": 3}, client=5)
    for calls in (1, 2):
        got = sent(defense_mod("gradient"), {}, {"w": STEP["w"]}, ctx)
        wanted = build("dp_gaussian(scale=0.1)").transform({"w": STEP["w"]}, Memory.fresh(derive(3, "defense mod", "5", calls)))
        assert torch.equal(got["w"], wanted["w"])


def test_the_defense_is_read_when_a_message_comes():
    mod = defense_mod(key="guard", arrays="net")
    answer = mod(request(name="net"), context({"guard": "sign"}), client(name="net"))
    assert not same(answer.content["net"].to_torch_state_dict(), NEW)
    answer = mod(request(name="net"), context({"guard": "none"}), client(name="net"))
    assert same(answer.content["net"].to_torch_state_dict(), NEW)
    assert dict(answer.content["metrics"]) == {"num-examples": 4}


def test_only_training_is_touched():
    for kind in ("evaluate", "query", "query.identify"):
        assert same(sent(defense_mod(), {}, kind=kind), NEW)
    assert not same(sent(defense_mod(), {"defense": "sign"}, kind="train.long"), NEW)


def test_a_failed_client_stays_a_failed_client():
    answer = defense_mod()(request(), context({"defense": "sign"}), lambda m, _: Message(Error(1, "no data"), reply_to=m))
    assert answer.error.reason == "no data"


def test_it_works_in_a_client_app():
    app = ClientApp(mods=[defense_mod()])
    app.train()(client())
    answer = app(request(), context({"defense": "prune(ratio=1.0)"}))
    assert same(answer.content["arrays"].to_torch_state_dict(), {**OLD, "count": NEW["count"]})


def test_what_a_defense_remembers_stays_with_the_client():
    """Error feedback: what was not sent in a round is sent in a later one, and leaves in no other way."""
    ctx, settings = context({"defense": "prune(ratio=0.5, memory=True) + none"}), {}
    mod, total = defense_mod("delta"), {name: torch.zeros_like(value) for name, value in STEP.items()}
    for _ in range(12):
        got = sent(mod, settings, STEP, ctx)
        total = {name: value + got[name] for name, value in total.items()}
    kept = ctx.state[MEMORY].to_torch_state_dict()
    assert kept
    missing = torch.cat([(12 * STEP[name] - value).flatten() for name, value in total.items()])
    held = torch.cat([value.flatten() for value in kept.values() if value.numel() > 1])
    torch.testing.assert_close(missing.sum(), held.sum(), rtol=1e-4, atol=1e-4)
    assert set(mod(request(), ctx, client(STEP)).content) == {"arrays", "metrics"}


def test_draws_are_secret_unless_a_simulation_fixes_them():
    mod, settings = defense_mod("delta"), {"defense": "dp_gaussian(scale=0.1)"}
    first, second = (sent(mod, settings, STEP) for _ in range(2))
    assert not same(first, second)
    fixed = {**settings, "defense-seed": 3}
    runs = [[sent(mod, fixed, STEP, ctx) for _ in range(2)] for ctx in (context(fixed), context(fixed), context(fixed, 1))]
    assert same(runs[0][0], runs[1][0])
    assert same(runs[0][1], runs[1][1])
    assert not same(runs[0][0], runs[0][1])  # each round draws anew
    assert not same(runs[0][0], runs[2][0])  # and so does each client


@pytest.mark.parametrize(
    ("mod", "settings", "hints"),
    [
        (defense_mod(), {}, ['defense_mod(defense="...")', 'add defense = "..."', "[tool.flwr.app.config]", "prune"]),
        (defense_mod(key="guard"), {"defense": "sign"}, ['add guard = "..."']),
        (defense_mod(), {"defense": 3}, ['add defense = "..."']),
        (defense_mod(), {"defense": "prun"}, ["did you mean 'prune'"]),
        (defense_mod(defense="prun"), {"defense": "prune"}, ["did you mean 'prune'"]),
        (defense_mod(), {"defense": "sign + data_side"}, ["on_batch", "defense.backward(model, x, y)"]),
        (defense_mod(), {"defense": "drop_fedsgd"}, ["(gradient)", "defense.backward(model, x, y)"]),
        (defense_mod(private=True), {"defense": "prune"}, ["'prune' promises no epsilon", "leave out private=True"]),
        (defense_mod(arrays="net"), {"defense": "sign"}, ["no arrays called 'net' (it has: arrays)", "arrays=..."]),
        (defense_mod(), {"defense": "sign", "defense-seed": "x"}, ["defense-seed must be a whole number"]),
    ],
    ids=lambda value: None if callable(value) else str(value),
)
def test_wrong_uses_are_refused_before_the_client_trains(mod, settings, hints, monkeypatch):
    monkeypatch.setitem(client_defenses.DEFENSES, "data_side", DataSide)
    trained = []
    why = reason(mod, settings, seen=trained)
    assert all(hint in why for hint in hints), why
    assert trained == []


def test_a_defense_named_in_the_app_is_not_the_servers_to_change():
    got = sent(defense_mod(defense="prune(ratio=0.5)"), {"defense": "none"})
    assert same(got, sent(defense_mod(), {"defense": "prune(ratio=0.5)"}))
    assert not same(got, NEW)


def test_what_goes_wrong_in_the_app_itself_is_not_called_a_refusal():
    def fails(message, ctx):
        raise ValueError("out of data")

    with pytest.raises(ValueError, match="out of data"):
        defense_mod(defense="sign")(request(), context({}), fails)


def test_an_epsilon_is_given_by_those_who_have_one():
    assert not same(sent(defense_mod(private=True), {"defense": "dp_gaussian"}), NEW)


@pytest.mark.parametrize(
    ("payload", "reply", "hint"),
    [
        ("gradient", NEW, "holds weights: write defense_mod()"),
        ("delta", NEW, "holds weights"),
        ("delta", OLD, "holds weights"),
        ("weights", STEP, "defense_mod('delta')"),
        ("weights", {name: -0.01 * value for name, value in OLD.items() if name != "count"}, "defense_mod('delta')"),
        ("gradient", {"w": STEP["w"], "x": STEP["b"]}, "x cannot be the gradient"),
        ("weights", {"w": NEW["w"].T.contiguous()}, "w cannot be the weights"),
    ],
)
def test_a_payload_that_is_not_what_was_declared_never_leaves(payload, reply, hint):
    assert hint in reason(defense_mod(payload), {"defense": "sign"}, reply)


def test_other_arrays_do_not_slip_out():
    more = {"extra": ArrayRecord({"g": torch.ones(2)})}
    assert "unprotected" in reason(defense_mod(), {"defense": "sign"}, more=more)
    with pytest.raises(ModError, match="'weights', 'delta' or 'gradient'"):
        defense_mod("weight")


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("scale", [1e-6, 1e-3, 0.1, 1.0, 10.0, 1e4])
def test_the_payload_check_does_not_misfire(seed, scale):
    """Updates of every size, random or along the weights as weight decay makes them, beside weights of every size."""
    draw = torch.Generator().manual_seed(seed)
    for size in (20, 10_000):
        old = {"w": torch.randn(size, generator=draw)}
        noise = scale * torch.randn(size, generator=draw)
        for update in (noise, noise - 0.1 * old["w"], noise + 0.01 * old["w"]):
            check_payload("delta", {"w": update}, old)
            check_payload("gradient", {"w": update}, old)
            check_payload("weights", {"w": old["w"] + update}, old)
    zero = {"w": torch.zeros(size)}
    for payload in ("weights", "delta", "gradient"):
        check_payload(payload, {"w": noise}, zero)
        check_payload(payload, zero, zero)


def test_importing_the_defenses_does_not_import_flower():
    code = "import sys, client_defenses; client_defenses.defense_mod(); assert 'flwr' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_defense_from_outside_needs_the_clients_permission(outside):
    name = f"{outside()}:Halve"
    assert f"{name} is code from outside Thorns" in reason(defense_mod("gradient"), {"defense": name}, STEP)
    plugins.allow([name])  # as an app's own client_app.py would
    got = sent(defense_mod("gradient"), {"defense": name}, STEP)
    assert same(got, {key: 0.5 * value for key, value in STEP.items()})
