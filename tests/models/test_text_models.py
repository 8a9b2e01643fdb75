"""Text models: padding changes nothing, words and their vectors are the same input, derivatives of all kinds exist."""

import pytest
import torch
from torch.func import functional_call, vmap

from fl_app import models
from fl_app.core.local import Step, loss_of
from fl_app.core.spec import SpecError
from fl_app.models.minilm import renamed
from fl_app.models.text import Transformer

VOCABULARY = 50
SMALL = "dim=16, depth=2, heads=2"
TEXTS = [f"bert({SMALL})", f"bert({SMALL}, pool=first)", f"gpt({SMALL})", f"gpt({SMALL}, pool=mean, freeze=False)", "bow"]


def ids_of(length=8, seed=0):
    ids = torch.randint(1, VOCABULARY, (3, length), generator=torch.Generator().manual_seed(seed))
    ids[0, 5:] = 0
    ids[2, 3:] = 0
    return ids


@pytest.mark.parametrize("text", TEXTS)
def test_words_and_their_vectors_are_the_same_input_to_the_last_bit(text):
    model, ids = models.build(text, (8, VOCABULARY), 3, seed=1), ids_of()
    assert model(ids).shape == (3, 3)
    assert torch.equal(model(ids), model(model.lift(ids)))


@pytest.mark.parametrize("text", TEXTS)
def test_padding_changes_neither_logits_nor_gradients(text):
    ids, y = ids_of(), torch.tensor([0, 1, 2])
    model = models.build(text, (12, VOCABULARY), 3, seed=1)
    params, longer = models.parameters_of(model), torch.nn.functional.pad(ids, (0, 4))
    assert torch.allclose(model(ids), model(longer), atol=1e-6)
    a, b = (Step(params, model, x, y).gradient() for x in (ids, longer))
    assert all(torch.allclose(a[name], b[name], atol=1e-6) for name in a)
    if "words.weight" in a:
        assert a["words.weight"][0].abs().max() == 0
        used = set(a["words.weight"].abs().sum(1).nonzero().flatten().tolist())
        assert used == set(ids.unique().tolist()) - {0}


def test_a_decoder_does_not_see_what_comes_and_an_encoder_does():
    ids = ids_of()
    other = ids.clone()
    other[:, 4] = 7
    for text, same in (("gpt", True), ("bert", False)):
        model = models.build(f"{text}({SMALL})", (8, VOCABULARY), 3, seed=1)
        before, after = (model.hidden(model.lift(one))[1, :4] for one in (ids, other))
        assert torch.equal(before, after) == same


@pytest.mark.parametrize("text", TEXTS[:4])
def test_gradients_can_be_vectorised_and_differentiated_again(text):
    model = models.build(text, (8, VOCABULARY), 3, seed=1)
    params, y = models.parameters_of(model), torch.tensor([0, 1, 2])
    lifted = torch.stack([model.lift(ids_of(seed=seed)) for seed in (0, 1)]).detach().requires_grad_()
    grads = vmap(lambda x: Step(params, model, x, y).differentiable_gradient())(lifted)
    alone = Step(params, model, lifted[1].detach(), y).gradient()
    assert all(torch.allclose(grads[name][1], alone[name], atol=1e-6) for name in alone)
    (second,) = torch.autograd.grad(sum(value.square().sum() for value in grads.values()), lifted)
    assert second.isfinite().all()
    assert second[..., :-1].abs().max() > 0
    assert second[0, 0, 5:, :-1].abs().max() == 0  # nothing behind the end matters


def test_frozen_tables_are_no_weights_and_the_same_for_every_seed():
    a, b = (models.build(f"bert({SMALL})", (8, VOCABULARY), 2, seed=seed) for seed in (1, 2))
    assert a.frozen
    assert torch.equal(a.table, b.table)
    assert not any("words" in name or "places" in name for name in models.parameters_of(a))
    trained = models.build(f"bert({SMALL}, freeze=False)", (8, VOCABULARY), 2, seed=1)
    assert models.parameters_of(trained)["words.weight"].shape == (VOCABULARY, 16)


def test_a_language_model_predicts_each_next_word():
    model = models.build(f"gpt({SMALL}, head=lm)", (8, VOCABULARY), 2, seed=1)
    ids = ids_of()
    y = torch.nn.functional.pad(ids[:, 1:], (0, 1))
    y[y == 0] = -100
    assert model(ids).shape == (3, VOCABULARY, 8)
    loss = loss_of(model, models.parameters_of(model), ids, y)
    chosen = functional_call(model, models.parameters_of(model), (ids,)).log_softmax(1)
    by_hand = -torch.stack([chosen[b, y[b, j], j] for b in range(3) for j in range(8) if y[b, j] >= 0]).mean()
    assert torch.allclose(loss, by_hand)


@pytest.mark.parametrize(
    ("name", "shape", "words"),
    [
        ("lenet5", (8, VOCABULARY), "takes images, and these examples are text"),
        ("bert", (3, 32, 32), "takes text, and these examples are images"),
        ("gpt", (5,), "takes text, and these examples are rows"),
        ("bert(dim=10, heads=3)", (8, VOCABULARY), "not a multiple of heads"),
        ("minilm", (8, VOCABULARY), "30522"),
    ],
)
def test_what_does_not_fit_is_refused(name, shape, words):
    with pytest.raises(SpecError, match=words):
        models.build(name, shape, 2)


def test_minilm_is_what_transformers_makes_of_the_published_weights():
    from fl_app.core import vision  # noqa: F401  # before transformers imports torchvision

    transformers = pytest.importorskip("transformers", reason="pip install transformers, to compare with it")
    settings = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
    other = transformers.BertModel(transformers.BertConfig(**settings)).eval()
    ids = torch.randint(1, 30522, (2, 12), generator=torch.Generator().manual_seed(0))
    ids[1, 7:] = 0
    keep = ids != 0
    model = Transformer((12, 30522), 2, 384, 6, 12, "mean", freeze=True, post=True, eps=1e-12)
    own = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    with torch.no_grad():
        for name, value in renamed(other.state_dict()).items():
            own[name].copy_(value[: len(own[name])])
        theirs = other(input_ids=ids, attention_mask=keep.long()).last_hidden_state
        assert torch.allclose(model.hidden(model.lift(ids))[keep], theirs[keep], atol=1e-4)
