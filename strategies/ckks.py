"""Vectors under CKKS (Cheon et al. 2017), by TenSEAL: clients seal and open with their key, a server sums without any.

8,192 coefficients with 180 bits of modulus keep 128 bits of security by the Homomorphic Encryption Standard, which allows 218.
What is opened is told to the server, and CKKS gives its key away with every exact decryption (Li and Micciancio 2021). So
noise is added to it (Li et al. 2022): about sqrt(t) 2^(s/2) |e| for t openings and s bits, where e is the noise of the sum
itself. Of 1,000 fresh ciphertexts |e| was measured as 2^21.4 / SCALE over the slots of one; FLOOD is 2^46 times as much, which
is s = 60 for 2^30 openings.
"""

import hashlib
import math
import os
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

DEGREE, BITS, SCALE = 8192, (60, 60, 60), 2.0**100
SLOTS = DEGREE // 2
"""Entries in one ciphertext."""
MOST_BYTES = 2 * 2 * 8 * DEGREE + 1024
"""Two polynomials modulo two primes (the third is for keys alone), and what is written around them."""
KEY_BYTES = 2**20
LIMIT = 64.0
"""The largest entry; sums up to 2^18 would still be opened correctly, and what was damaged opens to about that."""
FLOOD = 2.0**-32


class CipherError(ValueError):
    """What cannot be sealed, summed or opened; the message is one line that tells nothing of the values."""


def tenseal() -> Any:
    """The library, or one line that says how to get it."""
    try:
        import tenseal as found
    except ImportError:
        raise CipherError("encrypted aggregation needs TenSEAL: pip install 'thorns[encrypted]'") from None
    return found


def ciphertexts(entries: int) -> int:
    """How many of them hold so many entries."""
    return -(-entries // SLOTS)


def _context() -> Any:
    context = tenseal().context(tenseal().SCHEME_TYPE.CKKS, DEGREE, coeff_mod_bit_sizes=list(BITS), n_threads=1)
    context.global_scale = SCALE
    return context


@lru_cache(maxsize=1)
def public_context() -> Any:
    """What a server works with: the parameters, which are public, and no key of a client's."""
    context = _context()
    context.make_context_public()  # TenSEAL makes a key with every context: it is forgotten here
    return context


class Key:
    """What the clients share and the server never has."""

    def __init__(self, context: Any) -> None:
        if not context.is_private() or context.global_scale != SCALE:
            raise CipherError("the encryption key has no secret part, or was made for other parameters")
        self.context = context
        self.name = hashlib.sha256(self.to_bytes()).hexdigest()[:16]
        """Tells one key from another, and nothing else of it."""

    @classmethod
    def make(cls) -> "Key":
        """A new key, from the operating system's randomness."""
        return cls(_context())

    @classmethod
    def from_bytes(cls, data: bytes) -> "Key":
        """A key that `to_bytes` wrote."""
        if not 0 < len(data) <= KEY_BYTES:
            raise CipherError(f"an encryption key has {KEY_BYTES} bytes at most, not {len(data)}")
        try:
            context = tenseal().context_from(data, n_threads=1)
        except (ValueError, RuntimeError):
            raise CipherError("these bytes are not an encryption key") from None
        return cls(context)

    def to_bytes(self) -> bytes:
        """The key, secret part included."""
        found: bytes = self.context.serialize(
            save_public_key=True, save_secret_key=True, save_galois_keys=False, save_relin_keys=False
        )
        return found

    def seal(self, values: Tensor) -> list[bytes]:
        """A float64 vector (entries,) as ciphertexts of SLOTS entries each."""
        if not bool(values.isfinite().all()) or bool((values.abs() > LIMIT).any()):
            raise CipherError(f"entries that are not finite, or larger than {LIMIT:g}, cannot be encrypted")
        padded = torch.zeros(ciphertexts(len(values)) * SLOTS, dtype=torch.float64)
        padded[: len(values)] = values
        make = tenseal().ckks_vector
        return [make(self.context, chunk.tolist()).serialize() for chunk in padded.split(SLOTS)]

    def open(self, sealed: Sequence[bytes], entries: int) -> Tensor:
        """The vector of `entries` that is in a sum of ciphertexts, with noise of FLOOD on it; float64 (entries,)."""
        chunks = [part.decrypt() for part in _read(self.context, sealed, entries)]
        values = torch.tensor(chunks, dtype=torch.float64).view(-1)[:entries]
        if not bool(values.isfinite().all()) or bool((values.abs() > LIMIT).any()):
            raise CipherError("the sum opens to no update: a ciphertext in it is damaged, or was made with another key")
        return values + FLOOD * _normal(entries)


class Sum:
    """A sum of sealed vectors; who has no key can add to it and learns nothing."""

    def __init__(self, entries: int) -> None:
        self.entries = entries
        self._total: list[Any] = []

    def add(self, sealed: Sequence[bytes]) -> None:
        """Add a vector; CipherError leaves the sum as it was."""
        parts = _read(public_context(), sealed, self.entries)
        try:
            self._total = [a + b for a, b in zip(self._total, parts, strict=True)] if self._total else parts
        except (ValueError, RuntimeError):
            raise CipherError("its ciphertexts cannot be added to the others") from None

    def sealed(self) -> list[bytes]:
        """The sum as ciphertexts."""
        return [part.serialize() for part in self._total]


def _read(context: Any, sealed: Sequence[bytes], entries: int) -> list[Any]:
    """Ciphertexts of fresh form; their number and sizes are looked at before the library sees a byte of them."""
    if len(sealed) != ciphertexts(entries):
        raise CipherError(f"it brings {len(sealed)} ciphertexts, not the {ciphertexts(entries)} for {entries} entries")
    if longest := max((len(data) for data in sealed if len(data) > MOST_BYTES), default=0):
        raise CipherError(f"a ciphertext has {longest} bytes, {MOST_BYTES} at most")
    found = []
    for data in sealed:
        try:
            vector = tenseal().ckks_vector_from(context, data)
            parts = vector.ciphertext()
        except (ValueError, RuntimeError):
            raise CipherError("its bytes are not a ciphertext of these parameters") from None
        # TenSEAL takes several in one, with more polynomials, at other scales and levels; each would change or swell the sum.
        fresh = len(parts) == 1 and parts[0].size() == 2 and parts[0].coeff_modulus_size() == 2 and parts[0].scale == SCALE
        if not fresh or vector.size() != SLOTS:
            raise CipherError("its bytes are a ciphertext, but not one of an update")
        found.append(vector)
    return found


def _normal(number: int) -> Tensor:
    """Standard normal draws from the operating system (Box-Muller): who predicts them can subtract them."""
    bits = np.frombuffer(os.urandom(16 * number), dtype=np.uint64).reshape(2, number) >> np.uint64(11)
    first, second = (bits.astype(np.float64) + 0.5) * 2.0**-53
    return torch.from_numpy(np.sqrt(-2 * np.log(first)) * np.cos(2 * math.pi * second))
