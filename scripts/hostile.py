#!/usr/bin/env python
"""Commands as a careless or hostile person types them: none may end with a traceback, a wrong exit code or vague words.

hostile.py                     # all, about a minute on two cores; exit code 1 if one answers otherwise
hostile.py --only "deploy"     # those whose line has this in it
hostile.py --show              # also what each says
"""

import argparse
import gc
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from abuse import apps, attacks, datasets, deploys, results, runs, stage, sweeps, things
from abuse.case import Answer, Case, faults, squeezed
from abuse.child import LOOK, NOBODY, Child

CASES: tuple[Case, ...] = (
    *runs.CASES,
    *datasets.CASES,
    *attacks.CASES,
    *apps.CASES,
    *results.CASES,
    *sweeps.CASES,
    *things.CASES,
    *deploys.CASES,
)
WARM = (
    "fl_app.cli.main",
    "fl_app.cli.attack",
    "fl_app.cli.audit",
    "fl_app.cli.evaluator",
    "fl_app.cli.generator",
    "fl_app.analysis.fit_rule",
    "fl_app.analysis.gate_app",
    "fl_app.attacking.background",
    "fl_app.client_app",
    "fl_app.engines.grpc.local",
    "fl_app.engines.grpc.node",
    "fl_app.engines.inline",
    "fl_app.report.export",
    "fl_app.sweeps.command",
    "fl_app.core.vision",
    "flwr_datasets",
    "ray",
)
"""What is imported once; nothing may compute or start threads before the children are forked."""


class Running:
    """A case at work: the other process that it meets, then its own, which may get a signal."""

    def __init__(self, case: Case, here: Path, template: Path) -> None:
        self.case, self.here = case, here
        shutil.copytree(template, here, symlinks=True)
        if case.before:
            case.before(here)
        if case.as_user and not os.geteuid():
            for path in (here, *here.rglob("*")):
                os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
        self.other = Child(case.meanwhile[0], here, Case("", 0, "")) if case.meanwhile else None
        self.child = None if self.other else Child(case.line, here, case)
        self.sent = False

    def ended(self) -> bool:
        """Look at it, and do what is due."""
        if self.child is None:
            assert self.other is not None
            assert self.case.meanwhile is not None
            if not self.other.ended() and not _there(self.here / self.case.meanwhile[1]):
                return False
            self.child = Child(self.case.line, self.here, self.case)
        if self.case.signal and not self.sent and _there(self.here / self.case.signal[1]):
            self.sent = True
            self.child.send(self.case.signal[0])
        return self.child.ended()

    def answer(self) -> Answer:
        """What it did, once all that it left behind is gone."""
        assert self.child is not None
        self.end()
        shutil.rmtree(self.here, ignore_errors=True)
        return self.child.answer()

    def end(self) -> None:
        """End its processes, and what they started."""
        for one in (self.child, self.other):
            if one is not None:
                one.kill()


def _there(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


def answers(cases: Sequence[Case], template: Path, at_once: int) -> Iterator[tuple[Case, Answer]]:
    """Run cases, so many side by side."""
    waiting, running = list(enumerate(cases)), list[Running]()
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                number, case = waiting.pop(0)
                running.append(Running(case, template.parent / str(number), template))
            for one in [one for one in running if one.ended()]:
                running.remove(one)
                yield one.case, one.answer()
            time.sleep(LOOK)
    finally:
        for one in running:
            one.end()


def make_stage(here: Path) -> None:
    """The folder that every case gets a copy of, made in children: this process must stay without threads."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            stage.build(here)
            stage.capture(here)
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    for line in stage.MADE:
        child = Child(line, here, Case("", 0, ""))
        while not child.ended():
            time.sleep(LOOK)
        assert child.code == 0, child.answer()
    shutil.rmtree(here / "cache")
    (here / "cache").mkdir()


def untried() -> list[str]:
    """The commands of `thorns` that nobody tries."""
    import typer

    from fl_app.cli.main import app

    whole = typer.main.get_command(app)
    names = [
        f"{name} {inner}".strip() for name, one in whole.commands.items() for inner in getattr(one, "commands", {"": None})
    ]
    return [name for name in names if not any(case.line.startswith(name) for case in CASES)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="a part of the lines that are wanted")
    parser.add_argument("--show", action="store_true", help="show every answer")
    parser.add_argument("--at-once", type=int, default=2, help="commands side by side")
    args = parser.parse_args()
    began = time.monotonic()
    for name in WARM:
        __import__(name)
    gc.collect()
    gc.freeze()  # else the first collection in each child would copy every page of what is shared
    cases = [case for case in CASES if args.only in case.line]
    wrong, seconds = 0, dict[str, float]()
    with tempfile.TemporaryDirectory(prefix="thorns-hostile-", ignore_cleanup_errors=True) as text:
        os.chmod(text, 0o755)
        template = Path(text) / "stage"
        template.mkdir()
        make_stage(template)
        for case, answer in answers(cases, template, args.at_once):
            seconds[case.line] = round(answer.seconds, 1)
            found = faults(case, answer)
            wrong += bool(found)
            if found or args.show:
                print(f"{'WRONG' if found else 'ok'}: thorns {case.line}\n  {'; '.join(found)}", flush=True)
                print(f"  {answer.code} {answer.seconds:.1f} s: {squeezed(answer.out + ' | ' + answer.err)[:1500]}", flush=True)
    missed = untried()
    for name in missed:
        print(f"WRONG: nobody tries thorns {name}")
    slowest = sorted(seconds.items(), key=lambda one: -one[1])[:3]
    print(f"{len(cases)} commands, {wrong} wrong, {time.monotonic() - began:.0f} s; slowest: {slowest}")
    sys.exit(1 if wrong or missed else 0)


if __name__ == "__main__":
    main()
