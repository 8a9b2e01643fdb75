"""Attacking while training goes on: a thread that hands captured targets to a worker in another process."""

import logging
import threading
from types import TracebackType
from typing import Self

from fl_app.attacking.jobs import Outcome
from fl_app.attacking.session import Session
from fl_app.attacking.worker import make_worker
from fl_app.cluster.connect import ClusterError, on_cluster
from fl_app.core.errors import said
from fl_app.core.observation import Observation
from fl_app.experiment.config import Experiment
from fl_app.experiment.grants import parse_grants
from fl_app.store.files import RunError
from fl_app.store.runs import RunDir

log = logging.getLogger("thorns")
AT_ONCE = 64


class Background:
    """Works on captures as they come; the disk is the queue, so training never waits and memory stays bounded.

    What is left when training ends stays on disk, for `thorns attack` (which `thorns run` calls by itself).
    """

    def __init__(self, run: RunDir, attack: str, grants: str) -> None:
        self._run, self._attack, self._grants = run, attack, parse_grants([grants])
        self._news = threading.Event()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="attacks", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._over.set()
        self._news.set()
        self._thread.join()

    def on_capture(self, _seen: Observation) -> None:
        """Called by the hook; only wakes the thread."""
        self._news.set()

    def _work(self) -> None:
        try:
            if on_cluster():
                raise ClusterError("clients take all of the cluster")
            worker = make_worker("ray")
        except (RuntimeError, OSError, ImportError, ValueError) as error:
            log.warning("no attack worker beside the training (%s); the captures are attacked afterwards", said(error))
            return
        try:
            session = Session(self._run, self._attack, self._grants, worker)
            while not self._over.is_set():
                self._news.wait()
                self._news.clear()
                try:
                    waiting = session.pending(session.captured())
                except RunError:  # nothing captured yet
                    continue
                for start in range(0, len(waiting), AT_ONCE):
                    if self._over.is_set():
                        break
                    try:
                        with session.alone():
                            session.work(waiting[start : start + AT_ONCE], AT_ONCE, self._done)
                    except RunError as error:
                        log.info("not attacked beside the training: %s", error)
                        break
        except Exception:  # training must not end because an attack did; what is open is attacked afterwards
            log.warning("attacking beside the training ended early; the rest is attacked afterwards", exc_info=True)
        finally:
            worker.close()

    def _done(self, outcomes: list[Outcome]) -> None:
        failed = [outcome for outcome in outcomes if outcome.status == "failed"]
        log.debug("attacked %d targets, %d failed", len(outcomes), len(failed))


def beside(run: RunDir, experiment: Experiment) -> Background | None:
    """What attacks a run while it trains, if its settings ask for that."""
    wanted = experiment.attack != "none" and experiment.worker == "ray"
    return Background(run, experiment.attack, experiment.grant) if wanted else None
