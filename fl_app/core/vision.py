"""The one place that imports torchvision; everything else says `from fl_app.core.vision import torchvision`.

A CUDA build of torchvision cannot load its C++ operators beside a CPU build of torch, and its import then fails because
two of them have no schema. Nothing here uses those operators: where they are missing, their schemas are declared.
"""

import sys

import torch

_kept: list[torch.library.Library] = []  # a library's definitions last as long as the object


def _declare_missing_operators() -> None:
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _kept.append(library)


try:
    import torchvision
except RuntimeError as error:
    if "torchvision::nms" not in str(error):
        raise
    for module in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[module]
    _declare_missing_operators()
    import torchvision

__all__ = ["torchvision"]
