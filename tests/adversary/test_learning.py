"""Ridge regression by the normal equations, spaces that stand for more than pixels, and priors by hand."""

import dataclasses

import pytest
import torch
from torch import nn

from adversary import AttackError, Facts, Guess, Public, build
from adversary.learned import ridge as regression
from adversary.learned.ridge import Ridge
from adversary.priors import BatchNorm, Box, Colour, Group, Norm, SameMean, TotalVariation
from adversary.spaces import Blended, ClassGaussian, Epochs, Pixels
from client_defenses import Memory
from client_defenses import build as defense
from fl_app.core.local import LocalRule, Step, local_update
from fl_app.core.observation import Knowledge, Observation, Task
from fl_app.core.space import Images

SHAPE, CLASSES = (1, 2, 2), 3
MODEL = nn.Sequential(nn.Flatten(), nn.Linear(4, CLASSES))
TASK, RULE = Task(MODEL, Images(SHAPE), CLASSES), LocalRule(batch_size=1)
DRAW = torch.Generator().manual_seed(0)
PARAMS = {"1.weight": torch.randn(CLASSES, 4, generator=DRAW), "1.bias": torch.randn(CLASSES, generator=DRAW)}
PUBLIC = Public(torch.rand(40, *SHAPE, generator=DRAW), torch.arange(40) % CLASSES)


def seen_of(x, y, **knowledge):
    update = local_update(MODEL, PARAMS, x[None], y[None], RULE)
    return Observation(
        params=PARAMS, update=update, rule=RULE, num_examples=1, server_round=1, knowledge=Knowledge(**knowledge)
    )


def as_rows(updates, sizes):
    return torch.stack([torch.cat([(one[name] / sizes[name]).flatten() for name in one]) for one in updates])


@pytest.mark.parametrize("told", [None, "dp_gaussian(scale=0.01)"])
def test_ridge_solves_the_normal_equations(told, monkeypatch):
    monkeypatch.setattr(regression, "LEAST_PUBLIC", 40)
    seen = seen_of(torch.rand(SHAPE, generator=DRAW), torch.tensor(1), **({"defense": told} if told else {}))
    learned = Ridge().learn(TASK, seen, PUBLIC, torch.Generator().manual_seed(4))
    memory, updates = Memory({}, torch.Generator().manual_seed(4)), []
    for x, y in zip(PUBLIC.x, PUBLIC.y, strict=True):
        step = Step(PARAMS, MODEL, x[None], y[None])
        updates.append(defense(told).protect(step, memory) if told else step.gradient())
    sizes = {name: torch.stack([one[name] for one in updates]).square().mean().sqrt() for name in PARAMS}
    rows, wanted = as_rows(updates, sizes).double(), PUBLIC.x.flatten(1).double()
    rows, wanted = rows - rows.mean(0), wanted - wanted.mean(0)
    unit = rows.square().sum(1).mean()

    def fitted(weight, n):
        return torch.linalg.solve(rows[:n].T @ rows[:n] + weight * unit * torch.eye(rows.shape[1]), rows[:n].T @ wanted[:n])

    weights = [10.0**power for power in range(-4, 4)]
    errors = [(rows[36:] @ fitted(weight, 36) - wanted[36:]).square().mean().item() for weight in weights]
    best = fitted(weights[errors.index(min(errors))], 40)
    torch.testing.assert_close(learned["map"].double(), best, rtol=1e-2, atol=1e-3)
    for name, size in sizes.items():
        torch.testing.assert_close(learned[f"size/{name}"], size)
    guess = Ridge().taught(learned).run([seen], TASK, [torch.Generator()])
    flat = as_rows([seen.update], sizes)[0] - learned["middle"]
    x = flat @ learned["map"] + PUBLIC.x.flatten(1).mean(0)
    torch.testing.assert_close(guess.x.flatten(), x, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(guess.loss, (x - x.clamp(0, 1)).square().mean()[None], rtol=1e-2, atol=1e-5)
    assert (guess.x.shape, guess.y.shape) == ((1, 1, *SHAPE), (1, 1))
    with pytest.raises(AttackError, match="at least 40 public examples, and there are 39"):
        Ridge().learn(TASK, seen, Public(PUBLIC.x[1:], PUBLIC.y[1:]), DRAW)
    with pytest.raises(AttackError, match="one example per update, not 2"):
        Ridge().learn(TASK, dataclasses.replace(seen, num_examples=2), PUBLIC, DRAW)


def test_what_ridge_says_of_itself():
    with pytest.raises(AttackError, match="there are none here"):
        Ridge().run([], TASK, [])
    assert Ridge().informed("none", Facts()) == []
    ((name, attack, *_),) = Ridge().informed("sign", Facts())
    assert (name, attack) == ("", Ridge())
    assert Ridge().cost(2, LocalRule(kind="delta", steps=3, batch_size=1, lr=0.1)) == 600
    assert (build("ridge").trained, Ridge.needs_public, Ridge.at_weights) == (True, True, True)


def test_a_blend_is_fed_and_the_image_alone_is_answered():
    space, classes = Blended(alpha=0.3, components=2), torch.tensor([[0], [2]])
    learned = space.learn(PUBLIC, TASK)
    blended, plain = space.bind(TASK, classes, learned), ClassGaussian(components=2).bind(TASK, classes, learned)
    drawn = blended.draw(5, 1, torch.Generator().manual_seed(1))
    assert torch.equal(drawn["z"], plain.draw(5, 1, torch.Generator().manual_seed(1))["z"])
    assert torch.equal(drawn["noise"], torch.zeros(5, 1, *SHAPE))
    z = {name: torch.stack([value + 0.5, value - 1]) for name, value in drawn.items()}
    image = plain.inputs(z)
    torch.testing.assert_close(blended.inputs(z), 0.7 * image + 0.3 * (0.5 + z["noise"] / 12**0.5))
    assert torch.equal(blended.answer(z), image)
    assert blended.project(z).keys() == z.keys()
    torch.testing.assert_close(blended.penalty(z), plain.penalty(z) + z["noise"].square().flatten(2).sum(-1) / 2)
    torch.testing.assert_close(blended.residuals(z).square().sum(-1), blended.penalty(z))


def test_epochs_have_examples_of_their_own_that_are_paired():
    classes = torch.tensor([[0, 0]])
    space = Epochs(number=3, init="normal").bind(TASK, classes)
    drawn = space.draw(2, 2, torch.Generator().manual_seed(1))
    assert torch.equal(drawn["x"], torch.randn((2, 6, *SHAPE), generator=torch.Generator().manual_seed(1)))
    values = [0.1, 0.9, 0.8, 0.3, 0.2, 0.7]  # in the second epoch the two are swapped
    z = {"x": torch.tensor(values).view(1, 1, 6, 1, 1, 1).expand(-1, -1, -1, *SHAPE)}
    for known in (classes, None):
        answer = Epochs(number=3).bind(TASK, known).answer(z)
        torch.testing.assert_close(answer[0, 0, :, 0, 0, 0], torch.tensor([(0.1 + 0.3 + 0.2) / 3, (0.9 + 0.8 + 0.7) / 3]))
    # Of two classes, what lies near is not what belongs together.
    apart = Epochs(number=3).bind(TASK, torch.tensor([[0, 1]])).answer(z)
    torch.testing.assert_close(apart[0, 0, :, 0, 0, 0], torch.tensor([(0.1 + 0.8 + 0.2) / 3, (0.9 + 0.3 + 0.7) / 3]))
    wide = {"x": torch.full((1, 1, 6, *SHAPE), 3.0)}
    assert space.project(wide)["x"].max() == 1
    assert torch.equal(Epochs(number=3, boxed=False).bind(TASK, classes).project(wide)["x"], wide["x"])


def test_a_grey_start_is_nearly_grey():
    space = Pixels(init="grey").bind(TASK)
    x = space.inputs(space.draw(300, 2, torch.Generator().manual_seed(0)))
    uniform = torch.rand((300, 2, *SHAPE), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(x, 0.48 + 0.04 * uniform)
    assert space.residuals({"x": x[None]}).shape == (1, 300, 0)


def test_priors_of_pictures_by_hand():
    x = torch.tensor([[1.5, 0.0], [-0.5, 3.0]]).view(1, 1, 1, 1, 2, 2)
    assert Box(weight=1.0).penalty(x).item() == pytest.approx((0.25 + 0.25 + 4) / 4)
    assert Norm(weight=1.0).residuals(x).square().sum().item() == pytest.approx((2.25 + 0.25 + 9) / 4)
    # Gaps of 1.5 and 3.5 across, 2 and 3 down, each as g² / (|g| + 0.01), the mean over each direction.
    tv = sum(g**2 / (g + 0.01) for g in (1.5, 3.5)) / 2 + sum(g**2 / (g + 0.01) for g in (2.0, 3.0)) / 2
    assert TotalVariation(weight=1.0).residuals(x).square().sum().item() == pytest.approx(tv)
    red = torch.tensor([[0.0, 1.0]]).view(1, 1, 1, 1, 1, 2).expand(-1, -1, -1, 1, 2, 2)
    colours = torch.cat([red, torch.zeros_like(red), torch.zeros_like(red)], 3)
    # Red less blue and green less red vary by 1 across, blue less green does not; nothing varies downwards.
    assert Colour(weight=1.0).penalty(colours).item() == pytest.approx(2 / 3)
    assert Colour(weight=1.0).penalty(red).item() == 0
    epochs = torch.tensor([0.0, 0.2, 0.4, 0.6, 1.1, 1.3]).view(1, 1, 6, 1, 1, 1)  # means 0.1, 0.5, 1.2
    pairs = (0.4**2 + 0.7**2 + 1.1**2) / 3
    assert SameMean(weight=1.0, epochs=3).penalty(epochs).item() == pytest.approx(pairs)
    assert SameMean(weight=1.0, epochs=1).penalty(epochs).item() == pytest.approx(0, abs=1e-12)
    seeds = torch.tensor([[0.0, 0.2, 0.7], [1.0, 0.5, 0.0]]).view(2, 3, 1, 1, 1, 1).expand(-1, -1, 2, *SHAPE)
    wanted = torch.tensor([[0.3, 0.1, 0.4], [0.5, 0.0, 0.5]]).square()  # from the mean over the seeds of a target
    torch.testing.assert_close(Group(weight=1.0).penalty(seeds), wanted)
    steep = torch.arange(9.0).square().view(1, 1, 1, 1, 3, 3)
    across, down = sum((1, 3, 7, 9, 13, 15)) / 6, sum((9, 15, 21, 27, 33, 39)) / 6
    assert TotalVariation(weight=1.0).penalty(steep).item() == pytest.approx(across + down)
    with pytest.raises(AttackError, match="BatchNorm has neither"):
        BatchNorm(weight=1.0).penalty(x)


def test_an_answer_of_several_targets_keeps_their_order(monkeypatch):
    monkeypatch.setattr(regression, "LEAST_PUBLIC", 40)
    seen = [seen_of(x, y) for x, y in zip(PUBLIC.x[:3], PUBLIC.y[:3], strict=True)]
    ready = Ridge().taught(Ridge().learn(TASK, seen[0], PUBLIC, DRAW))
    together = ready.run(seen, TASK, [torch.Generator() for _ in seen])
    for i, one in enumerate(seen):
        alone = ready.run([one], TASK, [torch.Generator()])
        assert all(torch.equal(a[0], b[i]) for a, b in zip(alone[:3], together[:3], strict=True))
    assert isinstance(together, Guess)
    assert together.y.flatten().tolist() == [0, 1, 2]
