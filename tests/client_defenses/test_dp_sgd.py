"""DP-SGD: the clipped sum against explicit loops and against Opacus, and the law of the noise."""

import contextlib

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F

from client_defenses import Memory, build
from client_defenses.dp_sgd import DPSGD
from client_defenses.tools import per_example
from fl_app import models
from fl_app.core.local import Step
from fl_app.core.spec import SpecError

MODELS = {
    "lenet": (3, 16, 16),
    "lenet5": (1, 28, 28),
    "linear": (3, 8, 8),
    "convnet(width=4, norm='group')": (3, 9, 9),
    "convnet(width=4, norm='none')": (3, 9, 9),
    "resnet10(norm='group')": (3, 8, 8),
    "resnet10(norm='none', activation='sigmoid')": (3, 8, 8),
    "vit(dim=24, depth=2)": (3, 8, 8),
}


def step_of(model, shape, batch=5, seed=0, dtype=torch.float32):
    draw = torch.Generator().manual_seed(seed)
    x = torch.rand(batch, *shape, generator=draw).to(dtype)
    return Step(models.parameters_of(model), model, x, torch.arange(batch) % 10)


def loop(step, bound):
    """One backward pass an example: (the sum of the clipped gradients, their norms before)."""
    total = {name: torch.zeros_like(value) for name, value in step.params.items()}
    norms = []
    for i in range(len(step.x)):
        grads = Step(step.params, step.model, step.x[i : i + 1], step.y[i : i + 1]).gradient()
        norm = torch.sqrt(sum(value.double().square().sum() for value in grads.values()))
        norms.append(norm.item())
        for name, value in grads.items():
            total[name] += value * min(1.0, bound / norm.item())
    return total, norms


def assert_near(one, other, tolerance=1e-5):
    size = torch.sqrt(sum(value.square().sum() for value in other.values()))
    for name in other:
        assert (one[name] - other[name]).norm() <= tolerance * size, name


@pytest.mark.parametrize("spec", MODELS)
def test_the_clipped_sum_equals_an_explicit_loop(spec):
    shape = MODELS[spec]
    model = models.build(spec, shape, 10, normalize=([0.5] * shape[0], [0.3] * shape[0]))
    step = step_of(model, shape)
    norms = sorted(loop(step, 1.0)[1])
    bound = norms[len(norms) // 2]  # some examples are clipped and some are not
    expected, _ = loop(step, bound)
    assert_near(DPSGD(clip=bound, noise=0.0).protect(step, Memory.fresh(0)), {k: v / 5 for k, v in expected.items()})
    assert_near(per_example.by_vmap(step, bound), expected)
    # Only the transformer has parameters of no layer; all else takes the fast way.
    assert (per_example.by_layers(step, bound) is None) == spec.startswith("vit")


def test_memory_bounds_change_nothing(monkeypatch):
    model = models.build("resnet10(norm='group')", (3, 8, 8), 10)
    step = step_of(model, (3, 8, 8))
    expected = per_example.by_layers(step, 0.1)
    monkeypatch.setattr(per_example, "CHUNK", 1)
    monkeypatch.setattr(per_example, "KEEP", 1)
    assert_near(per_example.by_layers(step, 0.1), expected)
    assert_near(per_example.by_vmap(step, 0.1), expected)


def test_temporaries_hold_no_more_numbers_than_they_may(monkeypatch):
    """Of patches and pairs of positions, of layers' gradients, and of all gradients at once."""
    torch.manual_seed(0)
    conv = nn.Sequential(nn.Conv2d(8, 16, 3), nn.Flatten(), nn.Linear(64, 10))
    step, batches = step_of(conv, (8, 4, 4), batch=7), []
    uses = {use.name: use for use in per_example._uses(step)}
    assert per_example._ghost_pays(uses["0"])
    expected = per_example._norms(uses["0"])
    real = F.unfold
    monkeypatch.setattr(F, "unfold", lambda x, *more: batches.append(len(x)) or real(x, *more))
    monkeypatch.setattr(per_example, "CHUNK", 3 * (72 * 4 + 2 * 4**2))
    torch.testing.assert_close(per_example._norms(uses["0"]), expected)
    assert batches == [3, 3, 1]
    wide = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.Flatten(), nn.Linear(192, 10))
    wide_step = step_of(wide, (2, 8, 8), batch=7)
    use = next(use for use in per_example._uses(wide_step) if use.name == "0")
    assert not per_example._ghost_pays(use)
    for keep, kept in ((7 * 54, True), (7 * 54 - 1, False)):
        monkeypatch.setattr(per_example, "KEEP", keep)
        assert (per_example._own_gradients(use) is not None) is kept
    parts = []
    whole = per_example._conv_weights
    monkeypatch.setattr(per_example, "_conv_weights", lambda layer, x, d: parts.append(len(x)) or whole(layer, x, d))
    monkeypatch.setattr(per_example, "CHUNK", 2 * 54)
    per_example._norms(use)
    assert parts == [2, 2, 2, 1]
    seen = []
    monkeypatch.setattr(Step, "per_example_gradients", lambda self: seen.append(len(self.x)) or {})
    monkeypatch.setattr(per_example, "CHUNK", sum(value.numel() for value in wide_step.params.values()))
    with pytest.raises(RuntimeError):  # there is nothing to add up
        per_example.by_vmap(wide_step, 1.0)
    assert seen == [4]


class Odd(nn.Module):
    """What models may do: use a layer twice, change values in place, strides, groups, dilation, layers on tokens."""

    def __init__(self, twice=False):
        super().__init__()
        self.twice = twice
        self.conv = nn.Conv2d(2, 4, 3, stride=2, dilation=2, groups=2, bias=False)
        self.mix = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, 10, bias=False)

    def forward(self, x):
        hidden = self.conv(x).relu_().flatten(2).transpose(1, 2)
        hidden = self.norm(self.mix(hidden)).mul_(2)
        if self.twice:
            hidden = self.mix(hidden)
        return self.head(hidden.mean(1))


@pytest.mark.parametrize("twice", [False, True])
def test_unusual_models(twice):
    torch.manual_seed(0)
    step = step_of(Odd(twice), (2, 11, 11))
    bound = min(loop(step, 1.0)[1]) * 1.1
    assert (per_example.by_layers(step, bound) is None) == twice
    assert_near(per_example.clipped_sum(step, bound), loop(step, bound)[0])


@pytest.mark.parametrize("groups", [1, 2])
def test_pairs_of_positions_pay_for_few_positions_and_never_for_groups(groups):
    """One position of a kernel with 8 * 9 / groups inputs and 16 outputs; of 36 positions the gradient itself is cheaper."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(8, 16, 3, groups=groups), nn.Flatten(), nn.LazyLinear(10))
    for side, pays in ((3, groups == 1), (8, False)):
        model[2] = nn.Linear(16 * (side - 2) ** 2, 10)
        step = step_of(model, (8, side, side))
        conv = next(use for use in per_example._uses(step) if use.name == "0")
        assert conv.positions == (side - 2) ** 2
        assert per_example._ghost_pays(conv) is pays
        bound = sorted(loop(step, 1.0)[1])[2]
        assert_near(per_example.by_layers(step, bound), loop(step, bound)[0])


def test_layer_norms_over_features_and_over_whole_images():
    """Over the last dimension of rows and of tokens, and over channels, height and width together."""
    torch.manual_seed(0)
    image = nn.Sequential(nn.LayerNorm((2, 4, 4)), nn.Flatten(), nn.Linear(32, 6), nn.LayerNorm(6), nn.Linear(6, 10))
    tokens = nn.Sequential(nn.LayerNorm((4, 4)), nn.Linear(4, 6), nn.LayerNorm(6), nn.Flatten(), nn.Linear(48, 10))
    for model in (image, tokens):
        step = step_of(model, (2, 4, 4))
        bound = sorted(loop(step, 1.0)[1])[2]
        assert_near(per_example.by_layers(step, bound), loop(step, bound)[0])


class Overwrites(nn.Module):
    """Changes in place what a layer has read, or hands a layer rows that are no examples."""

    def __init__(self, rows):
        super().__init__()
        self.rows = rows
        self.first, self.second, self.head = nn.Linear(8, 8), nn.Linear(4 if rows else 8, 4 if rows else 8), nn.Linear(8, 10)

    def forward(self, x):
        hidden = self.first(x)
        if self.rows:
            return self.head(self.second(hidden.view(-1, 4)).view(len(x), -1))
        out = self.second(hidden)
        hidden.mul_(3)
        return self.head(out + hidden)


@pytest.mark.parametrize("rows", [False, True])
def test_layers_whose_inputs_do_not_stay_take_the_slow_way(rows):
    torch.manual_seed(0)
    step = step_of(Overwrites(rows), (8,))
    bound = sorted(loop(step, 1.0)[1])[2] if rows else 1.0
    assert per_example.by_layers(step, bound) is None
    if rows:
        assert_near(per_example.clipped_sum(step, bound), loop(step, bound)[0])


def test_tied_weights_take_the_slow_way():
    model = nn.Sequential(nn.Flatten(), nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, 10))
    model[3].weight = model[1].weight
    assert per_example.by_layers(step_of(model, (10,)), 1.0) is None


def test_soft_labels_and_bfloat16():
    model = models.build("lenet", (1, 16, 16), 10)
    step = step_of(model, (1, 16, 16))
    soft = step._replace(y=F.one_hot(step.y, 10).float())
    assert_near(per_example.clipped_sum(soft, 0.5), per_example.clipped_sum(step, 0.5))
    half = step_of(model.to(torch.bfloat16), (1, 16, 16), dtype=torch.bfloat16)
    sent = DPSGD(noise=0.0).protect(half, Memory.fresh(0))
    assert all(value.dtype == torch.bfloat16 and value.isfinite().all() for value in sent.values())


def test_opacus_agrees():
    from opacus.grad_sample import GradSampleModule

    model = models.build("lenet", (3, 16, 16), 10)
    step = step_of(model, (3, 16, 16))
    wrapped = GradSampleModule(models.build("lenet", (3, 16, 16), 10), loss_reduction="sum")
    F.cross_entropy(wrapped(step.x), step.y, reduction="sum").backward()
    theirs = {name.removeprefix("_module."): value.grad_sample for name, value in wrapped.named_parameters()}
    norms = torch.stack([value.flatten(1).norm(dim=1) for value in theirs.values()]).norm(dim=0)
    bound = norms.median().item()
    expected = {k: torch.einsum("b,b...->...", (bound / norms).clamp(max=1), v) for k, v in theirs.items()}
    assert_near(per_example.by_layers(step, bound), expected)


def test_the_noise_is_normal_with_std_noise_times_clip_over_batch():
    from scipy import stats

    step = step_of(models.build("lenet", (3, 32, 32), 10), (3, 32, 32), batch=4)
    plain = DPSGD(clip=0.5, noise=0.0).protect(step, Memory.fresh(1))
    noisy = DPSGD(clip=0.5, noise=3.0).protect(step, Memory.fresh(1))
    noise = torch.cat([(noisy[key] - plain[key]).flatten() for key in plain]) * 4 / (3.0 * 0.5)
    assert stats.kstest(noise.numpy(), "norm").pvalue > 1e-3
    assert abs(noise.std().item() - 1) < 4 / (2 * len(noise)) ** 0.5


def test_one_example_moves_the_sum_by_the_bound_at_most():
    model = models.build("lenet", (1, 16, 16), 10)
    step = step_of(model, (1, 16, 16))
    less = Step(step.params, model, step.x[1:], step.y[1:])
    one, other = per_example.clipped_sum(step, 0.01), per_example.clipped_sum(less, 0.01)
    moved = torch.sqrt(sum((one[key] - other[key]).square().sum() for key in one))
    assert 0.0099 < moved <= 0.01 * (1 + 1e-4)  # every gradient is longer than the bound, so it is reached


@pytest.mark.parametrize("name", ["dp_sgd", "ldpm"])
def test_batch_statistics_are_refused_with_the_reason(name):
    model = models.build("convnet(width=4)", (3, 9, 9), 10)
    with pytest.raises(SpecError, match=rf"{name} needs a gradient for each example, and 'norm0' .*norm='group'"):
        build(name).protect(step_of(model, (3, 9, 9)), Memory.fresh(0))


def test_batch_norm_is_harmless_once_it_uses_what_it_has_learned():
    for training, tracks, refused in ((True, True, True), (False, False, True), (True, False, True), (False, True, False)):
        model = nn.Sequential(nn.BatchNorm2d(3, track_running_stats=tracks), nn.Flatten(), nn.Linear(12, 10)).train(training)
        with pytest.raises(SpecError, match="mixes the examples") if refused else contextlib.nullcontext():
            per_example.refuse_batch_norm(model, "it")


def test_a_clip_of_nothing_and_settings():
    assert DPSGD(noise=1.3).noise_multiplier() == 1.3
    for wrong in ("clip=0.0", "noise=-1.0"):
        with pytest.raises(SpecError, match="dp_sgd"):
            build(f"dp_sgd({wrong})")
    with pytest.raises(SpecError, match="cannot be chained"):
        build("dp_sgd + soteria")


def test_hooks_are_taken_off_again():
    model = models.build("lenet", (1, 16, 16), 10)
    step = step_of(model, (1, 16, 16))
    per_example.by_layers(step, 1.0)
    assert not any(module._forward_hooks for module in model.modules())
    assert functional_call(model, step.params, (step.x,)).shape == (5, 10)
