"""Soteria: norms against one backward pass an entry, which entries are pruned, and what stays as it was."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from client_defenses import Memory, build
from client_defenses.soteria import Soteria
from client_defenses.tools.layers import jacobian_norms, linear_layer, sketched_norms, watched
from client_defenses.tools.slices import NOISY, SLICES, sensitivities
from fl_app import models
from fl_app.core.local import Step, loss_of
from fl_app.core.spec import SpecError

MODELS = {
    "lenet": (1, 12, 12),
    "lenet5": (1, 16, 16),
    "linear": (1, 5, 5),
    "convnet(width=2)": (3, 9, 9),
    "resnet10": (1, 8, 8),
    "vit(dim=12, depth=1, heads=2)": (1, 8, 8),
}


def step_of(spec, batch=3, **normalize):
    shape = MODELS[spec]
    model = models.build(spec, shape, 10, **normalize)
    x = torch.rand(batch, *shape, generator=torch.Generator().manual_seed(0))
    return Step(models.parameters_of(model), model, x, torch.arange(batch) % 10)


def features_of(step):
    name, layer = linear_layer(step.model)
    run = watched(step.model, step.params, layer, name)
    return lambda x: run(x)[0]


def loop(step):
    """One backward pass for each entry of r, as in the original code: (r, norms)."""
    x = step.x.clone().requires_grad_()
    r = features_of(step)(x)
    norms = [torch.autograd.grad(r[:, i].sum(), x, retain_graph=True)[0].flatten(1).norm(dim=1) for i in range(r.shape[1])]
    return r.detach(), torch.stack(norms, 1)


def signs(number, step, seed=0):
    return 2 * torch.randint(0, 2, (number, *step.x.shape[1:]), generator=torch.Generator().manual_seed(seed)) - 1


@pytest.mark.parametrize("spec", ["lenet", "lenet5", "linear", "convnet(width=2)", "vit(dim=12, depth=1, heads=2)"])
def test_jacobian_norms_equal_a_loop_of_backward_passes(spec):
    step = step_of(spec)
    torch.testing.assert_close(jacobian_norms(features_of(step), step.x), loop(step)[1], rtol=1e-4, atol=1e-7)


def test_chunks_change_nothing(monkeypatch):
    step = step_of("lenet")
    exact, sketch = jacobian_norms(features_of(step), step.x), sketched_norms(features_of(step), step.x, signs(7, step))
    monkeypatch.setattr("client_defenses.tools.layers.ROOM", 5 * step.x.numel())
    torch.testing.assert_close(jacobian_norms(features_of(step), step.x), exact)
    torch.testing.assert_close(sketched_norms(features_of(step), step.x, signs(7, step)), sketch)


def test_the_sketch_converges_as_the_docstring_says():
    step = step_of("lenet")
    exact = jacobian_norms(features_of(step), step.x)
    errors = {}
    for number in (16, 64, 1024):
        estimate = sketched_norms(features_of(step), step.x, signs(number, step))
        errors[number] = (estimate / exact - 1).square().mean().sqrt().item()
        assert errors[number] < 1.5 / (2 * number) ** 0.5
    assert errors[16] > 1.5 * errors[64] > 4 * errors[1024]


def test_the_sketch_prunes_mostly_the_same_entries():
    step = step_of("lenet", batch=8)
    r = features_of(step)(step.x)
    exact = Soteria(probes=0).kept(step, r, r.shape[1] // 2, Memory.fresh(0))
    sketch = Soteria(probes=64).kept(step, r, r.shape[1] // 2, Memory.fresh(0))
    assert (exact == sketch).float().mean() > 0.9
    assert not torch.equal(exact, sketch)


@pytest.mark.parametrize("spec", MODELS)
def test_only_the_weight_of_the_last_linear_layer_changes(spec):
    step = step_of(spec)
    plain, sent = step.gradient(), Soteria(ratio=0.5, probes=4).protect(step, Memory.fresh(0))
    name = f"{linear_layer(step.model)[0]}.weight"
    assert all(torch.equal(plain[key], sent[key]) for key in plain if key != name)
    assert not torch.allclose(plain[name], sent[name])


def test_the_pruned_entries_are_those_of_the_largest_score_and_their_number_is_exact():
    step = step_of("lenet", batch=1)
    r, norms = loop(step)
    name, layer = linear_layer(step.model)
    sent = Soteria(ratio=0.25, probes=0).protect(step, Memory.fresh(0))[f"{name}.weight"]
    pruned = (sent == 0).all(0)
    assert pruned.sum() == layer.in_features // 4
    score = (r.abs() / norms)[0]
    assert score[pruned].min() >= score[~pruned].max()
    torch.testing.assert_close(sent[:, ~pruned], step.gradient()[f"{name}.weight"][:, ~pruned])


def test_with_several_examples_each_has_its_own_mask():
    step = step_of("lenet", batch=3)
    name, _ = linear_layer(step.model)
    alone = [
        Soteria(ratio=0.4, probes=0).protect(
            Step(step.params, step.model, step.x[i : i + 1], step.y[i : i + 1]), Memory.fresh(0)
        )
        for i in range(3)
    ]
    sent = Soteria(ratio=0.4, probes=0).protect(step, Memory.fresh(0))[f"{name}.weight"]
    torch.testing.assert_close(sent, sum(one[f"{name}.weight"] for one in alone) / 3)


def test_masks_of_the_batch_zero_the_same_columns_for_all():
    step = step_of("lenet", batch=3)
    name, layer = linear_layer(step.model)
    sent = Soteria(ratio=0.5, probes=0, masks="batch").protect(step, Memory.fresh(0))[f"{name}.weight"]
    pruned = (sent == 0).all(0)
    r, norms = loop(step)
    score = (norms / r.abs()).sum(0)
    assert pruned.sum() == layer.in_features // 2
    assert score[pruned].max() <= score[~pruned].min()


def test_a_ratio_of_nothing_is_the_identity_and_of_everything_leaves_zeros():
    step = step_of("lenet5")
    plain, sent = step.gradient(), Soteria(ratio=0.0).protect(step, Memory.fresh(0))
    assert all(torch.equal(plain[key], sent[key]) for key in plain)
    assert not Soteria(ratio=1.0).protect(step, Memory.fresh(0))["fc3.weight"].any()


def test_dead_entries_do_not_take_the_place_of_live_ones():
    step = step_of("lenet5", batch=1)  # ReLU: about half of r is zero, and so is its Jacobian
    r, _ = loop(step)
    kept = Soteria(probes=0).kept(step, r, 10, Memory.fresh(0))
    assert (r == 0).any()
    assert (r[kept == 0] != 0).all()


def test_another_layer_and_wrong_layers():
    step = step_of("lenet5", normalize=([0.5], [0.5]))
    sent, plain = Soteria(layer="net.fc1", probes=4).protect(step, Memory.fresh(0)), step.gradient()
    assert [key for key in plain if not torch.equal(plain[key], sent[key])] == ["net.fc1.weight"]
    with pytest.raises(SpecError, match=r"no linear layer 'fc1'; .*valid: auto, net.fc1, net.fc2, net.fc3"):
        Soteria(layer="fc1").protect(step, Memory.fresh(0))
    with pytest.raises(SpecError, match=r"must see one vector for each example.*\(3, 5, 12\)"):
        Soteria(layer="blocks.0.mlp.0").protect(step_of("vit(dim=12, depth=1, heads=2)"), Memory.fresh(0))
    plain = nn.Sequential(nn.Conv2d(1, 10, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    with pytest.raises(SpecError, match="Sequential has no linear layer"):
        Soteria().protect(
            Step(dict(plain.named_parameters()), plain, torch.rand(1, 1, 5, 5), torch.zeros(1).long()), Memory.fresh(0)
        )


def test_bfloat16():
    step = step_of("lenet")
    half = {key: value.bfloat16() for key, value in step.params.items()}
    sent = Soteria().protect(Step(half, step.model, step.x.bfloat16(), step.y), Memory.fresh(0))
    assert all(value.dtype == torch.bfloat16 and value.isfinite().all() for value in sent.values())


def test_mixed_adds_noise_to_half_of_the_sensitivity():
    step = step_of("lenet")
    original = Soteria(ratio=0.5).protect(step, Memory.fresh(0))
    memory = Memory.fresh(0)
    mixed = Soteria(ratio=0.5, variant="mixed", scale=0.01).protect(step, memory)
    noise = {key: mixed[key] - original[key] for key in mixed}
    share = memory.state["sensitivities"] / memory.state["sensitivities"].sum()
    touched = sum(part * (noise[key] != 0).float().mean() for part, key in zip(share, noise, strict=True))
    assert touched.item() == pytest.approx(NOISY / SLICES, abs=0.02)
    drawn = torch.cat([value[value != 0] for value in noise.values()])
    assert drawn.std().item() == pytest.approx(0.01, rel=0.1)


def test_sensitivities_equal_finite_differences():
    step = step_of("linear", batch=1)
    step = step._replace(x=step.x.double(), params={key: value.double() for key, value in step.params.items()})

    def total(x):
        leaves = {key: value.clone().requires_grad_() for key, value in step.params.items()}
        grads = torch.autograd.grad(loss_of(step.model, leaves, x, step.y), list(leaves.values()))
        return torch.stack([value.sum() for value in grads])

    moves = torch.eye(step.x.numel(), dtype=torch.float64).view(-1, *step.x.shape) * 1e-5
    slopes = torch.stack([(total(step.x + move) - total(step.x - move)) / 2e-5 for move in moves])
    torch.testing.assert_close(sensitivities(step), slopes.norm(dim=0).float(), rtol=1e-4, atol=1e-6)


def test_chains():
    step = step_of("lenet")
    one = build("soteria + sign").protect(step, Memory.fresh(0))
    assert set(torch.cat([(value / value.abs().max()).flatten() for value in one.values()]).sign().tolist()) <= {-1.0, 0.0, 1.0}
    loss = F.cross_entropy(step.model(step.x), step.y)
    assert loss.isfinite()
    assert not any(module._forward_hooks for module in step.model.modules())


def test_norms_that_half_precision_cannot_hold_are_those_of_single_precision():
    x = torch.zeros(2, 400, dtype=torch.float16)
    norms = jacobian_norms(lambda x: 5000 * x.sum(1, keepdim=True), x)
    torch.testing.assert_close(norms, torch.full((2, 1), 5000 * 20.0))
