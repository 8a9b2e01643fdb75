#!/usr/bin/env python
"""Do the tests notice when the code is wrong? Makes small changes of it and runs the fast tests of the function changed.

    .venv/bin/python scripts/mutants.py                                   # 300 mutants, drawn with seed 0
    .venv/bin/python scripts/mutants.py --sample 100 --seed 3 --only adversary/search
    .venv/bin/python scripts/mutants.py --only "client_defenses/prune.py" --sample 0      # all of a file
    .venv/bin/python scripts/mutants.py --control         # no change at all: every test must pass in this order, too

The files of the checkout stay as they are: a mutant lives in a forked process that imports one module from a changed syntax
tree. Which functions a test runs is recorded once (about 10 minutes; later only for test files that have changed; --fresh after
large changes of the code). See docs/testing.md.
"""

import argparse
import math
import os
import random
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, TextIO

from mutation.operators import Mutant, mutants_of, mutated
from mutation.record import Record, Recorder
from mutation.trial import SPARE, Hook, Order, forget, forked, libraries, module_name, run_tests, warm
from mutation.warm import Session

HERE = Path(__file__).resolve().parent
PACKAGES = ("client_defenses", "strategies", "adversary", "fl_app/core")
TESTS = ("core", "client_defenses", "strategies", "adversary", "models", "client", "experiment")
GOAL = 0.95
KINDS = ("caught", "timed out", "survived", "equivalent")


# Threads do not survive a fork, and hundreds of processes import the same files.
SURROUNDINGS = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # looking for plugins takes longer than most tests
}


class End(NamedTuple):
    """What became of a mutant, and why."""

    kind: str
    why: str


def main() -> int:
    """Print the mutants that were not caught; 1 if those that were are too few."""
    args = _arguments()
    root = args.root.resolve()
    os.environ.update(SURROUNDINGS)
    sys.dont_write_bytecode = False
    found = [path for name in args.tests for path in (root / "tests").glob(f"{name}/test_*.py" if "/" not in name else name)]
    files = sorted(str(path.relative_to(root)) for path in found)
    record = Record(args.record or root / "runs" / "mutants.json", fresh=args.fresh)
    warm(record.libraries(files))
    for name in record.stale(root, files):
        _remember(record, root, name)
    warm(record.libraries(files))
    if args.control:
        return _control(record, root, files)
    return _summary(_ends(args, root, files, record), args.packages)


def _ends(args: argparse.Namespace, root: Path, files: list[str], record: Record) -> dict[Mutant, End]:
    """What becomes of the mutants of the sample: of those that need an import of their own first, while nothing is imported."""
    equivalent = tomllib.loads((HERE / "mutation" / "equivalent.toml").read_text())
    drawn, ends = dict(enumerate(_drawn(args, root), 1)), dict[Mutant, End]()
    screen = _screen()

    def tell(number: int, end: End, seconds: float) -> None:
        mutant = drawn[number]
        ends[mutant] = end
        if end.kind != "caught" or args.verbose:
            line = f"{number:4} {end.kind:10} {seconds:5.1f} s  {mutant.path}:{mutant.line} {mutant.name} [{end.why}]"
            print(line, file=screen, flush=True)

    def attempt(number: int, session: Session | None) -> None:
        start = time.monotonic()
        end = _tried(drawn[number], root, record.tests_of(drawn[number], files, args.budget), session)
        tell(number, end, time.monotonic() - start)

    late = []
    for number, mutant in drawn.items():
        known = equivalent.get(mutant.path, {}).get(mutant.name)
        if known:
            tell(number, End("equivalent", known), 0)
        elif mutant.place:
            late.append(number)
        else:
            attempt(number, None)

    def work(session: Session) -> None:
        for number in late:
            attempt(number, session)

    if late:
        Session(root, work).hold(files)
    return ends


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=300, help="how many mutants; 0: all")
    parser.add_argument("--seed", type=int, default=0, help="decides which")
    parser.add_argument("--only", default="", help="mutants whose path, function and change contain this text")
    parser.add_argument("--lines", type=Path, help="only the mutants that stand in this file, such as an earlier output")
    parser.add_argument("--tests", nargs="+", default=TESTS, help="folders below tests/, or files in them")
    parser.add_argument("--budget", type=float, default=60, help="CPU seconds of tests that a mutant meets at most")
    parser.add_argument("--root", type=Path, default=HERE.parent, help="the checkout")
    parser.add_argument("--packages", nargs="+", default=PACKAGES, help="folders or files below it that are changed")
    parser.add_argument("--record", type=Path, help="where recorded tests are kept; runs/mutants.json")
    parser.add_argument("--fresh", action="store_true", help="record all tests again")
    parser.add_argument("--control", action="store_true", help="run all recorded tests on unchanged code")
    parser.add_argument("--verbose", action="store_true", help="also show the mutants that were caught, and by which test")
    return parser.parse_args()


def _remember(record: Record, root: Path, name: str) -> None:
    """Record a test file."""

    def found() -> tuple[dict[str, object], list[str]]:
        recorder = Recorder(root)
        run_tests(root, [name], recorder)
        return recorder.tests, libraries(root)

    start = time.monotonic()
    tests, imported = forked(found) or ({}, [])
    record.write(root, name, tests, imported)
    print(f"recorded {name}: {len(tests)} tests, {time.monotonic() - start:.0f} s", flush=True)


def _control(record: Record, root: Path, files: list[str]) -> int:
    """Run the tests of each file, quickest first, on unchanged code."""
    failed = []
    screen = _screen()

    def work(session: Session) -> None:
        for name in files:
            code, told = forked(lambda: session.run(record.tests_in(name))) or (1, "died")  # noqa: B023 - runs at once
            if code:
                failed.append(name)
                print(f"{name} fails on unchanged code: {told}", file=screen, flush=True)

    Session(root, work).hold(files)
    print(f"{len(files) - len(failed)} of {len(files)} test files pass on unchanged code.")
    return int(bool(failed))


def _screen() -> TextIO:
    """Where to print while pytest redirects the rest."""
    return open(os.dup(sys.stdout.fileno()), "w")


def _drawn(args: argparse.Namespace, root: Path) -> list[Mutant]:
    """The sample."""
    every = [
        mutant
        for package in args.packages
        for path in ([root / package] if package.endswith(".py") else sorted((root / package).rglob("*.py")))
        for mutant in mutants_of(root, str(path.relative_to(root)))
        if args.only in f"{mutant.path} {mutant.name}"
    ]
    if args.lines:
        told = args.lines.read_text().splitlines()
        every = [one for one in every if any(f" {one.path}:" in line and f" {one.name} [" in line for line in told)]
    random.Random(args.seed).shuffle(every)
    drawn = every[: args.sample] if args.sample else every
    print(f"{len(drawn)} of {len(every)} mutants, seed {args.seed}", flush=True)
    return drawn


def _tried(mutant: Mutant, root: Path, tests: dict[str, float], session: Session | None) -> End:
    """Run these tests on a mutant."""
    if not tests:
        return End("survived", "no fast test runs this")
    tree = mutated(root, mutant)

    def trial() -> tuple[int, str]:
        if session is not None and session.takes(mutant, tree):
            session.change(mutant, tree)
            return session.run(list(tests))
        forget(root)
        hook = Hook(root / mutant.path, module_name(mutant.path), tree)
        files = list(dict.fromkeys(test.partition("::")[0] for test in tests))
        return run_tests(root, files, Order(list(tests)), hook=hook)

    answer = forked(trial, cpu=3 * sum(tests.values()) + SPARE)
    if answer is None:
        return End("timed out", f"{len(tests)} tests")
    code, told = answer
    if not code:
        return End("survived", f"{len(tests)} tests passed")
    return End("caught", next((line for line in reversed(told.splitlines()) if line.startswith(("FAILED", "ERROR"))), "import"))


def _summary(ends: dict[Mutant, End], packages: Sequence[str]) -> int:
    """Shares by package, and of all with an interval."""
    print(f"\n{'':24}" + "".join(f"{kind:>12}" for kind in KINDS) + f"{'share caught':>16}")
    share, real = 1.0, 0
    for package in (*packages, ""):
        count = Counter(end.kind for mutant, end in ends.items() if mutant.path.startswith(package))
        real = count.total() - count["equivalent"]
        share = (count["caught"] + count["timed out"]) / real if real else 1.0
        print(f"{package or 'all':24}" + "".join(f"{count[kind]:12}" for kind in KINDS) + f"{share:16.1%}")
    low, high = _wilson(share, real)
    print(f"\n95 % interval: {low:.1%} to {high:.1%}; {real} mutants are not equivalent, one that timed out was caught.")
    return int(share < GOAL)


def _wilson(share: float, number: int, z: float = 1.96) -> tuple[float, float]:
    """The interval of a share."""
    if not number:
        return 0.0, 1.0
    middle = share + z * z / (2 * number)
    half = z * math.sqrt(share * (1 - share) / number + z * z / (4 * number * number))
    return (middle - half) / (1 + z * z / number), (middle + half) / (1 + z * z / number)


if __name__ == "__main__":
    sys.exit(main())
