"""The Flower client: data -> defense -> local update -> reply."""

import logging
import traceback
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from client_defenses import Memory
from client_defenses.base import overrides
from fl_app.client.aggregation import aggregation_mod
from fl_app.client.guard import Guarded, Watch, guard_of
from fl_app.client.policy import GUARD, STATE_DIR, OwnConfig, Refused, check_run, own_assets, own_config
from fl_app.client.secret import secret_draws
from fl_app.client.state import ClientState, Kept
from fl_app.core.local import Step, Tensors, local_update
from fl_app.core.seeds import derive
from fl_app.core.spec import SpecError
from fl_app.core.wire import to_record, to_tensors
from fl_app.data.batches import step_positions
from fl_app.experiment.assets import Assets, assets_of, on_device, use_threads
from fl_app.experiment.config import Experiment, from_run_config
from fl_app.store.runs import RunDir

log = logging.getLogger("thorns")
app = ClientApp(mods=[aggregation_mod])
MEMORY = "defense-memory"
ANSWERED = "own-answers"
LOSSES = "guard-losses"
Request = dict[str, Any]
"""What a training message says beside the weights."""
Answer = Callable[[Message, Context], Message]
OURS = ("fl_app", "client_defenses", "strategies")


def discreet(answer: Answer) -> Answer:
    """Errors reach the server in our words alone: those of libraries quote what they choke on, a label for example."""

    @wraps(answer)
    def guarded(message: Message, context: Context) -> Message:
        try:
            return answer(message, context)
        except Refused as refusal:
            log.warning("refused: %s", refusal.why)
            raise
        except Exception as error:
            if type(error).__module__.partition(".")[0] in OURS:
                raise
            places = [f"{Path(f.filename).name}:{f.lineno}" for f in traceback.extract_tb(error.__traceback__)]
            kind, place = type(error).__name__, " > ".join(places[1:][-3:])
        # Outside of the handler: a log of this error must not show the other one as its context.
        raise RuntimeError(f"{kind} at {place}; what it says stays with the client, as it may quote data")

    return guarded


def client_of(context: Context) -> int:
    """Which client this node is."""
    number = context.node_config.get("partition-id")
    if not isinstance(number, int):
        raise Refused("this node has no partition-id: start it with --node-config 'partition-id=0 num-partitions=10'")
    return number


def check_request(config: Request, experiment: Experiment) -> int:
    """The round that is asked for; a server that asks for another rule than the one agreed on is refused."""
    server_round = config.get("server-round")
    if not isinstance(server_round, int) or server_round < 1:
        raise Refused(f"the request names no valid round: {server_round!r}")
    for key, agreed in experiment.rule.to_dict().items():
        if config.get(key) != agreed:
            raise Refused(f"the server asks for {key}={config.get(key)!r}, but {agreed!r} was agreed on")
    return server_round


def memory_of(context: Context) -> Tensors:
    """What the defense of this client remembers; empty at first."""
    record = context.state.get(MEMORY)
    return to_tensors(record) if isinstance(record, ArrayRecord) else {}


def state_of(context: Context, experiment: Experiment, own: OwnConfig | None, client: int) -> ClientState | None:
    """The client's state folder, if its node has one; simulations keep what they must in the run directory."""
    folder = context.node_config.get(STATE_DIR)
    return ClientState(Path(str(folder)), experiment, own, client, context.run_id) if folder else None


def remembered(context: Context, config: Request, experiment: Experiment, client: int, folder: ClientState | None) -> Tensors:
    """What the defense remembers; after a restart or a resumption, what was on disk if this client was not asked since."""
    done = config.get("resumed-from")
    done = done if isinstance(done, int) and done > 0 else 0
    if folder is not None:
        if ANSWERED not in context.state:
            kept = folder.begin(done)
            context.state[ANSWERED] = ConfigRecord({"last-round": kept.answered if kept else 0})
            if kept and kept.memory:
                context.state[MEMORY] = to_record(kept.memory)
            context.state[LOSSES] = ConfigRecord({"losses": folder.losses()})
    elif MEMORY not in context.state and done:
        return RunDir.open(Path(experiment.run_dir)).load_memory(done, client)
    return memory_of(context)


def same(before: Tensors, after: Tensors) -> bool:
    """Whether a memory is as it was."""
    return before.keys() == after.keys() and all(
        before[name] is value or (before[name].dtype == value.dtype and before[name].equal(value))
        for name, value in after.items()
    )


def losses_of(context: Context) -> list[float]:
    """The losses of the last rounds, as the guard remembers them."""
    record = context.state.get(LOSSES)
    return list(record["losses"]) if isinstance(record, ConfigRecord) else []  # type: ignore[arg-type]


def own_of(context: Context) -> tuple[OwnConfig | None, Guarded | None]:
    """What this client decides itself, and its guard; a configuration that cannot be read answers nothing."""
    try:
        in_run = context.run_config.get("guard", "off")
        return own_config(context.node_config), guard_of(context.node_config, str(in_run))
    except SpecError as error:
        log.error("this client's node config is not valid: %s", error)
        raise Refused("this client's own configuration is not valid; its log says why") from None


def check_new(context: Context, server_round: int) -> None:
    """Refuse a round that was asked for before: each answer about the same examples takes some of their noise away."""
    record = context.state.config_records.setdefault(ANSWERED, ConfigRecord({"last-round": 0}))
    last = int(record["last-round"])  # type: ignore[arg-type]
    if server_round <= last:
        raise Refused(
            f"this client answers each round once and in order: it has answered round {last}, not again {server_round}"
        )
    record["last-round"] = server_round


def defended_update(
    assets: Assets,
    params: Tensors,
    client: int,
    server_round: int,
    memory: Memory,
    watch: Callable[[Step], Step] = lambda step: step,
) -> tuple[Tensors, int]:
    """(the update that a client sends in a round, how many examples are in it); a guard may `watch` its steps."""
    defense = assets.defense
    if not memory.state and overrides(defense, "on_start"):
        own_x, own_y = assets.splits.train.at(assets.shares[client])
        defense.on_start(Step(params, assets.model, own_x.to(assets.device), own_y.to(assets.device)), memory)
    x, y = assets.batch(client, server_round)

    def gradient(step: Step) -> Tensors:
        return defense.protect(watch(step), memory)

    order = step_positions(assets.experiment.seed, client, server_round, assets.experiment.rule, len(y))
    return local_update(assets.model, params, x, y, assets.experiment.rule, gradient, order), len(y)


@app.train()
@discreet
def train(message: Message, context: Context) -> Message:
    """Answer a round with a protected update and nothing else: no loss, no label counts."""
    own, guarded = own_of(context)
    check_run(context.run_config)
    experiment = from_run_config(context.run_config)
    client = client_of(context)
    arrays, record = message.content["arrays"], message.content["config"]
    if not isinstance(arrays, ArrayRecord) or not isinstance(record, ConfigRecord):
        raise Refused("a training request brings the records 'arrays' and 'config'")
    config: Request = dict(record.items())  # a plain dict: Flower's own takes microseconds per look-up
    server_round = check_request(config, experiment)
    use_threads(experiment.threads)
    assets = own_assets(own, experiment, client) if own else assets_of(experiment)
    folder = state_of(context, experiment, own, client)
    before = remembered(context, config, experiment, client, folder)
    memory = Memory.fresh(derive(experiment.seed, "defense", client, server_round))
    memory.state = dict(before)
    params = to_tensors(arrays)
    if own:
        check_new(context, server_round)
        batch = dict(zip("xy", assets.batch(client, server_round), strict=True))
        # Neither where a run was resumed, nor where state is kept, nor what the guard checks goes into an update: a round that
        # is asked for again after a resumption, with the same weights, is the same bytes again.
        asked = {key: value for key, value in config.items() if key != "resumed-from"}
        settings = {key: value for key, value in context.node_config.items() if key not in (STATE_DIR, *GUARD)}
        memory.rng = secret_draws(own, [asked, context.run_config, settings], [params, memory.state, batch])
    if folder is not None:
        folder.note_weights(server_round, params)
    if guarded:
        guarded.check_weights(params, tuple(assets.splits.train.x.shape[1:]), assets.num_classes)
    if assets.device != "cpu":
        params = on_device(params, assets.device)
    watch = Watch()
    update, number = defended_update(assets, params, client, server_round, memory, *([watch] if guarded else []))
    if guarded:
        losses = guarded.check_update(params, update, watch.notes(), losses_of(context))
        context.state[LOSSES] = ConfigRecord({"losses": losses})
        if folder is not None:
            folder.note_losses(losses)
    if assets.device != "cpu":
        update, memory.state = on_device(update, "cpu"), on_device(memory.state, "cpu")
    if memory.state or MEMORY in context.state:
        context.state[MEMORY] = to_record(memory.state)
    if folder is not None and (own or not same(before, memory.state)):
        folder.write(Kept(context.run_id, server_round, server_round if own else 0, memory.state))
    reply = RecordDict({"arrays": to_record(update), "metrics": MetricRecord({"num-examples": number})})
    return Message(reply, reply_to=message)


@app.query("identify")
@discreet
def identify(message: Message, context: Context) -> Message:
    """Say which client this is, so that results do not depend on Flower's random node ids."""
    identity = ConfigRecord({"client": client_of(context), "clients": int(context.node_config.get("num-partitions", 0))})
    return Message(RecordDict({"identity": identity}), reply_to=message)


@app.query("save")
@discreet
def save(message: Message, context: Context) -> Message:
    """Keep the defense's memory on this client's own disk, so that a run can be resumed."""
    own, _ = own_of(context)
    check_run(context.run_config)
    experiment = from_run_config(context.run_config)
    client = client_of(context)
    config: Request = dict(message.content.config_records["config"].items())
    folder = state_of(context, experiment, own, client)
    state = remembered(context, config, experiment, client, folder)
    server_round = config["server-round"]
    if folder is not None:
        folder.keep(server_round)
    elif state:
        context.state[MEMORY] = to_record(state)  # the file that it came from may not outlive this checkpoint
        # Only into a run directory that is there: a path that a server makes up creates nothing.
        RunDir.open(Path(experiment.run_dir)).save_memory(server_round, client, state)
    return Message(RecordDict(), reply_to=message)
