"""The model of somebody else's app: a factory that its owner names, made fit for attacks, and captures made fit for it."""

import importlib
import sys
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn
from torch.func import replace_all_batch_norm_modules_, vmap

from adversary.base import AttackError
from fl_app.core import halfprecision
from fl_app.core.errors import told
from fl_app.core.local import Step, Tensors
from fl_app.core.observation import Observation, Task
from fl_app.core.parsing import with_article
from fl_app.core.space import Space
from fl_app.models.layers import Normalize

PREFIX = "net."
"""What the names of a model get when a normalisation is put before it."""
RUNNING = ("running_mean", "running_var", "num_batches_tracked")


def load(
    name: str,
    folder: Path,
    space: Space,
    num_classes: int,
    normalize: tuple[tuple[float, ...], tuple[float, ...]] | None = None,
) -> Task:
    """Call "module:function" (or "module:Class"), imported from `folder`, without arguments; refuse a model that cannot work.

    `normalize` = (mean, std) by channel is what the app does to its inputs before the model sees them.
    """
    model = _made(name, folder)
    halfprecision.require(model.parameters())
    tied = model.state_dict().keys() - {key for key, _ in [*model.named_parameters(), *model.named_buffers()]}
    if tied:
        raise AttackError(f"{name}: {sorted(tied)[0]} is another name of the same weights, and such models cannot be attacked")
    # Clients train in train mode, where BatchNorm uses its batch. Keeping running statistics is what vmap cannot do, and
    # the loss of a training step does not depend on them. Dropout is left out: nobody knows the client's masks.
    replace_all_batch_norm_modules_(model)
    model.eval()
    if normalize is not None:
        model = nn.Sequential(OrderedDict(normalize=Normalize(*normalize), net=model))
    task = Task(model, space, num_classes)
    _probe(name, task)
    return task


def _made(name: str, folder: Path) -> nn.Module:
    module, _, function = name.partition(":")
    if not all(part.isidentifier() for part in [*module.split("."), function]):
        raise AttackError(f"the model is named as module:function, such as quickstart.task:Net, not {name!r}")
    place = str(folder.resolve())
    sys.path.insert(0, place)
    try:
        importlib.invalidate_caches()
        factory = getattr(importlib.import_module(module), function)
        model = factory()
    except (Exception, SystemExit) as error:  # their code may raise anything, and a script may exit
        raise AttackError(f"{name} cannot be called in {folder}: {told(error)}") from error
    finally:
        sys.path.remove(place)
    if not isinstance(model, nn.Module):
        raise AttackError(f"{name} gives {with_article(type(model).__name__)}, not a torch module")
    return model


def _probe(name: str, task: Task) -> None:
    """Take one step as the client would, then as the attack does, so that what cannot work is said once and at the start."""
    params = {key: value.detach() for key, value in task.model.named_parameters() if value.requires_grad}
    y = torch.zeros(2, dtype=torch.int64)
    try:
        x = task.space.noise(2, torch.Generator().manual_seed(0))
        out = task.model(x)
        if out.shape != (2, task.num_classes):
            raise ValueError(f"its answer has the shape {tuple(out.shape)}, not (2, {task.num_classes})")
        Step(params, task.model, x, y).gradient()
    except Exception as error:  # of their forward pass: it may raise anything
        raise AttackError(f"{name} does not take two inputs of the shape {task.space.shape}: {_short(error)}") from error
    try:
        vmap(lambda one: Step(params, task.model, one, y).differentiable_gradient(), randomness="different")(
            torch.stack([x, x])
        )
    except Exception as error:  # of their forward pass on batched tensors, or of torch.func, which has no error of its own
        raise AttackError(
            f"{name} works, but torch.func cannot vectorise it ({_short(error)}): name a factory that builds the same weights "
            "without that layer or operation"
        ) from error


def _short(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:200] or type(error).__name__


def fitted(seen: Observation, model: nn.Module) -> Observation:
    """The observation with the trained parameters alone; what else was sent (buffers, frozen weights) goes into the model.

    Frozen values are those of the observation that came last: they are the same for all clients of a round.
    """
    prefix = PREFIX if isinstance(getattr(model, "normalize", None), Normalize) else ""
    params, update = ({prefix + name: value for name, value in each.items()} for each in (seen.params, seen.update))
    wanted: Tensors = dict(model.state_dict())
    missing = [name for name in wanted if name not in params]
    unknown = [name for name in params if name not in wanted and name.rpartition(".")[2] not in RUNNING]
    wrong = [name for name, value in wanted.items() if name in params and params[name].shape != value.shape]
    if missing or unknown or wrong:
        words = ", ".join(
            f"{word} {[name.removeprefix(prefix)[:60] for name in names[:3]]}"
            for word, names in (("missing", missing), ("unknown", unknown), ("of another shape", wrong))
            if names
        )
        raise AttackError(f"the capture is not of this model: {words}")
    trained = [name for name, value in model.named_parameters() if value.requires_grad]
    with torch.no_grad():
        for name, value in wanted.items():
            if name not in trained:
                value.copy_(params[name])
    return replace(seen, params={name: params[name] for name in trained}, update={name: update[name] for name in trained})
