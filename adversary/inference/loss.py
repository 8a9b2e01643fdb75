"""Loss threshold (Yeom et al. 2018, section 3.2): a network has a smaller loss on what it was trained on."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from adversary.inference.base import Membership, after, losses
from fl_app.core.observation import Candidates, Observation, Task


@dataclass(frozen=True, kw_only=True)
class Loss(Membership):
    """The negative loss of a candidate on the global network, or on the client's own after its local steps."""

    at: Literal["global", "local"] = "global"

    def believe(self, seen: Observation, task: Task, asked: Candidates) -> Tensor:
        """Log-probabilities of the candidates' classes, (candidates,)."""
        return -losses(task, seen.params if self.at == "global" else after(seen), asked)
