"""What an experiment is made of - data, shares, model, defense - built once per process and shared by its clients."""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn

import client_defenses
from fl_app import data, models
from fl_app.core import halfprecision
from fl_app.core.local import Tensors
from fl_app.core.seeds import derive, generator
from fl_app.core.space import Space
from fl_app.data.batches import round_positions
from fl_app.data.partitions import partition
from fl_app.data.splits import Splits, split
from fl_app.experiment.config import Experiment
from fl_app.experiment.evaluators import prepared
from fl_app.experiment.limits import check_limits


@dataclass(frozen=True)
class Assets:
    """The parts of one experiment."""

    experiment: Experiment
    splits: Splits
    shares: list[Tensor]
    num_classes: int
    space: Space
    model: nn.Module
    defense: client_defenses.Defense
    device: str

    def batch(self, client: int, server_round: int) -> tuple[Tensor, Tensor]:
        """The examples that a client uses in a round: x (n, *shape) in [0, 1], y (n,)."""
        share = self.shares[client]
        wanted = self.experiment.rule.num_examples
        x, y = self.splits.train.at(share[round_positions(self.experiment.seed, client, server_round, wanted, len(share))])
        return (x, y) if self.device == "cpu" else (x.to(self.device), y.to(self.device))


def device_of(name: str) -> str:
    """The device that a setting means on this machine."""
    if name == "cuda" and not torch.cuda.is_available():
        raise RuntimeError("device = 'cuda' was asked for, but torch sees no GPU here; use device = 'cpu' or 'auto'")
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return name


@lru_cache(maxsize=2)
def _splits(dataset: str, text: str, seed: int) -> Splits:
    return split(data.load(dataset), text, seed)


@lru_cache(maxsize=4)
def assets_of(experiment: Experiment) -> Assets:
    """Build the parts of an experiment, once its settings are known to be within what data and memory allow."""
    check_limits(experiment)
    dataset = data.load(experiment.dataset)
    splits = _splits(experiment.dataset, experiment.split, experiment.seed)
    shares = partition(splits.train.y, experiment.partition, experiment.clients, experiment.seed, data.cache_dir())
    if experiment.client_examples:
        shares = [_owned(share, experiment, client) for client, share in enumerate(shares)]
    device = device_of(experiment.device)
    model = models.build(
        experiment.model,
        dataset.input_shape,
        dataset.num_classes,
        seed=derive(experiment.seed, "model"),
        normalize=(dataset.mean, dataset.std) if experiment.normalize else None,
        front=experiment.front,
    ).to(device)
    halfprecision.require(model.parameters())
    defense = prepared(
        client_defenses.build(experiment.defense), experiment.dataset, experiment.split, model=experiment.model
    ).within(dataset.space)
    return Assets(experiment, splits, shares, dataset.num_classes, dataset.space, model, defense, device)


def _owned(share: Tensor, experiment: Experiment, client: int) -> Tensor:
    """A random part of a client's share."""
    order = torch.randperm(len(share), generator=generator(experiment.seed, "owned", client))
    return share[order[: experiment.client_examples]]


def on_device(tensors: Tensors, device: str) -> Tensors:
    """The tensors on a device."""
    return {name: value.to(device) for name, value in tensors.items()}


def use_threads(number: int) -> None:
    """Fix the CPU threads: sums over more threads round differently, and runs must not depend on the machine."""
    if torch.get_num_threads() != number:
        torch.set_num_threads(number)
