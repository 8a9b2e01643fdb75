"""What a search puts together: rounds of a client into targets, targets with the same weights into groups; what it costs."""

import dataclasses

import pytest
import torch

import adversary
from adversary import AttackError
from adversary.search import progress
from adversary.search.matching import Matching, _mean
from fl_app.core.local import LocalRule
from fl_app.core.observation import Knowledge, Observation, Task
from fl_app.core.space import Images

RULE = LocalRule(batch_size=1)
WEIGHTS = [{"w": torch.zeros(1)} for _ in range(5)]


def seen(server_round, client, *, repeats=True):
    return Observation(
        params=WEIGHTS[server_round],
        update={"w": torch.tensor([float(server_round)])},
        rule=RULE,
        num_examples=1,
        server_round=server_round,
        client=client,
        knowledge=Knowledge(repeats=repeats),
    )


def groups(seen, **settings):
    search = Matching(**settings)
    return search._groups(seen, search._at_once(seen, Task(torch.nn.Identity(), Images((1, 2, 2)), 2)))


SEEN = [seen(2, 0), seen(1, 0), seen(1, 1), seen(2, 1), seen(3, 0), seen(3, 1)]


def test_each_observation_is_a_target_and_shares_its_search_with_those_of_its_round():
    assert groups(SEEN) == [[(0,), (3,)], [(1,), (2,)], [(4,), (5,)]]
    assert groups(SEEN[:4], at_once=1) == [[(0,)], [(3,)], [(1,)], [(2,)]]
    assert groups(SEEN[:4], at_once=7, seeds=4) == [[(0,)], [(3,)], [(1,)], [(2,)]]
    assert groups(SEEN[:4], at_once=8, seeds=4) == [[(0,), (3,)], [(1,), (2,)]]
    assert groups(SEEN[:1], at_once=1, seeds=4) == [[(0,)]]


def test_rounds_of_a_client_are_one_target_in_their_order():
    assert Matching(rounds=2)._targets(SEEN) == [(1, 0), (4,), (2, 3), (5,)]
    assert Matching(rounds=3)._targets(SEEN) == [(1, 0, 4), (2, 3, 5)]
    assert groups(SEEN, rounds=3) == [[(1, 0, 4), (2, 3, 5)]]
    assert (Matching(rounds=2).by_client, Matching().by_client) == (True, False)
    with pytest.raises(AttackError, match="--grant repeats"):
        Matching(rounds=2)._targets([*SEEN, seen(4, 0, repeats=False)])


def test_labels_are_read_off_the_mean_of_a_targets_rounds():
    assert _mean((SEEN[0],)) is SEEN[0]
    assert _mean((SEEN[0], SEEN[1], SEEN[4])).update["w"].tolist() == [2.0]


def test_the_cost_of_a_search_counts_evaluations_of_examples():
    search = adversary.build("matching(seeds=3, optimizer=adam(iterations=10, restarts=2))")
    assert search.cost(4, RULE) == 10 * 2 * 3 * 4
    assert search.cost(4, LocalRule(kind="delta", batch_size=1, steps=5, lr=0.1)) == 10 * 2 * 3 * 4 * 5
    assert adversary.build("idlg(iterations=10, restarts=2)").cost(4, RULE) == 10 * 2 * 4
    short = search.shortened(3)
    assert (short.optimizer.iterations, short.optimizer.restarts, short.seeds) == (3, 1, 3)
    assert dataclasses.replace(short, optimizer=search.optimizer) == search
    preset = adversary.build("idlg(iterations=10, restarts=2)").shortened(3)
    assert preset.cost(1, RULE) == 3


def test_a_search_is_trained_if_its_space_is():
    assert adversary.build("matching(space=class_gaussian)").trained is True
    assert adversary.build("matching").trained is False


def test_progress_is_said_once_a_second(monkeypatch):
    now, said = [100.0], []
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    token = progress.report.set(lambda *words: said.append(words))
    try:
        pace = progress.Pace(50)
        for iteration, moment in enumerate((100.0, 100.9, 101.0, 101.5, 102.1, 102.9, 103.1)):
            now[0] = moment
            pace.at(iteration)
    finally:
        progress.report.reset(token)
    assert said == [(2, 50), (4, 50), (6, 50)]
    progress.Pace(50).at(0)  # nobody listens
