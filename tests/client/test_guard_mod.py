"""The guard as a mod of somebody else's Flower app: it sees the weights before the app does."""

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.supercore.task_identity import TaskIdentity
from torch import nn

from client_defenses import defense_mod
from client_defenses.mods import ModError
from fl_app.client.guard import guard_mod
from fl_app.core.spec import SpecError
from helpers.crafted import fishing_class, imprint_front, traps


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 60), nn.ReLU(), nn.Linear(60, 10))


OLD = {name: value.clone() for name, value in net().state_dict().items()}
NEW = {name: value + 0.01 * torch.sin(torch.arange(value.numel())).view_as(value) for name, value in OLD.items()}


def answer(mod, weights=OLD, reply=NEW, trained=None, kind="train", mods=()):
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    app = ClientApp(mods=[mod, *mods])

    def work(message, _context):
        if trained is not None:
            trained.append(message)
        content = RecordDict({"arrays": ArrayRecord(dict(reply)), "metrics": MetricRecord({"num-examples": 4})})
        return Message(content, reply_to=message)

    app.train()(work)
    app.evaluate()(work)
    content = RecordDict({"arrays": ArrayRecord(dict(weights)), "config": ConfigRecord({"server-round": 1})})
    message = Message(content, 77, kind)
    message.metadata.__dict__["_message_id"] = "1"
    return app(message, Context(run_id=1, node_id=77, node_config={}, state=RecordDict(), run_config={}))


def test_honest_weights_pass_and_the_reply_is_what_it_was():
    back = answer(guard_mod(model=net()))
    assert not back.has_error()
    found = back.content["arrays"].to_torch_state_dict()
    assert all(torch.equal(found[name], value) for name, value in NEW.items())


@pytest.mark.parametrize(
    "crafted",
    [
        fishing_class(OLD),
        {**OLD, "3.weight": traps(OLD["3.weight"])},
        imprint_front(OLD, 64),
        {**OLD, "5.bias": torch.full((10,), torch.nan)},
    ],
    ids=["fishing", "traps", "imprint", "not finite"],
)
def test_crafted_weights_are_refused_before_the_app_sees_them(crafted, caplog):
    trained = []
    back = answer(guard_mod(), crafted, trained=trained)
    assert back.error.code == ErrorCode.MOD_FAILED_PRECONDITION
    assert back.error.reason == "guard_mod: refused"
    assert not trained
    assert any("more than" in line for line in caplog.messages)
    assert "more than" in answer(guard_mod(says_why=True), crafted).error.reason
    assert not answer(guard_mod(guard="warn"), crafted).has_error()
    assert not answer(guard_mod(), crafted, kind="evaluate").has_error()


def test_another_architecture_than_the_agreed_one_is_refused_whatever_its_weights(caplog):
    other = {**OLD, "6.weight": torch.randn(10, 10)}
    assert answer(guard_mod(model=net(), guard="warn"), other).error.reason == "guard_mod: refused"
    assert any("not those of the agreed model" in line for line in caplog.messages)


def test_a_demand_on_the_update_looks_at_the_reply():
    """One example's gradient of a fully connected layer is of rank 1, and so is what the app would send."""
    model = net()
    x, y = torch.rand(8, 1, 8, 8), torch.arange(8)
    for number, alone in ((1, True), (8, False)):
        grads = torch.autograd.grad(nn.functional.cross_entropy(model(x[:number]), y[:number]), list(model.parameters()))
        for payload in ("gradient", "delta", "weights"):
            update = dict(zip(OLD, grads, strict=True))
            sent = {name: OLD[name] - 0.01 * value for name, value in update.items()} if payload == "weights" else update
            back = answer(guard_mod(payload, guard="refuse(lone=100.0)"), reply=sent)
            assert back.has_error() is alone, (number, payload)
    assert "holds weights" in answer(guard_mod("gradient", guard="refuse(lone=100.0)"), reply=NEW).error.reason


def test_it_stands_beside_a_defense():
    back = answer(guard_mod(), mods=[defense_mod(defense="prune(ratio=1.0)")])
    assert torch.equal(back.content["arrays"].to_torch_state_dict()["5.bias"], OLD["5.bias"])
    assert answer(guard_mod(), fishing_class(OLD), mods=[defense_mod(defense="sign")]).error.reason == "guard_mod: refused"


def test_wrong_uses_are_said_when_the_mod_is_made():
    with pytest.raises(ModError, match="checks nothing"):
        guard_mod(guard="off")
    with pytest.raises(ModError, match="payload"):
        guard_mod("update")
    with pytest.raises(SpecError, match="valid"):
        guard_mod(guard="refuse(sollo=1.0)")
    assert "no arrays called" in answer(guard_mod(arrays="net")).error.reason
