"""Who knows LDPM weighs all rows that an example may have kept."""

import torch

from adversary.informed.ldpm import OneRow
from client_defenses import Memory, build
from fl_app.core.local import Step
from helpers.attacks import adapted, digits, informed, seen_of

SCALE, CLIP = 0.02, 0.5


def test_the_likelihood_is_the_sum_over_all_rows(rng):
    dummy = {
        "conv": torch.randn(7, generator=rng),
        "fc.weight": torch.randn(3, 4, generator=rng),
        "fc.bias": torch.randn(3, generator=rng),
    }
    sent = {name: torch.randn(value.shape, generator=rng) / 10 for name, value in dummy.items()}

    def direct(dummy):
        likelihoods = []
        for row in range(3):
            kept = {name: value.double().clone() for name, value in dummy.items()}
            for name in ("fc.weight", "fc.bias"):
                kept[name][torch.arange(3) != row] = 0
            size = sum(value.square().sum() for value in kept.values()).sqrt()
            factor = CLIP / max(CLIP, size.item())
            gap = 0.0
            for name, value in kept.items():
                scaled = sent[name].double() / (3 if name.startswith("fc") else 1)  # the layer is sent times 3
                gap += (scaled - factor * value).square().sum().item() / 2 / SCALE**2
            likelihoods.append(-gap)
        return -torch.logsumexp(torch.tensor(likelihoods).double(), 0)

    law, other = OneRow(scale=SCALE, clip=CLIP, layer="fc."), {name: 2 * value for name, value in dummy.items()}
    found = law(dummy, sent, 0.0) - law(other, sent, 0.0)
    torch.testing.assert_close(found.double(), direct(dummy) - direct(other), atol=1e-2, rtol=1e-4)


def test_the_true_image_is_the_most_likely():
    x, y = digits(3, 1)
    seen, task = seen_of(x, y)
    law = adapted("cosine_lbfgs", "ldpm(noise=0.005)", public=1000).objective.fitted(seen[0].update, task)
    for number, one in enumerate(seen):
        step = Step(one.params, task.model, x[number], y[number])
        sent = build("ldpm(noise=0.005)").protect(step, Memory.fresh(number))
        losses = [law(other.update, sent, 0.0).item() for other in seen]
        assert min(losses) == losses[number]


def test_a_batch_is_refused_with_a_reason():
    told = {one.name: one.why_not for one in informed("cosine_lbfgs", "ldpm", examples=2, public=1000)}
    assert "a row of their own" in told["most likely"]
    assert not told["without the layer"]
