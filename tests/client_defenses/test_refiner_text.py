"""Refiner on text: word vectors move among random words, what is no word stays, and the network belongs to one table."""

from dataclasses import replace

import pytest
import torch

import client_defenses
from client_defenses import Memory
from client_defenses.refiner import Refiner, keys_of
from client_defenses.tools import evaluator as evaluation
from client_defenses.tools import word_evaluator
from client_defenses.tools.evaluator import EvaluatorError
from client_defenses.tools.evaluator_networks import EvaluatorTraining
from client_defenses.tools.words import lifted
from fl_app import models
from fl_app.core.local import Step
from fl_app.core.spec import SpecError
from fl_app.core.text import Tokens, Vocabulary
from fl_app.core.wire import to_record, to_tensors

SPACE = Tokens(Vocabulary.numbered(100), 9)
MODEL = "bert(dim=16, depth=1, heads=2)"
USED = 12
"""Words of the vocabulary that sentences are made of."""


def sentences(number, seed):
    rng = torch.Generator().manual_seed(seed)
    x = SPACE.vocabulary.words[torch.randint(USED, (number, SPACE.length), generator=rng)]
    x[:, 0], x[:, -1] = SPACE.vocabulary.cls, SPACE.vocabulary.sep
    x[::2, 5:] = torch.tensor([SPACE.vocabulary.sep, 0, 0, 0])
    return x


def step_of(text=MODEL, dtype=torch.float32, number=4):
    model = models.build(text, (SPACE.length, SPACE.size), 2, seed=1).to(dtype)
    return Step(models.parameters_of(model), model, sentences(number, 7), torch.arange(number) % 2)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    ids, table = sentences(400, 1), step_of().model.table
    settings = EvaluatorTraining(width=4, steps=120, batch_size=64, lr=1e-2, stark=0.0)
    facts = word_evaluator.facts_of(ids, table, SPACE.vocabulary.special, settings, "made up")
    path = tmp_path_factory.mktemp("words") / "d.safetensors"
    evaluation.save(word_evaluator.train(facts, ids, table), path)
    return str(path)


def test_the_network_tells_the_share_of_random_words_in_text_it_has_not_seen(trained):
    network, table = evaluation.load(trained), step_of().model.table
    assert word_evaluator.agreement(network, sentences(500, 2), table, torch.Generator().manual_seed(3)) > 0.85
    ids = sentences(300, 4)
    mixed, share = word_evaluator.replaced(ids, 0.5, SPACE.vocabulary.special, SPACE.size, torch.Generator().manual_seed(5))
    fixed = torch.isin(ids, torch.tensor(SPACE.vocabulary.special))
    assert torch.equal(mixed[fixed], ids[fixed])
    assert share.mean() == pytest.approx(0.5, abs=0.05)
    assert not torch.isin(mixed[~fixed], torch.tensor(SPACE.vocabulary.special)).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_words_move_towards_random_ones_within_their_bound_and_nothing_else_moves(trained, dtype):
    step, memory, network = step_of(dtype=dtype), Memory.fresh(0), evaluation.load(trained)
    sent = Refiner(evaluator=trained).protect(step, memory)
    robust, plain = memory.state["robust"].to(dtype), lifted(step, "test").x
    assert memory.state["robust"].dtype == torch.float16
    fixed = torch.isin(step.x, torch.tensor(SPACE.vocabulary.special))
    torch.testing.assert_close(robust[fixed], plain[fixed].half().to(dtype))
    assert torch.equal(robust[..., -1], plain[..., -1])
    assert (robust[..., :-1].norm(dim=-1) <= 1.001 * step.model.table.norm(dim=1).max()).all()
    assert (robust - plain)[~fixed].norm(dim=1).min() > 0.01
    assert (network(robust) > network(plain)).all()
    again = step._replace(x=robust).gradient()
    assert all(torch.allclose(sent[name], value, atol=2e-3, rtol=2e-2) for name, value in again.items())


def test_what_is_sent_is_no_further_than_eps_and_the_same_again(trained):
    step = step_of()
    true, one, other = step.gradient(), *(Refiner(evaluator=trained, eps=0.05).protect(step, Memory.fresh(3)) for _ in "12")
    assert all(torch.equal(one[name], other[name]) for name in one)
    apart = sum((one[name].double() - value.double()).square().sum() for name, value in true.items()).sqrt()
    assert apart.item() == pytest.approx(0.05, rel=1e-5)


def test_robust_words_are_found_again_by_their_ids_after_a_message(trained):
    defense, step = Refiner(evaluator=trained, iterations=2, warm_iterations=1), step_of()
    kept, moved = Memory.fresh(3), Memory.fresh(3)
    for memory in (kept, moved):
        defense.protect(step, memory)
    moved.state = to_tensors(to_record(moved.state))
    assert torch.equal(kept.state["keys"], keys_of(step.x))
    one, other = (defense.protect(step, memory) for memory in (kept, moved))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert any(not torch.equal(one[name], value) for name, value in defense.protect(step, Memory.fresh(3)).items())


def test_a_network_for_anything_else_is_refused_in_one_line(trained, tmp_path):
    built = client_defenses.build(f"refiner(evaluator='{trained}')").within(SPACE)
    with pytest.raises(EvaluatorError, match="the words of another table"):
        built.protect(step_of("bert(dim=20, depth=1, heads=2)"), Memory.fresh(0))
    with pytest.raises(SpecError, match="freeze=True"):
        built.protect(step_of("bert(dim=16, depth=1, heads=2, freeze=False)"), Memory.fresh(0))
    with pytest.raises(SpecError, match="takes text as it is"):
        client_defenses.build(f"fedem(steps=1) + refiner(evaluator='{trained}')").protect(step_of(), Memory.fresh(0))
    images = tmp_path / "images.safetensors"
    evaluation.save(evaluation.train(torch.rand(8, 1, 8, 8), EvaluatorTraining(width=1, steps=1)), images)
    with pytest.raises(EvaluatorError, match=r"is for images of shape \(1, 8, 8\)"):
        replace(built, evaluator=str(images)).protect(step_of(), Memory.fresh(0))
