"""BiDO: its measures of dependence against numpy, which layers it watches, and what it does to the gradient."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from client_defenses import Memory, build
from client_defenses.bido import BiDO, centered, hidden_layers, hsic, normalized_hsic, squared_distances
from fl_app import models
from fl_app.core.local import Step
from fl_app.core.spec import SpecError

SHAPE = (1, 12, 12)


@pytest.fixture
def step(rng):
    model = models.build("lenet", SHAPE, 5, normalize=([0.3], [0.5]))
    return Step(models.parameters_of(model), model, torch.rand(7, *SHAPE, generator=rng), torch.arange(7) % 5)


def gaussian(rows, sigma):
    distances = ((rows[:, None] - rows[None]) ** 2).sum(-1)
    apart = np.sort(distances[~np.eye(len(rows), dtype=bool)])
    width = apart[(len(apart) - 1) // 2] if sigma == "median" else 2 * sigma**2 * rows.shape[1]
    return np.exp(-distances / width)


def reference(k, l, normalized):  # noqa: E741
    """Both measures as the formulas are printed: H = I - 1/n, tr(KHLH) / (n - 1)², and the authors' inverses."""
    n = len(k)
    h = np.eye(n) - np.ones((n, n)) / n
    if not normalized:
        return np.trace(k @ h @ l @ h) / (n - 1) ** 2
    k, l = k @ h, l @ h  # noqa: E741
    ridge = 1e-5 * n * np.eye(n)
    return np.trace(k @ np.linalg.inv(k + ridge) @ l @ np.linalg.inv(l + ridge))


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("kernel", ["linear", "gaussian"])
@pytest.mark.parametrize("sigma", [5.0, 0.7, "median"])
def test_the_penalty_is_what_numpy_says(rng, kernel, sigma, normalized):
    x = torch.rand(9, 2, 3, 3, generator=rng, dtype=torch.float64)
    hidden = [torch.randn(9, 4, generator=rng, dtype=torch.float64), torch.rand(9, 2, 5, generator=rng, dtype=torch.float64)]
    y = F.one_hot(torch.arange(9) % 4, 4).double()
    found = BiDO(lambda_x=0.3, lambda_y=1.7, kernel=kernel, sigma=sigma, normalized=normalized).penalty(x, hidden, y)
    flat = [value.flatten(1).numpy() for value in (x, y, *hidden)]
    labels = flat[1] @ flat[1].T if kernel == "linear" else gaussian(flat[1], sigma)
    expected = 0.0
    for z in flat[2:]:
        layer = gaussian(z, sigma)
        expected += 0.3 * reference(gaussian(flat[0], sigma), layer, normalized) - 1.7 * reference(layer, labels, normalized)
    assert found.item() == pytest.approx(expected, rel=1e-6)


def test_float32_keeps_what_a_wide_kernel_varies_by(rng):
    x, z = torch.rand(16, 60, generator=rng) / 10, torch.rand(16, 30, generator=rng) / 10
    y = F.one_hot(torch.arange(16) % 4, 4)
    for normalized in (False, True):
        defense = BiDO(lambda_x=1.0, lambda_y=0.0, normalized=normalized)
        found, exact = defense.penalty(x, [z], y.float()), defense.penalty(x.double(), [z.double()], y.double())
        assert found.item() == pytest.approx(exact.item(), rel=1e-5)


def kernel_of(rows):
    return centered(torch.exp(-squared_distances(rows) / (2 * rows.shape[1])))


def test_dependence_is_seen_and_independence_is_near_zero(rng):
    a, b = torch.randn(300, 3, generator=rng).double(), torch.randn(300, 3, generator=rng).double()
    for measure, part in ((hsic, 0.1), (normalized_hsic, 0.7)):  # the second counts directions, also such as noise shares
        dependent, independent = measure(kernel_of(a), kernel_of(a.sin())), measure(kernel_of(a), kernel_of(b))
        assert independent < part * dependent
    # Of independent variables the biased estimate is of order 1 / n, and falls so.
    few = torch.stack([hsic(kernel_of(a[i : i + 20]), kernel_of(b[i : i + 20])) for i in range(0, 300, 20)]).mean()
    assert hsic(kernel_of(a), kernel_of(b)) < few / 7
    constant = torch.ones(300, 2).double()
    assert abs(hsic(kernel_of(a), kernel_of(constant))) < 1e-12


def test_invariances(rng):
    a, b = torch.randn(12, 3, generator=rng).double(), torch.randn(12, 4, generator=rng).double()
    turn, _ = torch.linalg.qr(torch.randn(3, 3, generator=rng).double())
    order = torch.randperm(12, generator=rng)
    for measure in (hsic, normalized_hsic):
        plain = measure(kernel_of(a), kernel_of(b))
        for other in (
            measure(kernel_of(b), kernel_of(a)),
            measure(kernel_of(a[order]), kernel_of(b[order])),
            measure(kernel_of(a @ turn + 3), kernel_of(b - 7)),
        ):
            torch.testing.assert_close(plain, other)
        assert abs(measure(kernel_of(a), kernel_of(b[order])) - plain) > 1e-6  # the pairing counts
        assert plain > 0
    assert normalized_hsic(kernel_of(a), kernel_of(a)) < 11


def test_it_takes_the_gradient_of_the_penalised_loss(step):
    """Against a model written out, with its activations at hand."""
    defense = BiDO(lambda_x=0.7, lambda_y=0.4, sigma="median", normalized=False)
    leaves = {name.removeprefix("net."): value.clone().requires_grad_() for name, value in step.params.items()}
    z, hidden = (step.x - 0.3) / 0.5, []
    for layer, stride in (("conv1", 2), ("conv2", 2), ("conv3", 1)):
        z = F.conv2d(z, leaves[f"{layer}.weight"], leaves[f"{layer}.bias"], stride=stride, padding=2).sigmoid()
        hidden.append(z)
    logits = F.linear(z.flatten(1), leaves["fc.weight"], leaves["fc.bias"])
    loss = F.cross_entropy(logits, step.y) + defense.penalty(step.x, hidden, F.one_hot(step.y, 5).to(step.x))
    expected = torch.autograd.grad(loss, list(leaves.values()))
    sent = defense.gradient(step, Memory.fresh(0))
    for value, wanted in zip(sent.values(), expected, strict=True):
        torch.testing.assert_close(value, wanted, atol=1e-6, rtol=1e-3)
    plain = step.gradient()
    assert (sent["net.conv1.weight"] - plain["net.conv1.weight"]).norm() > 1e-3 * plain["net.conv1.weight"].norm()
    soft = defense.gradient(step._replace(y=F.one_hot(step.y, 5).to(step.x)), Memory.fresh(0))
    torch.testing.assert_close(soft["net.fc.weight"], sent["net.fc.weight"])


@pytest.mark.parametrize("sigma", [5.0, "median"])
@pytest.mark.parametrize("kernel", ["linear", "gaussian"])
def test_its_gradient_can_be_vectorised_and_differentiated(step, sigma, kernel):
    defense = BiDO(sigma=sigma, kernel=kernel)
    batches = torch.stack([step.x, step.x.flip(0)])
    together = torch.func.vmap(lambda x: defense.differentiable_gradient(step._replace(x=x)))(batches)
    for place, x in enumerate(batches):
        for name, value in defense.gradient(step._replace(x=x), Memory.fresh(0)).items():
            torch.testing.assert_close(together[name][place], value, atol=1e-5, rtol=1e-3)
    x = step.x.clone().requires_grad_()
    sizes = [value.square().sum() for value in defense.differentiable_gradient(step._replace(x=x)).values()]
    assert torch.autograd.grad(torch.stack(sizes).sum(), x)[0].isfinite().all()


@pytest.mark.parametrize("normalized", [False, True])
def test_following_it_lowers_dependence_on_the_input_and_raises_that_on_the_label(step, normalized):
    # In float64: whether float32 can tell the change of the measure depends on the machine.
    params = {name: value.double() for name, value in step.params.items()}
    step = step._replace(params=params, model=copy.deepcopy(step.model).double(), x=step.x.double())

    def measured(params, **weights):
        from client_defenses.bido import hidden_values

        defense = BiDO(sigma="median", normalized=normalized, **weights)
        with hidden_values(step.model, "auto") as seen, torch.no_grad():
            torch.func.functional_call(step.model, params, (step.x,))
        return defense.penalty(step.x, seen, F.one_hot(step.y, 5).to(step.x)).item()

    for weights in ({"lambda_x": 1.0, "lambda_y": 0.0}, {"lambda_x": 0.0, "lambda_y": 1.0}):
        sent = BiDO(sigma="median", normalized=normalized, **weights).gradient(step, Memory.fresh(0))
        plain = step.gradient()
        only = {name: sent[name] - plain[name] for name in sent}
        size = torch.cat([value.flatten() for value in only.values()]).norm()
        moved = {name: value - 0.02 * only[name] / size for name, value in step.params.items()}
        assert measured(moved, **weights) < measured(step.params, **weights)


def test_no_weight_or_no_second_example_is_the_plain_gradient(step):
    plain = step.gradient()
    sent = BiDO(lambda_x=0.0, lambda_y=0.0).gradient(step, Memory.fresh(0))
    assert all(torch.equal(sent[name], value) for name, value in plain.items())
    one = step._replace(x=step.x[:1], y=step.y[:1])
    alone = BiDO().gradient(one, Memory.fresh(0))
    assert all(torch.equal(alone[name], value) for name, value in one.gradient().items())


@pytest.mark.parametrize(
    ("text", "blocks"),
    [
        ("lenet", ["net.conv2", "net.conv3", "net.fc"]),
        ("lenet5", ["net.conv2", "net.fc1", "net.fc2", "net.fc3"]),
        ("resnet10", [*(f"net.layer{i}.0" for i in (1, 2, 3, 4)), "net.fc"]),
        ("convnet(width=2)", [*(f"net.conv{i}" for i in range(1, 9)), "net.fc"]),
        ("vit(dim=6, depth=2, patch=6)", ["net.blocks.0", "net.blocks.1", "net.head"]),
    ],
)
def test_the_hidden_layers_of_our_models(text, blocks, rng):
    model = models.build(text, (1, 18, 18), 5, normalize=([0.3], [0.5]))
    assert hidden_layers(model) == blocks
    step = Step(models.parameters_of(model), model, torch.rand(3, 1, 18, 18, generator=rng), torch.arange(3))
    assert all(value.isfinite().all() for value in BiDO().gradient(step, Memory.fresh(0)).values())
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())


def test_layers_can_be_named(step):
    named = BiDO(layers=("net.act1", "net.act2", "net.act3")).gradient(step, Memory.fresh(0))
    auto = BiDO().gradient(step, Memory.fresh(0))
    for name, value in auto.items():
        torch.testing.assert_close(named[name], value)
    first = build("bido(layers=['net.act1'])").gradient(step, Memory.fresh(0))
    assert not torch.equal(first["net.conv1.weight"], auto["net.conv1.weight"])
    with pytest.raises(SpecError, match=r"no layer 'net.act9'; did you mean 'net.act"):
        BiDO(layers=("net.act9",)).gradient(step, Memory.fresh(0))
    flat = nn.Sequential(nn.Flatten(), nn.Linear(144, 5))
    with pytest.raises(SpecError, match="no hidden layers"):
        BiDO().gradient(step._replace(params=models.parameters_of(flat), model=flat), Memory.fresh(0))


def test_it_chains_but_not_with_another_gradient(step):
    sent = build("fedem(rho_max=0.5) + bido + prune(ratio=0.5)").protect(step, Memory.fresh(1))
    moved = build("fedem(rho_max=0.5)").on_batch(step, Memory.fresh(1))
    expected = build("prune(ratio=0.5)").transform(BiDO().gradient(moved, Memory.fresh(0)), Memory.fresh(0))
    assert all(torch.equal(sent[name], value) for name, value in expected.items())
    with pytest.raises(SpecError, match="each define how the gradient is taken"):
        build("bido + dp_sgd")


def test_a_median_kernel_sees_no_scale(rng):
    x = torch.rand(5, 7, generator=rng)
    defense = BiDO(sigma="median")
    torch.testing.assert_close(defense._kernel(1e-3 * x), defense._kernel(x), rtol=1e-3, atol=1e-5)
    assert not defense._kernel(torch.ones(5, 7)).any()  # of images that are all the same
