"""Reconstructions of the papers' attacks, as the code made them before it was rebuilt from pieces: the same for the same draws.

Few iterations: rounding differs between machines, and long searches carry it away.
"""

import pytest
import torch
from safetensors.torch import load_file

import adversary
from fl_app import models
from fl_app.core.local import LocalRule, local_update
from fl_app.core.observation import Observation, Task
from fl_app.core.space import Images
from helpers.paths import ROOT

SHAPE, CLASSES, ITERATIONS = (1, 16, 16), 4, 25
CASES = {
    "idlg": ("idlg(iterations={}, restarts=1)", 1, LocalRule(batch_size=1)),
    "dlg": ("dlg(iterations={}, restarts=1)", 1, LocalRule(batch_size=1)),
    "inverting_gradients": ("inverting_gradients(iterations={})", 1, LocalRule(batch_size=1)),
    "inverting_gradients_batch": ("inverting_gradients(iterations={}, tv=0.01)", 3, LocalRule(batch_size=3)),
    "cosine_lbfgs_delta": ("cosine_lbfgs(iterations={})", 2, LocalRule(kind="delta", batch_size=1, steps=2, lr=0.1)),
    "grad_inversion": ("grad_inversion(iterations={}, seeds=2)", 2, LocalRule(batch_size=2)),
}


def scene(examples, rule):
    """Two targets of smooth images."""
    rng = torch.Generator().manual_seed(11)
    model = models.build("lenet", SHAPE, CLASSES, seed=5)
    params = models.parameters_of(model)
    seen = []
    for client in range(2):
        low = torch.rand((examples, 1, 4, 4), generator=rng)
        x = torch.nn.functional.interpolate(low, size=SHAPE[1:], mode="bilinear")
        y = torch.randint(CLASSES, (examples,), generator=rng)
        update = {name: value.detach() for name, value in local_update(model, params, x, y, rule).items()}
        seen.append(Observation(params=params, update=update, rule=rule, num_examples=examples, server_round=1, client=client))
    return Task(model, Images(SHAPE), CLASSES), seen


def rebuilt(name, golden, iterations=ITERATIONS):
    """An attack on the scene with the draws of the kept reconstructions."""
    text, examples, rule = CASES[name]
    task, seen = scene(examples, rule)
    streams = [torch.Generator().manual_seed(seed) for seed in golden[f"{name}/seeds"].tolist()]
    guess = adversary.build(text.format(iterations)).run(seen, task, streams)
    return guess._replace(x=guess.x.clamp(0, 1))


@pytest.mark.parametrize("name", CASES)
def test_reconstructions_are_those_of_before(name):
    golden = load_file(ROOT / "tests" / "golden" / "attacks.safetensors")
    found = rebuilt(name, golden)
    assert torch.equal(found.y, golden[f"{name}/y"])
    torch.testing.assert_close(found.loss, golden[f"{name}/loss"], rtol=5e-2, atol=1e-6)
    assert (found.x - golden[f"{name}/x"]).abs().mean() < 1e-3
