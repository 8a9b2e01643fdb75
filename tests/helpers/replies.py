"""Replies to a strategy, good ones and any other, without a model."""

import torch
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fl_app.core.local import LocalRule
from fl_app.core.wire import to_record
from fl_app.engines.inline import InlineGrid
from strategies import FedSGD, optimizers

SHAPES = {"a": (3, 2), "b": (4,)}


RULE = LocalRule(batch_size=8)


def tensors(value):
    return {name: torch.full(shape, float(value)) for name, shape in SHAPES.items()}


def app_of(answer, clients=None):
    """A client app that answers a round with answer(client, round) -> (arrays, metrics), or raises."""
    app = ClientApp()

    @app.train()
    def train(message, context):
        arrays, metrics = answer(context.node_config["partition-id"], message.content["config"]["server-round"])
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    @app.query("identify")
    def identify(message, context):
        number = clients or context.node_config["num-partitions"]
        identity = ConfigRecord({"client": context.node_config["partition-id"], "clients": number})
        return Message(RecordDict({"identity": identity}), reply_to=message)

    return app


def good(value, number=8):
    return to_record(tensors(value)), MetricRecord({"num-examples": number})


def make(answer, clients=3, kind=FedSGD, optimizer="sgd(lr=1)", **settings):
    strategy = kind(settings.pop("rule", RULE), optimizers.build(optimizer), clients=clients, **settings)
    return strategy, InlineGrid(app_of(answer), clients, {})
