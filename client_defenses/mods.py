"""A defense as a Flower mod: what an app's clients send is transformed on its way out, and the app is none the wiser."""

from __future__ import annotations

import secrets
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

import client_defenses
from client_defenses.base import Defense, Memory, beyond_messages
from fl_app.core.local import Tensors
from fl_app.core.seeds import derive
from fl_app.core.spec import SpecError

if TYPE_CHECKING:  # Flower is imported where it is used: this package is imported by attacks too, which need none of it
    from flwr.app import Context, Message, RecordDict
    from flwr.clientapp.typing import ClientAppCallable, Mod

Payload = Literal["weights", "delta", "gradient"]
MEMORY = "thorns-defense-memory"
CALLS = "thorns-defense-calls"


class ModError(ValueError):
    """A defense that cannot protect these messages; the message says what to do instead."""


def defense_mod(
    payload: Payload = "weights",
    *,
    defense: str | None = None,
    key: str = "defense",
    arrays: str = "arrays",
    private: bool = False,
) -> Mod:
    """A mod for `ClientApp(mods=[defense_mod()])` that applies a defense to each train reply.

    `payload` says what the clients send: their new weights, the change of the weights, or a gradient. `defense` names the
    defense, such as "prune(ratio=0.9)": the client's own choice, which no server changes. Without it the setting `key` of the
    run's config names one, read when a message comes. `arrays` is the record of weights in requests and of the payload in
    replies. Only floating-point arrays are transformed; counters pass as they are, and so do metrics. `private` refuses a
    defense that promises no epsilon.

    A wrong use is answered with an error that says what to do, before anything leaves.

    Draws are seeded by the operating system and known to nobody. For repeatable simulations, and only for those, the
    setting `<key>-seed` fixes them: whoever knows it, the server among them, can subtract the noise.
    """
    if payload not in ("weights", "delta", "gradient"):
        raise ModError(f"payload={payload!r}: say what the clients send, 'weights', 'delta' or 'gradient'")

    def protected_reply(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        # Everything that can be known is checked before the client trains.
        chosen = usable(named_by(context, key) if defense is None else defense, private=private)
        memory = _recall(context, key)
        before = record_tensors(message.content, arrays, "request")
        reply = call_next(message, context)
        if reply.has_error():
            return reply
        after = record_tensors(reply.content, arrays, "reply")
        others = [name for name in reply.content.array_records if name != arrays]
        if others:
            raise ModError(f"the reply also brings the arrays {others}, which would leave unprotected: put all into '{arrays}'")
        sent = {name: value for name, value in after.items() if value.is_floating_point()}
        check_payload(payload, sent, before)
        protected = protect(chosen, payload, sent, before, memory)
        _remember(context, memory)
        from fl_app.core.wire import to_record

        reply.content[arrays] = to_record({**after, **protected})
        return reply

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        if message.metadata.message_type.partition(".")[0] != "train":
            return call_next(message, context)
        try:
            return protected_reply(message, context, call_next)
        except (ModError, SpecError) as error:
            from fl_app.core.refusal import refusal

            return refusal(message, f"defense_mod: {error}")

    return mod


@lru_cache(maxsize=16)
def _build(text: str) -> Defense:
    return client_defenses.build(text)


def named_by(context: Context, key: str) -> str:
    """The defense that the run's config names."""
    text = context.run_config.get(key)
    if not isinstance(text, str):
        raise ModError(
            f'the run\'s config names no defense: write defense_mod(defense="..."), or add {key} = "..." to '
            f"[tool.flwr.app.config] of the app's pyproject.toml (known: {', '.join(client_defenses.DEFENSES)})"
        )
    return text


def usable(text: str, *, private: bool) -> Defense:
    """The defense of a spec, if it can work on messages alone."""
    defense = _build(text)
    hooks = beyond_messages(defense)
    if hooks:
        raise ModError(
            f"'{text}' works inside the training ({', '.join(dict.fromkeys(hooks))}), so it cannot protect a finished message: "
            "leave out defense_mod and write `defense.backward(model, x, y)` in place of `loss.backward()`, "
            f"with defense = client_defenses.build({text!r})"
        )
    if private and defense.noise_multiplier() is None:
        raise ModError(
            f"'{text}' promises no epsilon, but private=True asks for one: choose a defense with calibrated Gaussian noise, "
            "or leave out private=True"
        )
    return defense


def protect(defense: Defense, payload: Payload, sent: Tensors, before: Tensors, memory: Memory) -> Tensors:
    """What leaves the client in place of `sent`."""
    # At least float32: a difference in float16 would lose digits. float64 would not pay: float32 rounds a difference of
    # float32 weights correctly, so what is lost was lost when the client rounded its weights.
    wide = {name: value.to(torch.promote_types(value.dtype, torch.float32)) for name, value in sent.items()}
    update = wide if payload != "weights" else {name: value - before[name].to(value) for name, value in wide.items()}
    protected = defense.transform(update, memory)
    if payload != "weights":
        return {name: protected[name].to(value.dtype) for name, value in sent.items()}
    if all(torch.equal(protected[name], value) for name, value in update.items()):
        return sent  # old + (new - old) is not always new: no defense at all is bit for bit none
    # From what the server knows and what it may know: new + (protected - update) would leak the update's last digits.
    return {name: (before[name].to(wide[name]) + protected[name]).to(value.dtype) for name, value in sent.items()}


def check_payload(payload: Payload, sent: Tensors, before: Tensors) -> None:
    """Refuse a reply that is plainly not what was declared.

    Weights lie near those that were sent out: distance < half of their own norm. An update of that kind would need the
    length of the weights and, to 30 degrees, their direction. The other way round, what has no more than twice the norm of
    the old weights and less than a quarter of them along their direction would be weights turned over in one round.
    Neither says anything of weights that are still all zero.
    """
    strange = [name for name, value in sent.items() if name not in before or before[name].shape != value.shape]
    if strange:
        raise ModError(
            f"the reply's {', '.join(strange[:3])} cannot be the {payload} of the request's weights, which have other names "
            "or shapes: reply with those of the request"
        )
    new, old = _flat(sent), _flat({name: before[name] for name in sent})
    length = old.norm()
    if payload != "weights" and bool((new - old).norm() < 0.5 * new.norm()):
        raise ModError(
            f"payload='{payload}' was declared, but the reply holds weights: write defense_mod() or defense_mod('weights'), "
            f"or let the client send the {payload}"
        )
    if payload == "weights" and bool(new.norm() <= 2 * length) and bool(new @ old < 0.25 * length.square()):
        raise ModError(
            "payload='weights' was declared, but the reply is far from the weights that were sent out: write "
            "defense_mod('delta') or defense_mod('gradient') if the client sends an update"
        )


def _flat(tensors: Tensors) -> Tensor:
    return torch.cat([torch.zeros(0, dtype=torch.float64), *(value.double().flatten() for value in tensors.values())])


def record_tensors(content: RecordDict, name: str, what: str, who: str = "defense_mod") -> Tensors:
    """The arrays of a request or a reply; ModError if they are not there or no arrays."""
    from flwr.app import ArrayRecord

    from fl_app.core.wire import WireError, to_tensors

    record = content.get(name)
    if not isinstance(record, ArrayRecord):
        found = ", ".join(content.array_records) or "none"
        raise ModError(f"the {what} has no arrays called '{name}' (it has: {found}): name them by {who}(arrays=...)")
    try:
        return to_tensors(record)
    except WireError as error:
        raise ModError(f"the {what}'s arrays cannot be read: {error}") from error


def _recall(context: Context, key: str) -> Memory:
    """What the defense remembers of earlier rounds, and a generator for this one."""
    from flwr.app import ArrayRecord, ConfigRecord

    from fl_app.core.wire import to_tensors

    seed = context.run_config.get(f"{key}-seed")
    if seed is None:
        memory = Memory.fresh(secrets.randbits(63))
    elif isinstance(seed, int):
        counter = context.state.config_records.setdefault(CALLS, ConfigRecord({"calls": 0}))
        counter["calls"] = calls = int(counter["calls"]) + 1  # type: ignore[arg-type]
        who = context.node_config.get("partition-id", context.node_id)
        memory = Memory.fresh(derive(seed, "defense mod", str(who), calls))
    else:
        raise ModError(f"{key}-seed must be a whole number, not {seed!r}")
    record = context.state.get(MEMORY)
    if isinstance(record, ArrayRecord):
        memory.state = to_tensors(record)
    return memory


def _remember(context: Context, memory: Memory) -> None:
    from fl_app.core.wire import to_record

    if memory.state or MEMORY in context.state:
        context.state[MEMORY] = to_record(memory.state)
