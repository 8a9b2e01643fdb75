#!/usr/bin/env python
"""What it costs to keep every update: rounds per second of the inline engine with capture='all' against capture='none'.

    .venv/bin/python scripts/bench_capture.py       # LeNet, MNIST, 4 clients, batch 8

The two take turns in one run; the ratio is the median over the pairs, so that a busy machine slows both. Final weights are
compared, and every capture is read back.
"""

import argparse
import tempfile
from pathlib import Path
from statistics import median

import torch
from bench_rounds import Clock

from fl_app import engines
from fl_app.core.local import Tensors
from fl_app.experiment.config import Experiment
from fl_app.store.captures import Captures

WARM = 20


def once(experiment: Experiment, capture: str, path: Path) -> tuple[float, Tensors, int]:
    """(rounds per second, final weights, captures that could be read back)."""
    clock = Clock()
    run = engines.run(experiment.changed(run_dir=str(path), capture=capture), "inline", clock)
    checkpoint = run.load_checkpoint()
    seen, damaged = Captures(run.path / "captures").read_all()
    assert checkpoint is not None
    assert not damaged
    return clock.rate(WARM), checkpoint.weights, len(seen)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--threads", type=int, default=2, help="1 is steadier on a machine that others use too")
    options = parser.parse_args()
    experiment = Experiment(
        model="lenet", clients=4, batch_size=8, rounds=options.rounds, eval_every=10**6, threads=options.threads
    )
    none, every = [], []
    # All runs stay until the end: ext4 makes files several times slower for seconds after as many were deleted.
    with tempfile.TemporaryDirectory() as folder:
        for repeat in range(options.repeats):
            # Who goes first changes, so that neither always has the warmer machine.
            order = ("none", "all") if repeat % 2 else ("all", "none")
            done = {capture: once(experiment, capture, Path(folder) / f"{capture}-{repeat}") for capture in order}
            none.append(done["none"][0])
            every.append(done["all"][0])
            same = all(torch.equal(value, done["all"][1][name]) for name, value in done["none"][1].items())
            assert same, "the hook changed the weights"
            print(f"  none {none[-1]:8.2f}   all {every[-1]:8.2f} rounds/s   ratio {every[-1] / none[-1]:.3f}", flush=True)
    ratio = median(a / n for a, n in zip(every, none, strict=True))
    print(f"LeNet, MNIST, 4 clients, batch 8: {options.rounds} rounds x {options.repeats}, median")
    print(f"  capture='none' {median(none):8.2f} rounds/s")
    print(f"  capture='all'  {median(every):8.2f} rounds/s   {ratio:.2f} x none (goal: at least 0.8)")
    print(f"  {done['all'][2]} captures read back, final weights bit-identical")


if __name__ == "__main__":
    main()
