"""Which training examples belong to which client: flwr-datasets' partitioners, kept on disk once computed."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field
from safetensors.torch import load_file, save_file
from torch import Tensor

from fl_app.core import spec
from fl_app.core.seeds import derive
from fl_app.data.base import DataError

Partitioner = Any  # flwr_datasets.partitioner.Partitioner
# flwr-datasets takes two seconds to import: it is imported where a partition has to be computed.


def iid(clients: int, seed: int) -> Partitioner:
    """Equal shares of the shuffled training set."""
    from flwr_datasets.partitioner import IidPartitioner

    return IidPartitioner(num_partitions=clients)


def dirichlet(clients: int, seed: int, *, alpha: Annotated[float, Field(gt=0)] = 1.0, smallest: int = 1) -> Partitioner:
    """Class shares drawn from Dirichlet(alpha); small alpha is far from IID. No client has fewer than `smallest`."""
    from flwr_datasets.partitioner import DirichletPartitioner

    return DirichletPartitioner(
        num_partitions=clients, partition_by="label", alpha=alpha, min_partition_size=smallest, self_balancing=False, seed=seed
    )


def shards(clients: int, seed: int, *, per_client: Annotated[int, Field(ge=1)] = 2) -> Partitioner:
    """Pathological non-IID: the examples sorted by class and cut into shards, `per_client` of them each."""
    from flwr_datasets.partitioner import ShardPartitioner

    return ShardPartitioner(num_partitions=clients, partition_by="label", num_shards_per_partition=per_client, seed=seed)


PARTITIONS: dict[str, Callable[..., Any]] = {"dirichlet": dirichlet, "iid": iid, "shards": shards}


def partition(labels: Tensor, text: str, clients: int, seed: int, cache: Path) -> list[Tensor]:
    """For each client, the positions of its examples among `labels`: int64 (its share,)."""
    key = hashlib.sha256(labels.numpy().data)
    key.update(f"{text}/{clients}/{seed}".encode())
    path = cache / "partitions" / f"{key.hexdigest()[:24]}.safetensors"
    if not path.exists():
        shares = _compute(labels, text, clients, seed)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(f".{os.getpid()}")
        save_file({str(client): share for client, share in enumerate(shares)}, temporary)
        temporary.replace(path)
    stored = load_file(path)
    return [stored[str(client)] for client in range(clients)]


def _compute(labels: Tensor, text: str, clients: int, seed: int) -> list[Tensor]:
    if clients > len(labels):
        raise DataError(f"{clients} clients cannot share {len(labels)} training examples; lower clients")
    # flwr-datasets wants 32-bit seeds.
    partitioner = spec.build_one("partition", text, PARTITIONS, clients, derive(seed, "partition") % 2**32)
    from datasets import Dataset as Table

    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(derive(seed, "partition order")))
    partitioner.dataset = Table.from_dict({"label": labels[order].tolist(), "position": order.tolist()})
    try:
        shares = [torch.tensor(partitioner.load_partition(client)["position"][:]) for client in range(clients)]
    except ValueError as error:
        raise DataError(f"the partition {text} of {len(labels)} examples among {clients} clients: {error}") from error
    empty = [client for client, share in enumerate(shares) if len(share) == 0]
    if empty:
        raise DataError(f"the partition {text} leaves client {empty[0]} without examples; use fewer clients or another seed")
    return [share.long() for share in shares]
