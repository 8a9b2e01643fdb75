"""What may work on the captures of a run while it is trained."""

from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

from fl_app.core.observation import Observation
from fl_app.experiment.config import Experiment
from fl_app.store.runs import RunDir


class Beside(Protocol):
    """Something that works on captures while training goes on."""

    def on_capture(self, seen: Observation) -> None:
        """Called with each capture; must return at once."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...


MakeBeside = Callable[[RunDir, Experiment], Beside | None]
"""Given by whoever starts a run, so that engines need not know what attacks are."""
