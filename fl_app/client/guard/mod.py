"""The guard as a Flower mod: somebody else's app looks at the weights it is sent before it trains."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from client_defenses.mods import ModError, Payload, check_payload, record_tensors
from fl_app.client.guard.round import Guarded, lone
from fl_app.client.guard.weights import weight_checks
from fl_app.client.policy import Refused
from fl_app.core.local import Tensors
from fl_app.core.refusal import refusal
from fl_app.core.spec import SpecError
from fl_app.experiment.guards import build

if TYPE_CHECKING:
    from flwr.app import Context, Message
    from flwr.clientapp.typing import ClientAppCallable, Mod


def guard_mod(
    payload: Payload = "weights",
    *,
    model: nn.Module | None = None,
    guard: str = "refuse",
    arrays: str = "arrays",
    says_why: bool = False,
) -> Mod:
    """A mod for `ClientApp(mods=[guard_mod(model=Net())])` that looks at the weights of each train request.

    `guard` is "warn" or "refuse", with limits by name. With a `model` the weights must have its names and shapes: another
    architecture is refused whatever the guard says, as the app could not load it. A limit on `lone` also looks at the reply,
    of which `payload` says what it is. A refusal is one line in the client's log; the server reads "refused", or with
    `says_why` the reason. The mod has no examples, so checks of the loss and of single examples are not made.
    """
    limits = build(guard)
    if limits is None:
        raise ModError(f"guard={guard!r} checks nothing: leave out guard_mod, or write guard='warn' or guard='refuse'")
    if payload not in ("weights", "delta", "gradient"):
        raise ModError(f"payload={payload!r}: say what the clients send, 'weights', 'delta' or 'gradient'")
    guarded = Guarded(limits, says_why)
    shapes = {name: value.shape for name, value in model.state_dict().items()} if model is not None else None

    def guarded_reply(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        before = record_tensors(message.content, arrays, "request", "guard_mod")
        if shapes is not None and {name: value.shape for name, value in before.items()} != shapes:
            raise Refused("refused", why="guard_mod: the weights are not those of the agreed model, by their names and shapes")
        guarded.judge(weight_checks(before))
        reply = call_next(message, context)
        if limits.lone is not None and not reply.has_error():
            sent = record_tensors(reply.content, arrays, "reply", "guard_mod")
            guarded.judge({"lone": lone(_update(payload, sent, before))})
        return reply

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        if message.metadata.message_type.partition(".")[0] != "train":
            return call_next(message, context)
        try:
            return guarded_reply(message, context, call_next)
        except Refused as refused:
            return refusal(message, f"guard_mod: {refused}", refused.why)
        except (ModError, SpecError) as error:
            return refusal(message, f"guard_mod: {error}")

    return mod


def _update(payload: Payload, sent: Tensors, before: Tensors) -> Tensors:
    """What the reply says about the examples."""
    sent = {name: value for name, value in sent.items() if value.is_floating_point()}
    check_payload(payload, sent, before)
    if payload != "weights":
        return sent
    return {name: value.float() - before[name].to(value).float() for name, value in sent.items()}
