"""What is promised of membership attacks, and what a defense's noise is to them."""

from dataclasses import dataclass

import pytest
import torch

from adversary import contracts
from adversary.cases import FITTED, NETWORKS, case_of
from adversary.inference.base import Membership, confidences
from adversary.informed.membership import OnSum, noise_of
from fl_app.core.local import loss_of


@dataclass(frozen=True, kw_only=True)
class Even(Membership):
    """Believes in all candidates alike, or by what a subclass knows."""

    def believe(self, seen, task, asked):
        return torch.zeros(len(asked.y))


@dataclass(frozen=True, kw_only=True)
class Contrary(Even):
    """Knows which is the member and says the contrary."""

    def believe(self, seen, task, asked):
        return -torch.eye(len(asked.y))[seen.client]


@dataclass(frozen=True, kw_only=True)
class AtFitted(Even):
    """Knows nothing unless the network fits the members."""

    def believe(self, seen, task, asked):
        sure = confidences(task, seen.params, asked)
        return torch.where(sure[:3].min() > 3, torch.eye(len(asked.y))[seen.client], -torch.eye(len(asked.y))[seen.client])


def test_an_attack_on_membership_believes_more_in_members():
    for attack in (Even(), Contrary()):
        with pytest.raises(AssertionError, match="believes no more in what a target used"):
            contracts.beats_blind(attack)
    contracts.beats_blind(AtFitted())


def test_a_fitted_case_knows_its_members_by_heart():
    plain, fitted = (case_of(NETWORKS[0], steps) for steps in (0, FITTED))
    for case, low, high in ((plain, 0.5, 9.0), (fitted, 0.0, 0.1)):
        one = case.seen[0]
        asked = one.knowledge.candidates
        assert torch.equal(asked.x[:3], case.x[:, 0])
        assert torch.equal(asked.x[3:], case.public.x[:20])
        assert torch.equal(asked.y[3:], case.public.y[:20])
        assert low <= loss_of(case.task.model, one.params, asked.x[:3], asked.y[:3]).item() < high


@pytest.mark.parametrize(
    ("defense", "examples", "law"),
    [
        ("none", 1, None),
        ("prune(ratio=0.5)", 1, None),
        ("dp_sgd(noise=0)", 4, None),
        ("dp_sgd(clip=2, noise=0.5)", 4, OnSum(1.0, 2.0)),
        ("dp_gaussian(clip=3, scale=0.1)", 1, OnSum(0.1, 3.0)),
        ("dp_gaussian(clip=3, scale=0.1)", 2, OnSum(0.2, 0.0)),
        ("dp_laplace(clip=3, scale=0.1)", 2, OnSum(0.2 * 2**0.5, 0.0)),
        ("dp_laplace(clip=3, scale=0.1)", 1, OnSum(0.1 * 2**0.5, 3.0)),
    ],
)
def test_noise_on_the_sum_of_a_batch(defense, examples, law):
    found = noise_of(defense, examples)
    assert (found is None) == (law is None)
    if law is not None:
        assert found == pytest.approx(law)
