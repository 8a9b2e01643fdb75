"""What an evaluation network is shown and measured by."""

import pytest
import torch
from torch import nn

from client_defenses.tools import evaluator as evaluation
from client_defenses.tools.evaluator import Evaluator, EvaluatorFacts, EvaluatorTraining


def test_stark_images_are_black_and_white_but_for_an_edge(rng):
    ramp = torch.linspace(0, 1, 2001).view(1, 1, 1, -1).expand(400, -1, -1, -1)
    stark = evaluation._stark(ramp, 0.25, rng)
    changed = (stark != ramp).flatten(1).any(1)
    assert changed.float().mean().item() == pytest.approx(0.25, abs=0.07)
    assert torch.equal(stark[~changed], ramp[~changed])
    rows = stark[changed].flatten(1)
    assert ((rows > 0) & (rows < 1)).float().mean(1).max() < 0.051  # the edge is a twentieth of the range
    middles = 1 - rows.mean(1)  # where black turns into white: anywhere
    assert (middles.min().item(), middles.max().item()) == pytest.approx((0, 1), abs=0.1)
    assert middles.mean().item() == pytest.approx(0.5, abs=0.1)
    assert evaluation._stark(ramp, 0.0, rng) is ramp


def test_images_are_mixed_with_noise_by_shares():
    x, noise = torch.tensor([0.2]), torch.tensor([0.6])
    assert [evaluation.mix(x, share, noise).item() for share in (0, 0.25, 1)] == pytest.approx([0.2, 0.3, 0.6])
    bytes_ = torch.tensor([0, 51, 255], dtype=torch.uint8)
    assert evaluation._unit(bytes_).tolist() == pytest.approx([0, 0.2, 1])
    assert evaluation._unit(torch.tensor([0.5], dtype=torch.float64)).tolist() == [0.5]


class Always(nn.Module):
    """Says the same of every image."""

    def __init__(self, value):
        super().__init__()
        self.value = value

    def forward(self, x):
        return torch.full((len(x), 1), self.value)


@pytest.mark.parametrize(("value", "error"), [(0.0, 0.5), (1.0, 0.5), (0.5, 3 / 11)])
def test_the_error_is_the_mean_over_shares_from_none_to_all(value, error):
    judge = Evaluator(Always(value), EvaluatorFacts(shape=(1, 4, 4)))
    assert evaluation.noise_error(judge, torch.rand(3, 1, 4, 4)) == pytest.approx(error)


@pytest.mark.parametrize(("decay", "stark"), [(True, 0.5), (False, 0.0)])
def test_training_is_regression_to_the_share_of_noise(decay, stark):
    """Step by step as it is described: an order per epoch, shares of so many levels, Adam, a cycle of rates."""
    settings = EvaluatorTraining(width=2, steps=5, batch_size=4, lr=1e-2, decay=decay, levels=5, stark=stark, seed=3)
    images = torch.randint(256, (10, 1, 9, 9), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    steps = []
    made = evaluation.train(images, settings, "data", "sum", on_step=lambda: steps.append(1))
    assert len(steps) == 5
    assert made.facts == EvaluatorFacts(shape=(1, 9, 9), training=settings, data="data", images="sum")

    rng = torch.Generator().manual_seed(3)
    network = evaluation.build_network((1, 9, 9), 2, seed=3)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    rates = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=6) if decay else None
    for step in range(5):
        if step % 3 == 0:  # batches of 4, 4 and 2
            order = torch.randperm(10, generator=rng)
        own = images[order[4 * (step % 3) :][:4]] / 255
        x = evaluation._stark(own, stark, rng)
        share = torch.randint(5, (len(x), 1, 1, 1), generator=rng) / 4
        noise = torch.rand(x.shape, generator=rng)
        loss = nn.functional.mse_loss(network((1 - share) * x + share * noise), share.flatten(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rates:
            rates.step()
    for name, value in network.state_dict().items():
        torch.testing.assert_close(made.network.state_dict()[name], value, atol=1e-6, rtol=1e-4)
    assert not any(value.requires_grad for value in made.network.parameters())
    assert not made.network.training
