"""Every random draw comes from a generator that is made here, from the seed and what it is for."""

import hashlib

import torch


def derive(seed: int, *purpose: int | str) -> int:
    """A 63-bit seed that depends on each part of (seed, *purpose) and on nothing else."""
    text = "/".join([str(seed), *map(str, purpose)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def generator(seed: int, *purpose: int | str) -> torch.Generator:
    """A CPU generator for one purpose; two purposes never share a stream."""
    return torch.Generator().manual_seed(derive(seed, *purpose))
