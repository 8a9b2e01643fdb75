"""A client's secret: draws that nobody can foretell, one answer a round."""

import stat

import pytest
import torch

from fl_app.client.policy import OwnConfig, Refused
from fl_app.client.secret import secret_of
from fl_app.core.seeds import secret_generator
from fl_app.experiment.assets import assets_of
from fl_app.models import parameters_of
from helpers.clients import NOISE, ask, federation, gradient_of, update_of
from helpers.engines import same
from helpers.tensors import flat


def test_the_runs_seed_foretells_nothing(small):
    noisy = small.changed(defense=NOISE)
    true = flat(gradient_of(noisy, 0))
    noise = flat(update_of(ask(federation(noisy, {0: {"demand": NOISE}}), noisy)[0])) - true
    foretold = flat(update_of(ask(federation(noisy, {}), noisy)[0])) - true
    assert noise.std() == pytest.approx(1, abs=0.05)
    assert torch.corrcoef(torch.stack([noise, foretold]))[0, 1].abs() < 0.1


def test_with_a_secret_file_a_client_repeats_itself_and_without_one_never(small, tmp_path):
    noisy = small.changed(defense=NOISE)

    def sent(**settings):
        return update_of(ask(federation(noisy, {0: {"demand": NOISE, **settings}}), noisy)[0])

    secret = {"secret-seed-file": str(tmp_path / "keys" / "seed")}
    assert same(sent(**secret), sent(**secret))
    assert not same(sent(**secret), sent(**{"secret-seed-file": str(tmp_path / "keys" / "other")}))
    assert not same(sent(), sent())


def test_no_two_different_updates_share_their_noise(small, tmp_path):
    """Else the difference of two answers would be free of noise."""
    own = {0: {"defense": NOISE, "secret-seed-file": str(tmp_path / "seed")}}
    weights = parameters_of(assets_of(small).model)
    moved = {name: value + 1e-6 for name, value in weights.items()}
    first = flat(update_of(ask(federation(small, own), small, weights)[0]))
    other_settings = small.changed(rounds=7)
    for again in (
        ask(federation(small, own), small, moved),
        ask(federation(small, own), small, weights, server_round=2),
        ask(federation(other_settings, own), other_settings, weights),
    ):
        difference = flat(update_of(again[0])) - first
        assert difference.std() == pytest.approx(2**0.5, abs=0.1)


def test_a_round_is_answered_once(small, caplog):
    grid = federation(small, {0: {"demand": "none", "min-examples": 1}})
    update_of(ask(grid, small, server_round=3)[0])
    for server_round in (3, 2):
        reply = ask(grid, small, server_round=server_round)
        assert "answers each round once" in reply[0].error.reason
        update_of(reply[1])  # a client without settings answers as ever
    update_of(ask(grid, small, server_round=4)[0])
    assert "refused: this client answers" in caplog.text


def test_the_secret_is_made_once_and_for_its_owner_alone(tmp_path):
    own = OwnConfig(secret_seed_file=str(tmp_path / "keys" / "seed"))
    secret = secret_of(own)
    path = tmp_path / "keys" / "seed"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert (len(secret), secret_of(own)) == (32, secret)
    assert [entry.name for entry in path.parent.iterdir()] == ["seed"]
    path.chmod(0o640)
    with pytest.raises(Refused, match="cannot be used"):
        secret_of(own)
    path.chmod(0o600)
    for damaged in ("", "ab" * 31, "ab" * 33, "not hexadecimal" * 5):
        path.write_text(damaged)
        with pytest.raises(Refused, match="cannot be used"):
            secret_of(own)
    with pytest.raises(Refused, match="cannot be used"):
        secret_of(OwnConfig(secret_seed_file=str(tmp_path)))


def test_a_secret_is_not_one_of_32_bits():
    def seeded(seed):
        return torch.rand(8, generator=torch.Generator().manual_seed(seed))

    assert torch.equal(seeded(1), seeded(1 + 2**32))  # why a secret cannot be a seed
    made = [secret_generator(bytes([key]) * 32, parts) for key in (1, 2) for parts in ([b"ab", b"c"], [b"a", b"bc"], [])]
    states = {bytes(one.get_state()[24 : 24 + 8 * 624].tolist()) for one in made}
    assert len(states) == 6
    draws = torch.rand(6000, generator=made[0])
    assert torch.equal(draws, torch.rand(6000, generator=secret_generator(b"\1" * 32, [b"ab", b"c"])))
    assert draws.mean() == pytest.approx(0.5, abs=0.02)
    assert draws.std() == pytest.approx(12**-0.5, abs=0.01)
    assert torch.randn(6000, generator=made[1]).std() == pytest.approx(1, abs=0.04)
    words = made[2].get_state()[24 : 24 + 8 * 624].view(torch.int64)
    assert int(words.max()) < 2**32
    assert len(set(words.tolist())) > 620  # all of them, not a stretched seed
