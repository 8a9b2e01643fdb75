"""The noise ratio (Refiner, section 5.3): how large a share of an image the evaluation network takes for noise."""

from pathlib import Path

import torch
from torch import Tensor

from client_defenses.tools import evaluator as evaluation
from client_defenses.tools.evaluator import EvaluatorError
from fl_app.scoring.base import Unavailable

CHUNK = 512


@torch.no_grad()
def noise_ratio(x: Tensor, evaluator: str | Path | None) -> Tensor:
    """D of images (n, c, h, w) in [0, 1] -> float64 (n,), 1 is pure noise. Raises Unavailable(reason) without a network.

    It looks at one image, not at a pair. A reconstruction that refiner's own network was fooled by gets a high value from that
    network, so a network with another seed is the fairer judge.
    """
    if not evaluator:
        raise Unavailable("there is no evaluation network for these images; make one with `thorns train-evaluator`")
    try:
        network = evaluation.load(evaluator, x.device)
        return torch.cat([network(some.detach()) for some in x.split(CHUNK)]).double()
    except EvaluatorError as error:
        raise Unavailable(str(error)) from error
