#!/usr/bin/env python
"""How much faster a sweep is on two workers than its cells alone, and whether it survives SIGKILL.

.venv/bin/python scripts/bench_sweep.py [--small] [--kill] [--alone 8] [--workers 2] [--work runs/bench-sweep]

24 cells on MNIST: 8 defense settings x 3 seeds, each trained and attacked on 16 targets. Alone: every cell in a process of its
own, one after the other, one thread, nothing else running; what counts is the work in it, without the start of Python. The
sweep's time is that of the whole command: start, workers, cells, report. With --kill the sweep is also killed in the middle
and started again. The machine must have nothing else to do.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

FILE = """\
title = "Benchmark of sweeps"
seeds = {seeds}
attacks = ["inverting_gradients(iterations={iterations})"]
[run]
dataset = "mnist"
model = "lenet"
clients = 4
batch-size = 32
optimizer = "adam(lr=0.003)"
rounds = {rounds}
eval-every = {rounds}
defense = ["none", {defenses}]
[targets]
clients = {targets}
client-examples = 1
batch-size = 1
rounds = 1
capture = "1"
"""
FULL = {
    "seeds": [0, 1, 2],
    "iterations": 500,
    "rounds": 400,
    "defenses": '"gradient_dropout(p={0.96,0.8,0.6})", "prune(ratio={0.9,0.99})", "dp_gaussian(scale={0.001,0.01})"',
    "targets": 16,
}
SMALL = {"seeds": [0, 1], "iterations": 20, "rounds": 20, "defenses": '"prune(ratio={0.9,0.99})"', "targets": 4}
GOAL, IDEAL = 0.85, 2


def one_cell(path: Path, out: Path, number: int) -> None:
    """Do one cell in this process and print the seconds of its work."""
    from fl_app.sweeps.expand import make_plan
    from fl_app.sweeps.file import read_sweep
    from fl_app.sweeps.work import do

    plan = make_plan(read_sweep(path)[0], out, str(path), "bench")
    if number < len(plan.cells):
        plan.save(path.read_text())
        began = time.monotonic()
        for unit in plan.cells[number].units:
            do(unit)
        print(json.dumps({"cell": plan.cells[number].name, "seconds": time.monotonic() - began}))


def cell_command(path: Path, out: Path, number: int) -> list[str]:
    """One cell in a process of its own."""
    return [sys.executable, __file__, "--cell", str(number), "--work", str(out), "--file", str(path)]


def alone(path: Path, work: Path, most: int) -> tuple[list[float], float]:
    """(seconds of the work in each cell, all of it with the start of Python), each cell in its own process and folder."""
    inside: list[float] = []
    whole = 0.0
    for number in range(most):
        began = time.monotonic()
        words = cell_command(path, work / f"alone-{number}", number)
        said = subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
        if not said:
            break
        whole += time.monotonic() - began
        found = json.loads(said.splitlines()[-1])
        inside.append(found["seconds"])
        print(f"  alone: {found['cell']}: {found['seconds']:.1f} s", flush=True)
    return inside, whole


def pair(path: Path, work: Path, number: int) -> float:
    """Seconds of the work in a cell while its double runs beside it: what the machine itself allows two workers."""
    doubles = [
        subprocess.Popen(cell_command(path, work / f"pair-{one}", number), stdout=subprocess.PIPE, text=True)
        for one in range(2)
    ]
    said = [double.communicate()[0] for double in doubles]
    return float(max(json.loads(text.strip().splitlines()[-1])["seconds"] for text in said))


def command(path: Path, out: Path, workers: int) -> list[str]:
    """The sweep as a person types it."""
    return [str(Path(sys.executable).parent / "thorns"), "sweep", str(path), "--out", str(out), "--workers", str(workers)]


def journal(out: Path, event: str) -> Counter[str]:
    """How often something happened to each unit."""
    path = out / "journal.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return Counter(line["unit"] for line in lines if line["event"] == event)


def finished(out: Path) -> set[str]:
    """The units with a record."""
    return {path.stem for path in (out / "work").glob("*.json") if not path.name.startswith(".")}


def results(out: Path) -> dict[str, Any]:
    """Metrics and scores of every run, without their clocks."""
    found = {}
    for name in ("metrics.jsonl", "scores.jsonl"):
        for path in out.rglob(name):
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            found[str(path.relative_to(out))] = [
                {key: line[key] for key in line if not key.endswith("seconds")} for line in lines
            ]
    return found


def killed(path: Path, out: Path, workers: int, whole: Path) -> bool:
    """Kill a sweep when half of its units are done, start it again, and say what was repeated or lost."""
    wanted = len(finished(whole))
    process = subprocess.Popen(command(path, out, workers), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while len(finished(out)) < wanted // 2:
        if process.poll() is not None:
            raise SystemExit("the sweep ended before it could be killed")
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept, before = finished(out), journal(out, "started")
    print(f"killed with {len(kept)} of {wanted} units finished and {len(set(before) - kept)} under way", flush=True)
    subprocess.run(command(path, out, workers), check=True, stdout=subprocess.DEVNULL)
    after = journal(out, "started")
    repeated = [name for name in kept if after[name] != 1]
    lost = finished(whole) - finished(out)
    same = results(out) == results(whole)
    again = sum(after[name] > 1 for name in after)
    print(f"after the same command: {len(repeated)} finished units repeated, {len(lost)} lost, {again} begun a second time")
    print(f"metrics and scores are {'the same as' if same else 'NOT THOSE OF'} the sweep that was not killed")
    return not repeated and not lost and same


def main() -> int:
    """Measure and say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="6 short cells: shows that it works; its figures mean nothing")
    parser.add_argument("--kill", action="store_true", help="also kill a sweep in the middle and start it again")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--alone", type=int, default=1000, help="time only so many cells alone, and count them for all")
    parser.add_argument("--work", type=Path, default=Path("runs/bench-sweep"), help="is emptied first")
    parser.add_argument("--cell", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    if options.cell is not None:
        one_cell(options.file, options.work, options.cell)
        return 0
    shutil.rmtree(options.work, ignore_errors=True)
    options.work.mkdir(parents=True)
    path, out = options.work / "bench.toml", options.work / "sweep"
    path.write_text(FILE.format(**(SMALL if options.small else FULL)))
    load = os.getloadavg()[0]
    if load > 0.5:
        print(f"the machine is busy (load {load:.1f}): what follows is not to be trusted", flush=True)
    cells, started = alone(path, options.work, options.alone)
    last = len(cells) - 1
    ceiling = 2 * cells[last] / pair(path, options.work, last)
    began = time.monotonic()
    subprocess.run(command(path, out, options.workers), check=True)
    wall = time.monotonic() - began
    planned = len(json.loads((out / "plan.json").read_text())["cells"])
    inside = sum(cells) * planned / len(cells)
    share = inside / wall / IDEAL
    print(f"{len(cells)} of {planned} cells alone: {sum(cells):.1f} s of work ({started:.1f} s with the starts of Python)")
    print(f"the machine: two doubles of a cell at once are {ceiling:.2f} x as fast as one after the other")
    print(f"the sweep on {options.workers} workers: {wall:.1f} s, {inside / wall:.2f} x as fast")
    print(
        f"share of the ideal two-core speed-up: {share:.2f} (goal: {GOAL}); of the machine's own: {inside / wall / ceiling:.2f}"
    )
    survived = killed(path, options.work / "killed", options.workers, out) if options.kill else True
    return 0 if survived and (options.small or share >= GOAL) else 1


if __name__ == "__main__":
    raise SystemExit(main())
