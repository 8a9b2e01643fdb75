"""Faults of SuperNodes: killed, restarted, slow; the run goes on, and a client that comes back remembers."""

import threading
import time
from collections.abc import Iterable
from pathlib import Path

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from faults import marker
from faults.stage import Between, Row, Stage, reference, same, stage, wait_until, weights_of
from fl_app.engines.grpc.grid import AdaptiveGrid
from fl_app.engines.grpc.local import Local
from fl_app.experiment.config import Experiment

ALONE = "the round goes on without it"
SLOW_SECONDS, TIMEOUT_SECONDS = 15.0, 12.0


class Asker(AdaptiveGrid):
    """A server that asks a client for a round again, when told to."""

    def __init__(self, grid: Grid) -> None:
        super().__init__(grid)
        self.trained: dict[int, RecordDict] = {}
        """What each node was last asked to train with."""

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Keep what is asked, too."""
        messages = list(messages)
        if messages and messages[0].metadata.message_type == "train":
            self.trained = {message.metadata.dst_node_id: message.content for message in messages}
        return super().send_and_receive(messages, timeout=timeout)

    def again(self, node: int) -> str:
        """Ask a node the same again; why it refuses, or nothing."""
        (reply,) = super().send_and_receive([Message(self.trained[node], node, "train")], timeout=TIMEOUT_SECONDS)
        return str(reply.error.reason) if reply.has_error() else ""


def kill_when_at_work(play: Stage, client: int, server_round: int, *, restart: bool) -> threading.Event:
    """Kill a client as soon as it works on a round; afterwards start it again, if asked to. The event tells when it is done."""
    done = threading.Event()

    def act() -> None:
        wait_until(marker(client, server_round).exists, f"client {client} works on round {server_round}")
        play.kill(f"client-{client}")
        if restart:
            play.restart_node(client)
        done.set()
        play.over.wait()  # the kernel ends a process with the thread that started it

    threading.Thread(target=act, daemon=True).start()
    return done


def restarted_nodes(experiment: Experiment, folder: Path) -> list[Row]:
    """Client 1 is killed within round 2, client 2 between rounds 4 and 5; both are started again with their keys."""
    experiment = experiment.changed(rounds=7, run_dir=str(folder / "run"), round_timeout=120.0)
    refused: list[str] = []
    grids: list[Asker] = []

    def wrap(grid: Grid) -> Grid:
        grids.append(Asker(grid))
        return grids[0]

    # Any setting of its own makes a client count its answers; this one changes nothing else.
    with stage(folder, experiment.clients, {1: {2: "hang"}}, Local(own={2: "min-examples=1"})) as play:
        done = kill_when_at_work(play, 1, 2, restart=True)
        seconds: dict[str, float] = {}

        def kill_and_restart() -> None:
            began = time.monotonic()
            play.kill("client-2")
            play.restart_node(2)
            seconds["back"] = time.monotonic() - began

        def ask_again() -> None:
            node = next(node for node, client in _clients(play).items() if client == 2)
            refused.append(grids[0].again(node))

        watcher = Between({2: lambda: wait_until(done.is_set, "client 1 is back"), 4: kill_and_restart, 6: ask_again})
        run = play.train(experiment, watcher, wrap)
        right = same(weights_of(run), reference(experiment, folder, absent={2: {1}}))
        counts = {line["round"]: line.get("accepted") for line in run.metrics()}
        used = all(counts[number] == experiment.clients for number in (1, 3, 4, 5, 6, 7))
        twin = "used again at once; weights as if it had never been away"
        seen = twin if used and right else f"accepted {counts}, weights {'right' if right else 'WRONG'}"
        back = f"{ALONE} once it is back; afterwards it is used as before, with its memory"
        lost = play.said("round 2:", "client 1 is rejected")
        answered = "refused, by the client restarted in between, too"
        return [
            Row(
                "SuperNode killed within a round, then restarted",
                back,
                back if counts[2] == experiment.clients - 1 and lost and seen == twin else seen,
                lost,
                watcher.seconds(2),
            ),
            Row(
                "SuperNode killed between rounds and restarted",
                twin,
                seen,
                _last_line(play.log_of("client-2"), "goes on with what it kept"),
                seconds["back"],
            ),
            Row(
                "server asks for the same round again",
                answered,
                answered if "answers each round once" in refused[0] else f"said: {refused[0] or 'an answer'}",
                refused[0],
                0.0,
            ),
        ]


def killed_node(experiment: Experiment, folder: Path) -> list[Row]:
    """Client 1 is killed within round 2 and stays away."""
    experiment = experiment.changed(rounds=8, run_dir=str(folder / "run"), round_timeout=120.0)
    with stage(folder, experiment.clients, {1: {2: "hang"}}) as play:
        done = kill_when_at_work(play, 1, 2, restart=False)
        watcher = Between({2: lambda: wait_until(done.is_set, "client 1 is killed")})
        run = play.train(experiment, watcher)
        gone: dict[int, set[int]] = {number: {1} for number in range(2, 9)}
        right = same(weights_of(run), reference(experiment, folder, absent=gone))
        expected = f"{ALONE} once the SuperLink knows (a minute); the others' weights"
        good = right and 0 < watcher.seconds(2) < 90 and all(watcher.seconds(number) < 10 for number in range(3, 9))
        seen = expected if good else f"rounds took {[round(watcher.seconds(n)) for n in range(1, 9)]} s, weights right: {right}"
        return [Row("SuperNode killed within a round", expected, seen, play.said("round 2:", "client 1"), watcher.seconds(2))]


def slow_node(experiment: Experiment, folder: Path) -> list[Row]:
    """Client 1 answers round 2 after its timeout."""
    experiment = experiment.changed(rounds=5, run_dir=str(folder / "run"), round_timeout=TIMEOUT_SECONDS)
    with stage(folder, experiment.clients, {1: {2: f"late {SLOW_SECONDS}"}}) as play:
        watcher = Between({})
        run = play.train(experiment, watcher)
        right = same(weights_of(run), reference(experiment, folder, lost={2: {1}}))
        counts = {line["round"]: line.get("accepted") for line in run.metrics()}
        expected = f"{ALONE} after round-timeout; its late reply is not used, its next ones are"
        good = right and counts[2] == experiment.clients - 1 and counts[3] == counts[5] == experiment.clients
        seen = expected if good else f"accepted {counts}, weights right: {right}"
        line = play.said("round 2:", "client 1")
        return [Row("SuperNode slower than round-timeout", expected, seen, line, watcher.seconds(2))]


def _clients(play: Stage) -> dict[int, int]:
    """Node -> client, by the clients' own logs."""
    found = {}
    for client in range(play.running.clients):
        word = _last_line(play.log_of(f"client-{client}").replace("\n", " "), "as node").split("as node")[-1].split()[0]
        found[int(word)] = client
    return found


def _last_line(text: str, words: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if words in line), "")
