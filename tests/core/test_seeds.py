"""Generators: what a seed and a purpose give, compared with hashlib and numpy."""

import hashlib

import numpy as np
import torch

from fl_app.core import seeds


def test_a_seed_is_the_hash_of_what_it_is_for():
    digest = hashlib.blake2b(b"7/batch/3", digest_size=8).digest()
    assert seeds.derive(7, "batch", 3) == int.from_bytes(digest, "little") // 2
    assert seeds.derive(7, "batch", 3) < 2**63
    assert seeds.generator(7, "batch", 3).initial_seed() == seeds.derive(7, "batch", 3)


def test_the_whole_state_of_a_secret_generator_comes_from_the_secret():
    """Its numbers are those of numpy's Mersenne Twister whose 624 words are the hash."""
    digest = hashlib.blake2b(key=b"secret")
    for part in (b"round", b"12"):
        digest.update(len(part).to_bytes(8, "little") + part)
    words = np.frombuffer(hashlib.shake_256(digest.digest()).digest(4 * 624), dtype="<u4")
    twister = np.random.MT19937()
    twister.state = {"bit_generator": "MT19937", "state": {"key": words, "pos": 624}}
    drawn = torch.randint(2**31, (1000,), generator=seeds.secret_generator(b"secret", [b"round", b"12"]))
    assert drawn.tolist() == (twister.random_raw(2000)[1::2] % 2**31).tolist()  # of 64 bits the last


def test_parts_of_a_purpose_are_told_apart():
    def draw(*purpose):
        return torch.rand((), generator=seeds.secret_generator(b"secret", purpose)).item()

    assert len({draw(b"ab", b"c"), draw(b"a", b"bc"), draw(b"abc"), draw(b"c", b"ab")}) == 4
