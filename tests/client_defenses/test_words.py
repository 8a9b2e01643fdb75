"""Defenses on text: the same clipped sums by formulas as by hand, inputs moved as word vectors, refusals in one line."""

import pytest
import torch

import client_defenses
from client_defenses import Memory
from client_defenses.tools.per_example import by_layers, by_vmap
from client_defenses.tools.words import lifted
from fl_app import models
from fl_app.core.local import Step
from fl_app.core.spec import SpecError
from fl_app.core.text import Tokens, Vocabulary

SPACE = Tokens(Vocabulary.numbered(40), 7)
SMALL = "dim=12, depth=2, heads=2"


def step_of(text, dtype=torch.float32, batch=4):
    model = models.build(text, (SPACE.length, SPACE.size), 3, seed=1).to(dtype)
    x = SPACE.noise(batch, torch.Generator().manual_seed(2))
    x[0, 4:] = torch.tensor([SPACE.vocabulary.sep, 0, 0])
    x[1, 2] = x[1, 1]  # a word twice
    return Step(models.parameters_of(model), model, x, torch.arange(batch) % 3)


@pytest.mark.parametrize("text", [f"bert({SMALL}, freeze=False)", f"gpt({SMALL}, freeze=False)", f"bert({SMALL})"])
def test_the_rule_for_tables_is_what_single_gradients_give(text):
    step = step_of(text, torch.float64)
    for bound in (1e-3, 0.5, 1e6):
        formulas, plain = by_layers(step, bound), by_vmap(step, bound)
        assert formulas is not None
        assert all(torch.allclose(formulas[name], value, rtol=1e-4, atol=1e-9) for name, value in plain.items())


@pytest.mark.parametrize(
    "text",
    ["fedem(rho_max=0.5, steps=2)", "mixup", "latent_perturbation(sigma=0.1)", "soteria", "bido", "dp_sgd(clip=1, noise=0.1)"],
)
def test_defenses_take_text_and_change_the_gradient(text):
    step = step_of(f"bert({SMALL})")
    before = step.x.clone()
    sent = client_defenses.build(text).within(SPACE).protect(step, Memory.fresh(0))
    plain = step.gradient()
    assert sent.keys() == plain.keys()
    assert all(value.isfinite().all() for value in sent.values())
    assert any(not torch.allclose(sent[name], plain[name]) for name in plain)
    assert torch.equal(step.x, before)


def test_fedem_moves_words_by_its_radius_and_none_in_or_out():
    step = step_of(f"bert({SMALL})")
    moved = client_defenses.build("fedem(rho_min=0.3, rho_max=0.3, steps=3)").on_batch(step, Memory.fresh(0))
    plain = lifted(step, "test")
    assert torch.equal(moved.x[..., -1], plain.x[..., -1])
    apart = (moved.x - plain.x)[..., :-1].flatten(1).norm(dim=1)
    assert torch.allclose(apart, torch.full_like(apart, 0.3), rtol=1e-3)


def test_a_trained_table_is_lifted_by_the_weights_of_the_round_and_sends_nothing():
    step = step_of(f"bert({SMALL}, freeze=False)")
    other = step._replace(params={**step.params, "words.weight": 2 * step.params["words.weight"]})
    assert torch.equal(lifted(other, "test").x[..., :-1], 2 * lifted(step, "test").x[..., :-1])
    assert lifted(step, "test").gradient()["words.weight"].abs().max() == 0


def test_what_makes_no_sense_of_text_is_refused_in_one_line():
    with pytest.raises(SpecError, match="text"):
        client_defenses.build("instahide").within(SPACE)
    integers = Step({}, torch.nn.Linear(2, 2), torch.zeros(1, 2, dtype=torch.int64), torch.zeros(1, dtype=torch.int64))
    with pytest.raises(SpecError, match="these are integers"):
        client_defenses.build("fedem").on_batch(integers, Memory.fresh(0))
