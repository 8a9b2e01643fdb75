"""Which training examples belong to which client: flwr-datasets' partitioners, kept on disk once computed."""

import hashlib
import os
import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field
from safetensors.torch import save_file
from torch import Tensor

from fl_app.core import spec
from fl_app.core.places import there
from fl_app.core.seeds import derive
from fl_app.core.spec import Checked
from fl_app.data.base import DataError
from fl_app.store.files import PUBLIC, RunError, load_tensors

Partitioner = Any  # flwr_datasets.partitioner.Partitioner
# flwr-datasets takes two seconds to import: it is imported where a partition has to be computed.


class Partition(Checked, ABC):
    """How clients share the training set."""

    @property
    def least(self) -> int:
        """How many examples it needs per client."""
        return 1

    @abstractmethod
    def make(self, clients: int, seed: int) -> Partitioner:
        """The partitioner that does it."""


@dataclass(frozen=True, kw_only=True)
class IID(Partition):
    """Equal shares of the shuffled training set."""

    def make(self, clients: int, seed: int) -> Partitioner:
        """flwr-datasets' IidPartitioner."""
        from flwr_datasets.partitioner import IidPartitioner

        return IidPartitioner(num_partitions=clients)


@dataclass(frozen=True, kw_only=True)
class Dirichlet(Partition):
    """Class shares drawn from Dirichlet(alpha); small alpha is far from IID. No client has fewer than `smallest`."""

    alpha: Annotated[float, Field(gt=0)] = 1.0
    smallest: Annotated[int, Field(ge=1)] = 1

    @property
    def least(self) -> int:
        """As it says."""
        return self.smallest

    def make(self, clients: int, seed: int) -> Partitioner:
        """flwr-datasets' DirichletPartitioner."""
        from flwr_datasets.partitioner import DirichletPartitioner

        settings = {"alpha": self.alpha, "min_partition_size": self.smallest, "self_balancing": False, "seed": seed}
        return DirichletPartitioner(num_partitions=clients, partition_by="label", **settings)


@dataclass(frozen=True, kw_only=True)
class Shards(Partition):
    """Pathological non-IID: the examples sorted by class and cut into shards, `per_client` of them each."""

    per_client: Annotated[int, Field(ge=1)] = 2

    @property
    def least(self) -> int:
        """One in each shard."""
        return self.per_client

    def make(self, clients: int, seed: int) -> Partitioner:
        """flwr-datasets' ShardPartitioner."""
        from flwr_datasets.partitioner import ShardPartitioner

        return ShardPartitioner(
            num_partitions=clients, partition_by="label", num_shards_per_partition=self.per_client, seed=seed
        )


PARTITIONS: dict[str, type[Partition]] = {"dirichlet": Dirichlet, "iid": IID, "shards": Shards}


def check_partition(text: str, clients: int, examples: int) -> Partition:
    """The partition of a spec, if there are enough examples for it."""
    made = spec.build_one("partition", text, PARTITIONS)
    if clients * made.least > examples:
        need = f" with at least {made.least} each" if made.least > 1 else ""
        raise DataError(f"{clients} clients{need} cannot share {examples} training examples ({text}); lower clients")
    return made


def partition(labels: Tensor, text: str, clients: int, seed: int, cache: Path) -> list[Tensor]:
    """For each client, the positions of its examples among `labels`: int64 (its share,)."""
    made = check_partition(text, clients, len(labels))  # before anything is made per client
    key = hashlib.sha256(labels.numpy().data)
    key.update(f"{text}/{clients}/{seed}".encode())
    path = cache / "partitions" / f"{key.hexdigest()[:24]}.safetensors"
    if not there(path):
        shares = _compute(labels, made, text, clients, seed)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(f".{os.getpid()}")
        save_file({str(client): share for client, share in enumerate(shares)}, temporary)
        temporary.chmod(PUBLIC)
        temporary.replace(path)
    try:
        stored, _ = load_tensors(path)
    except RunError as error:
        raise DataError(f"{error}; it is computed again once it is gone") from error
    return [stored[str(client)] for client in range(clients)]


def _compute(labels: Tensor, made: Partition, text: str, clients: int, seed: int) -> list[Tensor]:
    from datasets import Dataset as Table

    partitioner = made.make(clients, derive(seed, "partition") % 2**32)  # flwr-datasets wants 32-bit seeds
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(derive(seed, "partition order")))
    partitioner.dataset = Table.from_dict({"label": labels[order].tolist(), "position": order.tolist()})
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # flwr-datasets warns before each of its attempts; what counts is how it ends
            shares = [torch.tensor(partitioner.load_partition(client)["position"][:]) for client in range(clients)]
    except ValueError as error:
        raise DataError(f"the partition {text} of {len(labels)} examples among {clients} clients: {error}") from error
    empty = [client for client, share in enumerate(shares) if len(share) == 0]
    if empty:
        raise DataError(f"the partition {text} leaves client {empty[0]} without examples; use fewer clients or another seed")
    return [share.long() for share in shares]
