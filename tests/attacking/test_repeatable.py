"""A target's draws depend on the seed, the attack, its round and its client alone, whatever is attacked beside it and when."""

import pytest
import torch

from adversary.search import checkpoint
from adversary.search.problem import Problem
from fl_app import engines
from fl_app.attacking.background import beside
from fl_app.attacking.jobs import SEARCHES, parts_of
from fl_app.attacking.session import Session
from fl_app.attacking.worker import InlineWorker
from fl_app.engines.watcher import Watcher
from fl_app.store.reconstructions import guess_path, load_guess
from fl_app.sweeps import work
from fl_app.sweeps.plan import Attacking

# The best of one iteration is its start: reconstructions are the draws themselves.
DRAWS = "matching(labels=joint, optimizer=adam(iterations=1))"


@pytest.fixture
def captured(small):
    return engines.run(small.changed(batch_size=1, rounds=2, capture="all"), "inline", Watcher())


def attacked(run, keys=None, at_once=64, text=DRAWS):
    """Target -> its reconstruction, after an attack on some targets; what was there before is deleted."""
    session = Session(run, text, (), InlineWorker(), threads=1)
    keys = keys or session.captured()
    for key in keys:
        guess_path(session.folder, key).unlink(missing_ok=True)
    session.work(keys, at_once)
    return found(session, keys)


def found(session, keys):
    answers = {key: load_guess(guess_path(session.folder, key)) for key in keys}
    return {key: (answer.x, answer.y) for key, answer in answers.items()}


def same(a, b, keys=None):
    return all(torch.equal(x, y) for key in keys or a for x, y in zip(a[key], b[key], strict=True))


def test_subsets_orders_and_group_sizes_do_not_matter(captured):
    whole = attacked(captured)
    assert len({tuple(x.flatten()[:3].tolist()) for x, _ in whole.values()}) == len(whole) == 6  # no two targets share draws
    for keys in ([(1, 1)], [(2, 2), (1, 0)], list(reversed(whole))):
        assert same(attacked(captured, keys), whole, keys)
    for at_once in (1, 2, 5):
        assert same(attacked(captured, at_once=at_once), whole)
    assert same(attacked(captured, text=DRAWS[:-1] + ", at_once=2)"), attacked(captured, text=DRAWS[:-1] + ", at_once=2)"))


def test_a_resumption_and_a_damaged_neighbour_do_not_matter(captured):
    whole = attacked(captured)
    session = Session(captured, DRAWS, (), InlineWorker(), threads=1)
    guess_path(session.folder, (1, 1)).unlink()
    guess_path(session.folder, (2, 0)).unlink()
    session.work(session.pending(session.captured()), 64)
    assert same(found(session, list(whole)), whole)
    (captured.path / "captures" / "round-0001" / "client-00.safetensors").write_bytes(b"damaged")
    rest = [key for key in whole if key != (1, 0)]
    attacked(captured, rest)
    assert same(found(session, rest), whole, rest)


def test_an_attack_that_is_broken_off_in_the_middle_of_its_search_does_not_matter(captured, monkeypatch):
    text = "matching(optimizer=adam(iterations=3))"
    whole = attacked(captured, text=text)
    monkeypatch.setattr(checkpoint, "SECONDS", 0.0)
    monkeypatch.setattr(checkpoint, "SLOWEST", 0)  # a slow disk would put the next one off
    plain, made = Problem.gradients, []

    def broken_off(self, variables):
        made.append(len(self.targets))
        if len(made) == 5:
            raise KeyboardInterrupt
        return plain(self, variables)

    monkeypatch.setattr(Problem, "gradients", broken_off)
    with pytest.raises(KeyboardInterrupt):
        attacked(captured, text=text)
    session = Session(captured, text, (), InlineWorker(), threads=1)
    searches = session.folder / SEARCHES
    assert len(list(searches.iterdir())) == 1  # that of the first round went with its answers
    session.work(session.pending(session.captured()), 64)
    assert made == [3] * 7  # the second round went on from its second iteration
    assert same(found(session, list(whole)), whole)
    assert not searches.exists()


def test_attacking_beside_the_training_does_not_matter(small):
    settings = small.changed(batch_size=1, rounds=3, capture="1-2")
    plain = attacked(engines.run(settings, "inline", Watcher()))
    busy = settings.changed(run_dir=small.run_dir + "-busy", attack=DRAWS, worker="ray")
    run = engines.run(busy, "inline", Watcher(), make_beside=beside)
    session = Session(run, DRAWS, (), InlineWorker(), threads=1)
    session.work(session.pending(session.captured()), 64)  # what the background did not come to
    assert same(found(session, list(plain)), plain)


def test_attacking_in_a_sweep_does_not_matter(captured):
    plain = attacked(captured)
    session = Session(captured, DRAWS, (), InlineWorker(), threads=1)
    for key in plain:
        guess_path(session.folder, key).unlink()
    work.attack(captured.path, Attacking(DRAWS, (), informed=True, lpips=False, noise_ratio=False, judge=""))
    assert same(found(session, list(plain)), plain)


def test_how_far_rounding_carries_a_search_in_another_group(captured):
    """Convolutions over other numbers of targets round in other ways: after 20 steps, by less than a grey level in 256."""
    text = "idlg(iterations=20, restarts=1)"
    whole, alone = attacked(captured, text=text), attacked(captured, at_once=1, text=text)
    assert max((whole[key][0] - alone[key][0]).abs().max().item() for key in whole) < 1 / 256


def test_targets_are_grouped_by_round_or_by_client():
    keys = [(r, c) for r in (1, 2, 3) for c in (0, 1)]
    assert parts_of(keys, 64, by_client=False) == [((1, 0), (1, 1)), ((2, 0), (2, 1)), ((3, 0), (3, 1))]
    assert parts_of(keys, 1, by_client=True) == [((1, 0), (2, 0), (3, 0)), ((1, 1), (2, 1), (3, 1))]
    assert parts_of(keys, 2, by_client=True) == [((1, 0), (2, 0), (3, 0), (1, 1), (2, 1), (3, 1))]
