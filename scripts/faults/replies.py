"""Faults of what a registered client sends: each costs its own reply, one line in the log, and nothing else."""

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from faults.stage import Between, Row, Stage, reference, same, stage, weights_of
from fl_app.experiment.config import Experiment

FAULTS = {
    "nan": ("sends NaN", "values that are not finite"),
    "shapes": ("sends wrong shapes", "has the shape"),
    "garbage": ("sends garbage for arrays", "does not start with the header"),
    "no message": ("sends garbage for a message", "its bytes are not a message"),
    "forged": ("names another sender", "it names another sender"),
    "half": ("announces a reply and never sends it", "no reply within"),
    "big": ("sends 300 MB", "it is larger than"),
    "twice": ("sends the same reply twice", ""),
}
"""fault -> (what it is, what the log says of it)."""
BAD, CLIENT = "rejected with one line; the others' weights", 1


def memory_of(pid: int) -> float:
    """Megabytes that a process has in memory (Linux)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1000
    return 0.0


def hostile_replies(experiment: Experiment, folder: Path, faults: Sequence[str] = tuple(FAULTS)) -> list[Row]:
    """One client that sends something else in every second round."""
    rounds = {2 * number: fault for number, fault in enumerate(faults, 1)}
    experiment = experiment.changed(rounds=len(rounds) * 2 + 1, run_dir=str(folder / "run"), round_timeout=12.0)
    with stage(folder, experiment.clients, {CLIENT: rounds}) as play:
        pids = {"SuperLink": play.running.processes.running["superlink"].pid, "server": os.getpid()}
        grown: dict[int, dict[str, float]] = {}

        def measure(server_round: int) -> None:
            grown[server_round] = {name: memory_of(pid) for name, pid in pids.items()}

        watcher = Between({number: partial(measure, number) for number in range(experiment.rounds + 1)})
        run = play.train(experiment, watcher)
        gaps = {number: {CLIENT} for number, fault in rounds.items() if fault != "twice"}
        right = same(weights_of(run), reference(experiment, folder, lost=gaps))
        counts = {line["round"]: line for line in run.metrics()}
        rows = [_row(play, experiment, watcher, number, fault, counts, right=right) for number, fault in rounds.items()]
        for number, fault in rounds.items():
            if fault == "big":
                rows += [_grown(name, grown, number, experiment.rounds) for name in pids]
    return rows


def _grown(name: str, grown: dict[int, dict[str, float]], big: int, last: int) -> Row:
    """Whether a process has given the memory of a large reply back."""
    before, after, end = (grown[number][name] for number in (big - 1, big, last))
    expected = "less than 100 MB more in the end"
    seen = expected if end - before < 100 else f"{end - before:.0f} MB more"
    line = f"(resident: {before:.0f} MB before, {after:.0f} MB after that round, {end:.0f} MB in the end)"
    return Row(f"memory of the {name} after 300 MB", expected, seen, line, 0.0)


def _row(
    play: Stage,
    experiment: Experiment,
    watcher: Between,
    number: int,
    fault: str,
    counts: dict[int, dict[str, int]],
    *,
    right: bool,
) -> Row:
    words, reason = FAULTS[fault]
    told = [line for line in play.lines.said if line.startswith(f"round {number}:")]
    if fault == "twice":
        expected = "counted once; the undisturbed weights"
        good = counts[number]["accepted"] == experiment.clients and not told
        line = next((t for t in play.log_of("superlink").splitlines() if "duplicate" in t), "(none)")
    else:
        expected = BAD
        good = counts[number]["rejected"] == 1 and len(told) == 1 and reason in told[0]
        line = " / ".join(told)
    seen = (
        expected if good and right else f"counts {counts[number]}, {len(told)} lines, weights {'right' if right else 'WRONG'}"
    )
    return Row(words, expected, seen, line, watcher.seconds(number))
