"""What the architecture betrays: a layer put in front of the agreed network, and how many equations it makes of an example."""

from collections.abc import Iterable
from functools import lru_cache

from torch import Size

from fl_app.client.guard.watch import Notes
from fl_app.client.guard.weights import linear_names
from fl_app.core.local import Tensors
from fl_app.models import build


def agreed(params: Tensors, models: Iterable[str], input_shape: tuple[int, ...], classes: int) -> bool:
    """Whether the weights are those of a model that was agreed on: what a run calls its model says little."""
    shapes = tuple(value.shape for value in params.values())
    return any(shapes == _shapes(model, input_shape, classes) for model in models)


@lru_cache(maxsize=16)
def _shapes(model: str, input_shape: tuple[int, ...], classes: int) -> tuple[Size, ...]:
    return tuple(value.shape for value in build(model, input_shape, classes).parameters())


def front_neurons(params: Tensors, pixels: int) -> float:
    """Neurons of fully connected layers that read a whole picture or more in front of the network proper.

    That is in front of a convolution, or of a fully connected layer that reads or gives as many numbers as the picture has
    pixels: the imprint block of Fowl et al. (2022), and LOKI's.
    """
    shapes = [value.shape for value in params.values() if value.ndim in (2, 4)]
    reads = [place for place, shape in enumerate(shapes) if len(shape) == 2 and shape[0] > 1 and shape[1] >= pixels]
    goes_on = [len(after) == 4 or pixels in after for after in shapes]
    return float(sum(shapes[place][0] for place in reads if any(goes_on[place + 1 :])))


def rank(params: Tensors, notes: Notes) -> float:
    """Equations for each unknown, of the layer that has the fewest: R-GAP's count (Zhu and Blaschko 2021, section 4).

    A layer's input is unknown; the entries of its weight's gradient, shared by the batch, and its output constrain it. From 1
    on the input of every layer, and so the example, can follow from the gradient.
    """
    names = {name.removesuffix(".weight") for name in (*linear_names(params), *(n for n, v in params.items() if v.ndim == 4))}
    shares = [
        (params[f"{one.layer}.weight"].numel() / len(one.slopes) + one.fan_out) / one.fan_in
        for one in notes.layers
        if one.layer in names
    ]
    return min(shares, default=0.0)
