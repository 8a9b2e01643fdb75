"""A client that does as a plan says: in some rounds it hangs, is late, or sends what no client should.

The plan is a JSON file, {client: {round: fault}}; in all other rounds it is the client app itself. Some faults are beneath
what a ClientApp can do, so this module also takes the place of the node's `_send`: it is for tests alone.
"""

import json
import os
import time
from collections.abc import Callable
from copy import copy
from pathlib import Path
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_id, get_object_tree

from faults import PLAN, marker
from fl_app.client_app import app as inner
from fl_app.core.wire import to_record, to_tensors
from fl_app.engines.grpc.node import Node

BIG_BYTES = 300_000_000
honest_send = Node._send
fault_of_send = ""


def changed(reply: Message, change: Callable[[torch.Tensor], torch.Tensor]) -> RecordDict:
    """The content of a reply with its first array changed."""
    tensors = to_tensors(reply.content.array_records["arrays"])
    first = next(iter(tensors))
    return RecordDict({**reply.content, "arrays": to_record({**tensors, first: change(tensors[first])})})


def garbage(reply: Message) -> RecordDict:
    """The content of a reply with noise for bytes."""
    names = reply.content.array_records["arrays"]
    noise = ArrayRecord({name: Array("float32", (3,), "numpy.ndarray", os.urandom(200)) for name in names})
    return RecordDict({**reply.content, "arrays": noise})


def big(_: Message) -> RecordDict:
    """Hundreds of megabytes."""
    huge = ArrayRecord({"x": Array("uint8", (BIG_BYTES,), "numpy.ndarray", bytes(BIG_BYTES))})
    return RecordDict({"arrays": huge, "metrics": MetricRecord({"num-examples": 1})})


CONTENTS: dict[str, Callable[[Message], RecordDict]] = {
    "nan": lambda reply: changed(reply, lambda value: value * float("nan")),
    "shapes": lambda reply: changed(reply, lambda value: value.flatten()[:3]),
    "garbage": garbage,
    "big": big,
}
SENDS = ("twice", "forged", "no message", "half")


class Faulty(ClientApp):
    """Our client app, or what the plan says."""

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer."""
        global fault_of_send
        fault_of_send = ""
        client = int(context.node_config["partition-id"])
        plan: dict[str, dict[str, Any]] = json.loads(Path(os.environ[PLAN]).read_text())
        if message.metadata.message_type != "train" or str(client) not in plan:
            return inner(message, context)
        server_round = int(message.content.config_records["config"]["server-round"])  # type: ignore[arg-type]
        fault = plan[str(client)].get(str(server_round), "")
        if fault:
            marker(client, server_round).touch()
        if fault == "hang":
            time.sleep(3600)
        reply = inner(message, context)
        if fault.startswith("late "):
            time.sleep(float(fault.removeprefix("late ")))
        if fault in CONTENTS:
            return Message(CONTENTS[fault](reply), reply_to=message)
        fault_of_send = fault
        return reply


def send(node: Node, reply: Message, seconds: float) -> None:
    """Send a reply as the plan says."""
    if fault_of_send == "twice":
        honest_send(node, reply, seconds)
        honest_send(node, reply, seconds)
    elif fault_of_send == "forged":
        inside = Message(reply.content, metadata=copy(reply.metadata))  # type: ignore[call-overload]
        inside.metadata.__dict__["_src_node_id"] = reply.metadata.src_node_id ^ 1
        objects = {key: value.deflate() for key, value in get_all_nested_objects(inside).items()}
        _push(node, reply, seconds, get_object_tree(inside), objects)
    elif fault_of_send == "no message":
        body = os.urandom(100)
        content = b"Message  %d\x00" % len(body) + body
        tree = ObjectTree(object_id=get_object_id(content))
        _push(node, reply, seconds, tree, {tree.object_id: content})
    elif fault_of_send == "half":
        _push(node, reply, seconds, get_object_tree(reply), {})
    else:
        honest_send(node, reply, seconds)


def _push(node: Node, reply: Message, seconds: float, tree: ObjectTree, objects: dict[str, bytes]) -> None:
    """Announce a reply by the right sender, and bring these objects for it."""
    reply.metadata.__dict__["_message_id"] = tree.object_id
    wanted, session = node.connection.send(reply, tree, seconds)
    for key in wanted & objects.keys():
        node.connection.push_object(reply.metadata.run_id, session, key, objects[key])


Node._send = send  # type: ignore[assignment, method-assign]
app = Faulty()
