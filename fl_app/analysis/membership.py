"""What membership attacks came to over all targets and seeds of a setting: the one source of tables, curves and the gate."""

from typing import NamedTuple

import torch
from torch import Tensor

from fl_app.analysis.attackers import Attacker
from fl_app.scoring import roc
from fl_app.scoring.questions import load_judged
from fl_app.scoring.roc import Share
from fl_app.scoring.score import Summary

QUESTION = "membership"


class Told(NamedTuple):
    """One attacker, and its scores of all members, (m,), and of all others, (n,)."""

    attacker: Attacker
    members: Tensor
    others: Tensor

    def found_at(self, rate: float) -> Share | None:
        """Members above the threshold of a false-positive rate; None if there are too few others to tell it."""
        return roc.found_at(self.members, self.others, rate) if len(self.members) else None

    def summary(self, rate: float) -> Summary | None:
        """The same as a mean over targets with the Clopper-Pearson interval of all members together."""
        share = self.found_at(rate)
        if share is None:
            return None
        done = len(self.attacker.targets) - self.attacker.failed
        return Summary(share.value, share.low, share.high, done, self.attacker.failed, 0)


def told_by(attacker: Attacker) -> Told | None:
    """What an attacker told of who was there; None if it answers another question. RunError if a file is damaged."""
    if any(part.question != QUESTION for part in attacker.parts) or attacker.failed == len(attacker.targets):
        return None
    judged = [load_judged(part.folder) for part in attacker.parts if any(one.done for one in part.targets)]
    return Told(attacker, torch.cat([one.members for one in judged]), torch.cat([one.others for one in judged]))
