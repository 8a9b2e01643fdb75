"""The public `breaching` package, for benchmarks: fetched into a folder that is thrown away, one preset on one update."""

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from fl_app.core.observation import Observation, Task
from fl_app.core.vision import torchvision  # noqa: F401  (breaching imports torchvision: the guard has to come first)

PACKAGES = ("breaching==0.1.2", "hydra-core==1.3.2", "omegaconf==2.3.0", "antlr4-python3-runtime==4.9.3")
EVERY = 50
"""Iterations between two looks at a reconstruction."""


@contextmanager
def breaching() -> Iterator[Any]:
    """The package, for as long as it is needed."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", folder, *PACKAGES], check=True)
        sys.path.insert(0, folder)
        try:
            import breaching as package

            yield package
        finally:
            sys.path.remove(folder)


class Enough(Exception):
    """The time is used."""


def preset(
    package: Any,
    name: str,
    seen: Observation,
    labels: Tensor,
    task: Task,
    *,
    see: Callable[[Tensor], bool] = lambda _: False,
    iterations: int = 0,
) -> Tensor:
    """What a preset of breaching makes of one update, (1, examples, *shape); `see` looks on and may end it."""
    config = package.get_attack_config(name)
    config.optim.max_iterations = iterations or config.optim.max_iterations
    config.optim.callback = 10**9
    attacker = package.attacks.prepare_attack(
        task.model, torch.nn.CrossEntropyLoss(), config, {"dtype": torch.float, "device": torch.device("cpu")}
    )
    inner, last = attacker._compute_objective, []

    def watching(candidate: Tensor, *rest: Any) -> Any:
        last[:] = [candidate]
        if rest[-1] % EVERY == 0 and see(candidate.detach()[None]):
            raise Enough
        return inner(candidate, *rest)

    attacker._compute_objective = watching
    shape, channels = list(task.space.shape), task.space.shape[0]
    facts = SimpleNamespace(
        shape=shape, modality="vision", classes=10, mean=[0.0] * channels, std=[1.0] * channels, task="classification"
    )
    payload = [{"parameters": list(seen.params.values()), "buffers": [], "metadata": facts}]
    notes = {"num_data_points": seen.num_examples, "labels": labels, "local_hyperparams": None}
    shared = [{"gradients": list(seen.update.values()), "buffers": None, "metadata": notes}]
    try:
        found = attacker.reconstruct(payload, shared, {}, dryrun=False)[0]["data"]
    except Enough:
        found = last[0]
    return found.detach().clamp(0, 1)[None]
