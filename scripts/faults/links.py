"""Faults of the SuperLink: restarted within a round, with its database and without."""

import threading
import time
from pathlib import Path

from faults import marker
from faults.stage import Between, Row, Stage, reference, same, stage, wait_until, weights_of
from fl_app.engines import serving
from fl_app.engines.grpc.local import Local
from fl_app.experiment.config import Experiment


def restart_when_at_work(play: Stage, client: int, server_round: int, away: float = 1.0) -> None:
    """Kill the SuperLink as soon as a client works on a round, and start it again."""

    def act() -> None:
        wait_until(marker(client, server_round).exists, f"client {client} works on round {server_round}")
        play.kill("superlink")
        time.sleep(away)
        play.running.start_link()
        play.over.wait()  # the kernel ends a process with the thread that started it

    threading.Thread(target=act, daemon=True).start()


def with_database(experiment: Experiment, folder: Path) -> list[Row]:
    """The SuperLink is killed while client 1 works on round 2, and comes back with its database."""
    experiment = experiment.changed(rounds=5, run_dir=str(folder / "run"), round_timeout=120.0)
    folder.mkdir(parents=True, exist_ok=True)
    with stage(folder, experiment.clients, {1: {2: "late 3"}}, Local(database=folder / "link.db")) as play:
        restart_when_at_work(play, 1, 2)
        watcher = Between({})
        run = play.train(experiment, watcher)
        right = same(weights_of(run), reference(experiment, folder))
        counts = [line["accepted"] for line in run.metrics() if line["round"]]
        expected = "the nodes reconnect and the run goes on; the undisturbed weights"
        good = right and counts == [experiment.clients] * experiment.rounds
        seen = expected if good else f"accepted {counts}, weights right: {right}"
        logs = [line for client in range(experiment.clients) for line in play.log_of(f"client-{client}").splitlines()]
        line = next((line for words in ("successful after", "retrying in") for line in logs if words in line), "")
        return [Row("SuperLink restarted with its database", expected, seen, line, watcher.seconds(2))]


def without_database(experiment: Experiment, folder: Path) -> list[Row]:
    """The SuperLink comes back knowing nothing: the run ends, and is resumed on another one."""
    experiment = experiment.changed(rounds=6, run_dir=str(folder / "run"), round_timeout=120.0)
    usual, serving.CHECKPOINT_SECONDS = serving.CHECKPOINT_SECONDS, 0.0
    expected = "the run ends with one line; resumed, the undisturbed weights"
    began, said = time.monotonic(), "(the run did not end)"
    try:
        with stage(folder, experiment.clients, {1: {4: "late 3"}}) as play:
            restart_when_at_work(play, 1, 4)
            try:
                play.train(experiment, Between({}))
            except RuntimeError as error:
                said = str(error)
        seconds = time.monotonic() - began
        with stage(folder, experiment.clients) as play:
            run = play.train(experiment, Between({}), resume=True)
            right = same(weights_of(run), reference(experiment, folder))
            went_on = "goes on with what it kept" in play.log_of("client-1") or bool(list(folder.glob("states/*/*/round-*")))
    finally:
        serving.CHECKPOINT_SECONDS = usual
    good = right and went_on and "resume" in said
    seen = expected if good else f"weights right: {right}, state kept: {went_on}, said {said}"
    return [Row("SuperLink restarted without its database", expected, seen, said, seconds)]
