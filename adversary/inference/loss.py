"""Loss threshold (Yeom et al. 2018, section 3.2): a network has a smaller loss on what it was trained on."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from adversary.inference.base import Membership, after, confidences
from fl_app.core.observation import Candidates, Observation, Task


@dataclass(frozen=True, kw_only=True)
class Loss(Membership):
    """How small the loss of a candidate is on the global network, or on the client's own after its local steps.

    The score is log(p / (1 - p)) of its class, which grows as the loss falls and does not round to 0 where the loss does.
    """

    at: Literal["global", "local"] = "global"
    """Whose network: the one that was sent out, or the client's after its local steps."""

    def believe(self, seen: Observation, task: Task, asked: Candidates) -> Tensor:
        """Log-odds of the candidates' classes, (candidates,)."""
        return confidences(task, seen.params if self.at == "global" else after(seen), asked)
