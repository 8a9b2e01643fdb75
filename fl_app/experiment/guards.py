"""How much of what a guard measures is too much: `guard = "warn"`, `guard = "refuse(solo=0.4, d_snr=5.0)"`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

from pydantic import Field

from fl_app.core import spec

Limit = Annotated[float, Field(gt=0)] | None
"""The most that is taken; None: all is."""


class Finding(NamedTuple):
    """A measure above its limit, or near it."""

    name: str
    value: float
    limit: float
    refused: bool

    def __str__(self) -> str:
        return f"{self.name} is {self.value:.3g}, {'more than' if self.refused else 'near the limit of'} {self.limit:.3g}"


@dataclass(frozen=True, kw_only=True)
class Guard(spec.Checked):
    """A limit for each check by its name; how they were chosen is in docs/guard.md."""

    refuses: ClassVar[bool]

    transmit: Limit = 4.0
    """Transmit-SNR of a kernel of the first convolution."""
    duplicates: Limit = 0.2
    """Share of the rows of a hidden fully connected layer that are like another one."""
    aligned: Limit = 20.0
    """Energy of a hidden fully connected layer in one direction over that in all others."""
    balance: Limit = 0.5
    """Share of the rows of a hidden fully connected layer with exactly as many negative as positive weights."""
    empty_rows: Limit = 0.3
    """Share of the classes without weights in the last layer."""
    peak: Limit = 1.0
    """Transmit-SNR of a class in the last layer."""
    bias: Limit = 20.0
    """Spread of the classes' biases over the norm of their weights."""
    pixels: Limit = 0.5
    """Neurons that read all pixels in front of the network proper."""
    rank: Limit = None
    """Equations for each unknown of the scarcest layer; a risk that honest networks have too."""
    loss: Limit = 30.0
    """The loss over the largest of earlier rounds, or of a guess."""
    d_snr: Limit = None
    """D-SNR; honest batches of trained networks reach 30,000, so a limit here is a demand and no suspicion."""
    excess: Limit = 20.0
    """D-SNR over what the loss explains, from 8 examples on."""
    solo: Limit = 0.75
    """Share of a hidden fully connected layer's neurons in use that one example alone reaches, from 32 examples on."""
    lone: Limit = None
    """As `aligned`, of the update itself: one example's is of rank 1. A demand as well."""
    caution: Annotated[float, Field(gt=0, le=1)] = 0.6
    """The share of a limit above which there is a warning."""

    def findings(self, measured: Mapping[str, float]) -> list[Finding]:
        """What is above a limit, or near it, the worst first; what has no setting of its own is above in any amount."""
        found = []
        for name, value in measured.items():
            limit = getattr(self, name, 0.0)
            if limit is not None and not value <= limit * self.caution:  # nan is no small number
                found.append(Finding(name, value, limit, not value <= limit))
        return sorted(found, key=lambda one: (not one.refused, one.name))


@dataclass(frozen=True, kw_only=True)
class Off:
    """Checks nothing."""


@dataclass(frozen=True, kw_only=True)
class Warn(Guard):
    """Writes what is above a limit, or near it, into the client's log, and answers."""

    refuses: ClassVar[bool] = False


@dataclass(frozen=True, kw_only=True)
class Refuse(Guard):
    """Does not answer above a limit, and warns near it."""

    refuses: ClassVar[bool] = True


GUARDS: dict[str, type[Off | Warn | Refuse]] = {"off": Off, "refuse": Refuse, "warn": Warn}


def build(text: str) -> Guard | None:
    """`"refuse(solo=0.4)"` -> a guard; None if it is off."""
    made = spec.build_one("guard", text, GUARDS)
    return made if isinstance(made, Guard) else None
