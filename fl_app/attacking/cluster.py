"""Attack jobs on the nodes of a Ray cluster, side by side; answers come back to the run's folder on this machine."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from fl_app.attacking.jobs import Job, Learning, Outcome, run_job
from fl_app.attacking.worker import Worker
from fl_app.cluster.bundle import Bundle, files_in, pack, unpack
from fl_app.cluster.connect import ClusterError
from fl_app.cluster.team import Done, Team
from fl_app.core.places import cache_dir
from fl_app.store.files import RunError

MOST = 1024
"""Workers that an attack can be of use to."""
LOOK = 0.5
LEARNED = "learned"
"""The folder of what was learned at weights of this run, in its folder and on nodes."""


def do_there(folder: Path, job: Job) -> list[Outcome]:
    """Run a job on a node, in a folder that holds what it needs of the run's."""
    run, learning = job.captures.parent, job.learning
    if learning:
        own = folder / LEARNED if learning.folder == run / LEARNED else cache_dir() / learning.folder.name
        learning = Learning(folder / learning.public.relative_to(run), own)
    return run_job(replace(job, captures=folder / "captures", out=folder / job.out.relative_to(run), learning=learning))


def files_for(job: Job) -> Bundle:
    """What a job needs of the run's folder: captures of its targets with their weights, and what is learned from."""
    run = job.captures.parent
    rounds = {server_round for server_round, _ in job.keys}
    updates = {f"client-{client:02d}.safetensors" for _, client in job.keys}
    names = []
    for name in files_in(job.captures):
        folder, _, file = name.partition("/")
        wanted = not file.startswith("client-") or file in updates
        if wanted and folder.removeprefix("round-").isdecimal() and int(folder.removeprefix("round-")) in rounds:
            names.append(f"captures/{name}")
    if job.learning:
        names.append(job.learning.public.relative_to(run).as_posix())
        names += [f"{LEARNED}/{name}" for name in (files_in(run / LEARNED) if (run / LEARNED).is_dir() else ())]
    return pack(run, names)


def keep(job: Job, files: Bundle) -> None:
    """Write what a job made into the run's folder."""
    run = job.captures.parent
    out = job.out.relative_to(run).as_posix()
    if any(not entry.name.startswith((f"{out}/", f"{LEARNED}/")) for entry in files.entries):
        raise RunError(f"a node sent files that do not belong to {out}")
    unpack(files, run)


class ClusterWorker(Worker):
    """Runs jobs wherever the cluster has room: an actor per CPU (or as many as a job has threads), or per GPU."""

    def __init__(self, *, device: str = "cpu", threads: int = 1) -> None:
        self._team = Team({}, most=MOST, cpus=threads, device=device)

    def run(self, job: Job) -> list[Outcome]:
        """Run one job."""
        ((outcomes, _),) = self.run_all([job])
        return outcomes

    def together(self, targets: int, at_once: int) -> int:
        """So few that everybody has some."""
        return max(1, min(at_once, -(-targets // self._team.number)))

    def run_all(self, jobs: Iterable[Job]) -> Iterator[tuple[list[Outcome], float]]:
        """Run jobs side by side."""
        waiting, running = enumerate(jobs), dict[str, tuple[Job, float]]()
        following = next(waiting, None)
        while following or running:
            while following and self._team.free:
                number, job = following
                if job.task.code is not None:
                    raise ClusterError("captures of another app are attacked on this machine: nodes do not have its code")
                running[str(number)] = job, time.monotonic()
                self._team.begin(str(number), do_there, job, files_for(job))
                following = next(waiting, None)
            for done in self._team.wait(LOOK):
                job, began = running.pop(done.name)
                yield _outcomes(job, done), time.monotonic() - began

    def close(self) -> None:
        """End the actors."""
        self._team.close()


def _outcomes(job: Job, done: Done) -> list[Outcome]:
    """What became of a job's targets; what cannot be kept has failed."""
    trouble = done.trouble
    if done.files is not None:
        try:
            keep(job, done.files)
            outcomes: list[Outcome] = done.answer
            return outcomes
        except RunError as error:
            trouble = f"what came back cannot be kept: {error}"
    return [Outcome(key, "failed", trouble) for key in job.keys]
