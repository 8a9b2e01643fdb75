"""Sealed vectors: sums open to what was sealed, without the key nothing does, and bytes that are none are refused in a line."""

import sys

import pytest
import torch
from scipy import stats

from strategies.ckks import FLOOD, LIMIT, MOST_BYTES, SLOTS, CipherError, Key, Sum, _context, _normal, public_context, tenseal

ENTRIES = SLOTS + 10


@pytest.fixture(scope="module")
def key():
    return Key.make()


@pytest.fixture(scope="module")
def vectors():
    draw = torch.Generator().manual_seed(0)
    return [1e-2 * torch.randn(ENTRIES, generator=draw, dtype=torch.float64) for _ in range(3)]


@pytest.fixture(scope="module")
def sealed(key, vectors):
    return [key.seal(one) for one in vectors]


def summed(sealed):
    total = Sum(ENTRIES)
    for one in sealed:
        total.add(one)
    return total.sealed()


def test_a_sum_opens_to_the_sum_with_the_noise_that_guards_the_key(key, vectors, sealed):
    """Exact decryptions would give the key away: what is opened differs each time, by as much as is said."""
    again = Key.from_bytes(key.to_bytes())
    error = again.open(summed(sealed), ENTRIES) - sum(vectors)
    assert error.abs().max() < 6 * FLOOD
    assert error.std().item() == pytest.approx(FLOOD, rel=0.1)
    other = key.open(summed(sealed), ENTRIES) - sum(vectors)
    assert abs(torch.corrcoef(torch.stack([error, other]))[0, 1]) < 0.1
    assert again.name == key.name


def test_a_key_is_written_without_what_only_products_and_turns_need(key):
    context = _context()
    context.generate_galois_keys()
    written = tenseal().context_from(Key(context).to_bytes(), n_threads=1)
    assert written.is_private()
    assert written.has_public_key()
    assert not written.has_galois_keys()
    assert not written.has_relin_keys()
    assert Key.from_bytes(key.to_bytes()).name == key.name


def test_the_server_has_no_key_to_decrypt_with(key, vectors, sealed):
    context = public_context()
    assert not context.has_secret_key()
    written = context.serialize(
        save_secret_key=True, save_relin_keys=False
    )  # whatever it could write down or send has none either
    assert not tenseal().context_from(written).has_secret_key()
    with pytest.raises(ValueError, match="secret_key"):
        tenseal().ckks_vector_from(context, sealed[0][0]).decrypt()
    # A key of its own makes noise of it, and that is noticed.
    own = Key.make()
    guess = torch.tensor(tenseal().ckks_vector_from(own.context, sealed[0][0]).decrypt())
    assert abs(torch.corrcoef(torch.stack([guess, vectors[0][:SLOTS].float()]))[0, 1]) < 0.1
    with pytest.raises(CipherError, match="another key"):
        own.open(sealed[0], ENTRIES)
    with pytest.raises(CipherError, match="no secret part"):
        Key.from_bytes(written)


def flipped(data, place):
    return data[:place] + bytes([data[place] ^ 64]) + data[place + 1 :]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda s: [s[0], s[1] + bytes(MOST_BYTES)], "bytes, 263168 at most"),
        (lambda s: [s[0], s[1][:1000]], "not a ciphertext of these parameters"),
        (lambda s: [s[0], flipped(s[1], 20)], "not a ciphertext of these parameters"),
        (lambda s: [s[0], b""], "not one of an update"),
        (lambda s: [s[0], bytes(100)], "not a ciphertext"),
        (lambda s: s[:1], "brings 1 ciphertexts, not the 2"),
        (lambda s: [*s, s[0]], "brings 3 ciphertexts, not the 2"),
    ],
)
def test_bytes_that_are_no_update_are_refused_and_leave_the_sum(key, vectors, sealed, change, why):
    total = Sum(ENTRIES)
    total.add(sealed[0])
    with pytest.raises(CipherError, match=why) as refused:
        total.add(change(sealed[1]))
    assert "\n" not in str(refused.value)
    assert (key.open(total.sealed(), ENTRIES) - vectors[0]).abs().max() < 6 * FLOOD


def test_ciphertexts_of_another_form_are_refused():
    ts, key = tenseal(), Key.make()  # of its own, as it is changed
    strange = {
        "fewer entries": ts.ckks_vector(key.context, [1.0] * 10),
        "another scale": ts.ckks_vector(key.context, [1.0] * SLOTS, 2.0**40),
    }
    key.context.auto_relin = key.context.auto_rescale = False
    small = ts.ckks_vector(key.context, [1.0] * SLOTS, 2.0**50)
    strange["more polynomials"] = small * small
    for what, vector in strange.items():
        data = vector.serialize()
        total = Sum(SLOTS)
        with pytest.raises(CipherError, match=r"not one of an update|bytes, \d+ at most"):
            total.add([data])
        assert total.sealed() == [], what


def test_damage_that_still_parses_is_noticed_when_the_sum_is_opened(key, sealed):
    """A flipped bit deep inside is a valid ciphertext of something else: it opens to values that no update has."""
    with pytest.raises(CipherError, match="damaged"):
        key.open(summed([sealed[0], [flipped(sealed[1][0], 100_000), sealed[1][1]]]), ENTRIES)


def test_ciphertexts_up_to_their_size_are_read(key):
    for size, why in ((MOST_BYTES, "not a ciphertext of these parameters"), (MOST_BYTES + 1, "bytes, .* at most")):
        with pytest.raises(CipherError, match=why):
            key.open([bytes(size)], 1)


def test_entries_up_to_the_limit_are_sealed(key):
    values = torch.tensor([LIMIT, -LIMIT], dtype=torch.float64)
    assert len(key.seal(values)) == 1


@pytest.mark.parametrize("value", [float("nan"), float("inf"), LIMIT + 1e-9, -2 * LIMIT])
def test_what_would_run_over_is_not_sealed(key, value):
    with pytest.raises(CipherError, match="not finite, or larger than 64"):
        key.seal(torch.tensor([0.0, value], dtype=torch.float64))


@pytest.mark.parametrize("data", [b"", bytes(100), bytes(2**21)])
def test_a_file_that_is_no_key_is_refused(data):
    with pytest.raises(CipherError, match="encryption key"):
        Key.from_bytes(data)


def test_without_the_library_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "tenseal", None)
    with pytest.raises(CipherError, match=r"pip install 'thorns\[encrypted\]'"):
        Key.make()


def test_noise_of_the_operating_system_is_normal():
    draws = _normal(20_000)
    assert stats.kstest(draws.numpy(), "norm").pvalue > 1e-6  # drawn anew each time: wrong once in a million
