"""The server of a run: strategy, evaluation, run directory, whichever engine its clients are on."""

import contextlib
import logging
import math
import time
from pathlib import Path
from typing import NamedTuple

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fl_app.core.wire import to_record, to_tensors
from fl_app.engines.beside import Beside, MakeBeside
from fl_app.engines.metered import MeteredGrid
from fl_app.engines.protocols import hidden
from fl_app.engines.spent import spent
from fl_app.engines.watcher import Watcher
from fl_app.experiment.assets import Assets, assets_of, on_device, use_threads
from fl_app.experiment.config import Experiment, from_run_config
from fl_app.experiment.fingerprint import check_data, record_data
from fl_app.experiment.grants import server_knowledge
from fl_app.experiment.runs import create_run, new_path
from fl_app.experiment.utility import evaluate
from fl_app.models import parameters_of
from fl_app.store.captures import Captures
from fl_app.store.files import RunError, RunFailed
from fl_app.store.locks import LOCK, alone
from fl_app.store.runs import SLACK, Checkpoint, RunDir
from strategies import Curious, FedDelta, FedSGD, Malicious, Resumed, optimizers
from strategies.crafts import Scene
from strategies.roster import one_line

log = logging.getLogger("thorns")

CHECKPOINT_SECONDS = 30.0
PULL_SECONDS = 0.002
PUBLIC = 10_000
"""The most examples of the test split, which no client holds, that a malicious server works by."""


class Stopped(Exception):
    """The run was asked to stop and has been kept."""


class Finite(NamedTuple):
    """A round after which all was finite, and the weights after it."""

    server_round: int
    arrays: ArrayRecord


class RoundEnd:
    """What happens after each round: evaluate when due, record, keep a checkpoint, stop if asked to."""

    def __init__(self, assets: Assets, strategy: FedSGD, grid: MeteredGrid, run: RunDir, watcher: Watcher, done: int) -> None:
        self.assets, self.strategy, self.grid, self.run, self.watcher = assets, strategy, grid, run, watcher
        self.done = done
        self.said: set[str] = set()
        self.stepped: Finite | None = None
        """The last round whose weights were finite."""
        self.scored: Finite | None = None
        """The last round whose loss was finite, too."""
        self.began = self.kept = time.monotonic()

    def __call__(self, server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        """Called by Strategy.start with the round and the weights after it."""
        if server_round == 0 and self.done:
            self.stepped = self.scored = Finite(self.done, arrays)
            return None  # recorded by the run that is resumed
        server_round += self.done
        if not self.strategy.finite():
            self._diverged(server_round, self.stepped, "the weights are")
        self.stepped = Finite(server_round, arrays)
        experiment = self.assets.experiment
        last = server_round == experiment.rounds
        line: dict[str, float | int | str] = {"round": server_round, "seconds": round(time.monotonic() - self.began, 3)}
        cost = self.grid.spent()
        line |= {**self.strategy.last_counts, **cost} if server_round else {}
        line |= spent(self.assets, server_round)
        line |= {"server": experiment.server} if experiment.craft.chooses else {}
        metrics = None
        if last or server_round % experiment.eval_every == 0:
            utility = evaluate(
                self.assets.model,
                on_device(to_tensors(arrays), self.assets.device),
                self.assets.splits.test,
                self.assets.num_classes,
                device=self.assets.device,
            )
            if not math.isfinite(utility.loss):
                self._diverged(server_round, self.scored, "the loss is")
            self.scored = self.stepped
            line |= utility.numbers()
            metrics = MetricRecord(dict(utility.numbers()))
        try:
            self.run.record(line)
        except RunError as error:
            self._say_once("metrics are written later", error)
        self.watcher.on_round(line)
        stop = self.watcher.stop_requested() and not last
        if server_round and (last or stop or time.monotonic() - self.kept > CHECKPOINT_SECONDS):
            self.checkpoint(server_round, arrays, final=last or stop)
        if stop:
            raise Stopped
        return metrics

    def _diverged(self, server_round: int, good: Finite | None, what: str) -> None:
        """Keep the last good round, without what the optimiser remembers: that is what diverged."""
        kept = "nothing is kept"
        if good is not None:
            self.run.save_checkpoint(Checkpoint(good.server_round, to_tensors(good.arrays), {}))
            kept = f"round {good.server_round} is kept"
        advice = "lower the learning rates or the noise of the defense"
        raise RunFailed(f"{what} not finite after round {server_round}: the run stops, {kept}; {advice}")

    def fruitless(self) -> str:
        """Why no round changed the weights; empty if one did."""
        rounds = [line for line in self.run.metrics() if "applied" in line]
        if not rounds or any(line["applied"] for line in rounds):
            return ""
        reasons = [f"client {client}: {one_line(reason)}" for client, reason in self.strategy.last_reasons.items()]
        why = f"; in the last one {'; '.join(reasons[:3])}" if reasons else ""
        if any(line["accepted"] for line in rounds):
            needed = self.assets.experiment.min_clients
            return f"no round changed the weights: none of {len(rounds)} had the min-clients={needed} valid replies{why}"
        return f"no reply of a client was usable in {len(rounds)} rounds, so no round changed the weights{why}"

    def checkpoint(self, server_round: int, arrays: ArrayRecord, *, final: bool) -> None:
        """Have every client keep its memory, then keep the server's state: in that order a crash loses nothing."""
        request = RecordDict({"config": ConfigRecord({"server-round": server_round, "resumed-from": self.done})})
        nodes = self.strategy.roster.connected(self.grid).values()
        messages = [Message(request, node, "query.save") for node in nodes]
        for reply in self.grid.send_and_receive(messages, timeout=min(600.0, self.assets.experiment.round_timeout)):
            if reply.has_error():  # one client must not end the run of the others
                client = self.strategy.roster.client_of.get(reply.metadata.src_node_id)
                reason = one_line(reply.error.reason)
                log.warning("round %d: client %s could not keep its state: %s", server_round, client, reason)
        try:
            self.run.save_checkpoint(Checkpoint(server_round, to_tensors(arrays), self.strategy.optimizer_state()))
        except RunError as error:
            if final:
                raise RunError(f"{error}; make room and go on with `thorns run --resume {self.run.path}`") from error
            self._say_once("there is no newer checkpoint, the last one is kept", error)
        self.kept = time.monotonic()

    def _say_once(self, what: str, error: RunError) -> None:
        """A full disk fails every time: once is enough."""
        if what not in self.said:
            self.said.add(what)
            log.warning("%s: %s (training goes on; said once)", what, error)


def build_strategy(experiment: Experiment) -> FedSGD:
    """The strategy of an experiment."""
    kind = FedSGD if experiment.update == "gradient" else FedDelta
    return kind(
        experiment.rule,
        optimizers.build(experiment.optimizer),
        clients=experiment.clients,
        seed=experiment.seed,
        fraction=experiment.fraction,
        min_clients=experiment.min_clients,
        weighting=experiment.weighting,
    )


def malicious(strategy: Strategy, assets: Assets) -> Strategy:
    """The strategy, with crafted weights in the rounds that are captured if the server is malicious."""
    experiment, craft, test = assets.experiment, assets.experiment.craft, assets.splits.test
    if not craft.chooses:
        return strategy
    public, _ = test.at(torch.arange(min(PUBLIC, len(test))))
    return Malicious(strategy, craft, Scene(assets.model, public, experiment.rule, experiment.seed), experiment.captured_rounds)


def curious(strategy: Strategy, experiment: Experiment, run: RunDir, beside: Beside | None) -> Strategy:
    """The strategy with the curious hook around it, if the experiment asks for captures."""
    if not experiment.captured_rounds:
        return strategy
    return Curious(
        strategy,
        Captures(run.path / "captures"),
        experiment.rule,
        rounds=experiment.captured_rounds,
        clients=None if experiment.seen == "aggregate" else experiment.captured_clients,
        visibility=experiment.seen,
        on_capture=beside.on_capture if beside else None,
        knowledge=server_knowledge(experiment),
    )


def serve(
    reached: Grid, context: Context, watcher: Watcher, *, resume: bool = False, make_beside: MakeBeside | None = None
) -> RunDir:
    """Run an experiment with the clients that a grid reaches, or go on with the one in its run directory."""
    experiment = from_run_config(context.run_config)
    use_threads(experiment.threads)
    if hasattr(reached, "pull_interval"):
        reached.pull_interval = PULL_SECONDS  # Flower's in-memory grid sleeps 0.1 s between looks
    assets = assets_of(experiment)
    grid = MeteredGrid(reached)
    fedsgd = build_strategy(experiment)
    strategy = malicious(fedsgd, assets)  # a craft that does not fit the model is refused before anything is written
    fedsgd.roster.connected(grid)  # and so is a federation
    path = Path(experiment.run_dir) if experiment.run_dir else new_path(experiment, Path("runs"))
    if resume:
        RunDir.open(path)
        check_data(path, experiment)
    with alone(path / LOCK, f"{path} is being trained: wait for it, or choose another run-dir"):
        return _train(grid, assets, fedsgd, strategy, path, watcher, resume=resume, make_beside=make_beside)


def _train(
    grid: MeteredGrid,
    assets: Assets,
    fedsgd: FedSGD,
    strategy: Strategy,
    path: Path,
    watcher: Watcher,
    *,
    resume: bool,
    make_beside: MakeBeside | None,
) -> RunDir:
    """What `serve` does while it holds the run."""
    experiment = assets.experiment
    run = RunDir.open(path) if resume else create_run(path, experiment)
    if not resume:
        record_data(run, experiment)
    kept = run.load_checkpoint() if resume else None
    if resume:
        run.keep(experiment.toml())  # it may have been made longer
    done = kept.server_round if kept else 0
    run.rewind(done if kept else -1)
    if kept:
        fedsgd.restore_optimizer(kept.optimizer)
    initial = on_device(parameters_of(assets.model), "cpu")
    if kept and kept.weights.keys() != initial.keys():
        raise RunError(f"{run.checkpoint_path} holds another model than {experiment.model}")
    # In the model's order, which the optimiser's flat state is in; a file has an order of its own.
    weights = to_record({name: kept.weights[name] if kept else value for name, value in initial.items()})
    watcher.started(run, experiment, done)
    beside = make_beside(run, experiment) if make_beside else None
    strategy = hidden(curious(strategy, experiment, run, beside), experiment)
    if done:
        strategy = Resumed(strategy, done)  # outermost: the hook must see the true rounds
    after = RoundEnd(assets, fedsgd, grid, run, watcher, done)
    weigh = sum(value.nbytes for value in initial.values())
    run.reserve(run.checkpoint_path.stat().st_size if kept else SLACK + 3 * weigh)  # an optimiser may remember two of each
    try:
        with beside or contextlib.nullcontext(), contextlib.suppress(Stopped):
            strategy.start(
                grid,
                weights,
                num_rounds=experiment.rounds - done,
                timeout=experiment.round_timeout,
                train_config=ConfigRecord({"resumed-from": done} if done else {}),
                evaluate_fn=after,
            )
    finally:
        run.close()
    if reason := after.fruitless():
        raise RunFailed(reason)
    return run
