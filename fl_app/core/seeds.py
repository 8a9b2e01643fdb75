"""Every random draw comes from a generator that is made here, from the seed and what it is for."""

import hashlib
from collections.abc import Iterable

import torch


def derive(seed: int, *purpose: int | str) -> int:
    """A 63-bit seed that depends on each part of (seed, *purpose) and on nothing else."""
    text = "/".join([str(seed), *map(str, purpose)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def generator(seed: int, *purpose: int | str) -> torch.Generator:
    """A CPU generator for one purpose; two purposes never share a stream."""
    return torch.Generator().manual_seed(derive(seed, *purpose))


STATE_BYTES, WORDS_START, WORDS = 5056, 24, 624
"""A CPU generator of torch: counters, then the words of the Mersenne Twister in 8 bytes each, then kept normals."""


def secret_generator(secret: bytes, purpose: Iterable[bytes]) -> torch.Generator:
    """A CPU generator whose whole state comes from a secret and from each part of a purpose.

    torch uses 32 bits of a seed: a server that sees noise where the gradient is zero could try all of them.
    """
    digest = hashlib.blake2b(key=secret)
    for part in purpose:
        digest.update(len(part).to_bytes(8, "little") + part)
    words = torch.frombuffer(bytearray(hashlib.shake_256(digest.digest()).digest(4 * WORDS)), dtype=torch.int32)
    made = torch.Generator().manual_seed(0)
    state = made.get_state()
    if len(state) != STATE_BYTES:
        raise RuntimeError(
            f"this torch keeps generators in {len(state)} bytes, not {STATE_BYTES}: use the version that is pinned"
        )
    state[WORDS_START : WORDS_START + 8 * WORDS] = (words.long() & 0xFFFFFFFF).view(torch.uint8)
    made.set_state(state)
    return made
