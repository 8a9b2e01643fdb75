"""What is known of masks and decoys: the laws of what is sent, and the mask that a layer of rank one gives away."""

import math

import torch
from torch.distributions import Normal

import adversary
from adversary.informed.drop_fedsgd import Dropped, KeptOrDropped, off_rank_one
from adversary.informed.gradient_dropout import Mixture
from client_defenses import Memory
from client_defenses.drop_fedsgd import DropFedSGD
from fl_app.core.local import Step
from helpers.attacks import digits, seen_of


def test_the_mixture_is_the_likelihood_of_gradient_dropout(rng):
    p, sigma = 0.6, 0.3
    g, sent = {"w": torch.randn(50, generator=rng)}, {"w": torch.randn(50, generator=rng)}
    for stage, width in enumerate(Mixture.TAUS, 1):
        kept = Normal(g["w"] / p, width * sigma).log_prob(sent["w"]) + math.log(p)
        decoy = Normal(0.0, sigma).log_prob(sent["w"]) + math.log(1 - p)
        exact = -torch.logaddexp(kept, decoy).mean() - 0.5 * math.log(2 * math.pi)  # ours leaves the constant out
        found = Mixture(p=p, sigma=sigma)(g, sent, stage / Mixture.stages)
        torch.testing.assert_close(found, exact, rtol=1e-4, atol=1e-5)


def test_the_width_of_matched_decoys_follows_from_what_was_sent(rng):
    """E sent^2 = g^2 / p + (1 - p) sigma^2, so with decoys as wide as the gradient sigma is known up to sampling."""
    p, g = 0.5, torch.randn(200_000, generator=rng)
    kept = torch.rand(g.shape, generator=rng) < p
    sent = {"w": torch.where(kept, g / p, torch.randn(g.shape, generator=rng))}
    known, guessed = Mixture(p=p, sigma=1.0), Mixture(p=p)
    at = 2 / Mixture.stages
    torch.testing.assert_close(guessed({"w": g}, sent, at), known({"w": g}, sent, at), rtol=0.02, atol=0.02)


def test_the_mask_of_a_layer_of_rank_one_is_read_off():
    x, y = digits(4, 1, start=900)
    seen, task = seen_of(x, y)
    for i, one in enumerate(seen):
        memory, again = Memory.fresh(i), Memory.fresh(i)
        sent = DropFedSGD(p=0.1).gradient(Step(one.params, task.model, x[i], y[i]), memory)
        true = {name: again.uniform(value) < 0.1 for name, value in one.params.items()}
        found = off_rank_one(sent["fc.weight"])
        # Of 588 columns of ten entries each, about one has half of them dropped or more, where a median errs.
        assert (found != true["fc.weight"]).float().mean() < 0.005
    assert off_rank_one(torch.zeros(3, 4)).all()  # nothing was sent: nothing fits


def test_the_gradient_is_taken_without_the_dropped_weights():
    observer, params = Dropped(p=0.1), {"w": torch.ones(3)}
    masks = {"w": torch.tensor([-50.0, 0.0, 50.0])}
    torch.testing.assert_close(observer.weights(params, masks, 0.5)["w"], torch.tensor([1.0, 0.5, 0.0]))
    leaf = {"w": torch.zeros(3, requires_grad=True)}
    assert not observer.weights(params, leaf, 0.0)["w"].requires_grad  # masks wait for the image
    assert observer.weights(params, leaf, 0.5)["w"].requires_grad
    beside = observer.sent({"w": torch.ones(3)}, masks)
    found = KeptOrDropped(p=0.1, sigma=0.01)(beside, {"w": torch.ones(3)}, 0.5)
    assert found.isfinite()


def test_specs_of_masks_are_read_back():
    for defense in ("drop_fedsgd(p=0.1)", "gradient_dropout(p=0.6, sigma='match')"):
        (told,) = adversary.build("cosine_lbfgs").informed(defense, adversary.Facts())
        assert adversary.build(adversary.text_of(told.attack)) == told.attack
