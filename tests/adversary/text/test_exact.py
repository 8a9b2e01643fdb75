"""What an update says of words without a search: bags, closed forms, spans."""

from dataclasses import replace

import pytest
import torch

import adversary
import client_defenses
from adversary import AttackError, Facts
from adversary.text.closed_form import ClosedForm
from adversary.text.completion import completed
from adversary.text.network import transformer_at
from adversary.text.spans import ATTENTION, BEHIND, First, span_of
from client_defenses import Memory
from fl_app import models
from fl_app.core.local import LocalRule, local_update
from fl_app.core.observation import Knowledge, Observation, Task
from fl_app.core.text import Tokens, Vocabulary

SPACE = Tokens(Vocabulary.numbered(200), 12)
SMALL = "dim=48, depth=3, heads=2"


def sentences(number, seed=0):
    rng = torch.Generator().manual_seed(seed)
    x = SPACE.noise(number, rng)
    for row, end in zip(x, torch.randint(4, SPACE.length, (number,), generator=rng).tolist(), strict=True):
        row[end], row[end + 1 :] = SPACE.vocabulary.sep, 0
    return x


def seen_of(text, x, y, dtype=torch.float32, **told):
    """Observations of batches x (targets, examples, length)."""
    model = models.build(text, (SPACE.length, SPACE.size), 2, seed=3).to(dtype)
    params, rule = models.parameters_of(model), LocalRule(batch_size=x.shape[1])
    seen = [
        Observation(
            params=params,
            update=local_update(model, params, *one, rule),
            rule=rule,
            num_examples=x.shape[1],
            server_round=1,
            client=i,
            knowledge=Knowledge(**told),
        )
        for i, one in enumerate(zip(x, y, strict=True))
    ]
    return seen, Task(model, SPACE, 2)


@pytest.mark.parametrize("text", [f"bert({SMALL}, freeze=False)", f"gpt({SMALL}, freeze=False)", "bow"])
def test_the_bag_is_exact_at_any_batch(text):
    x, y = sentences(6).view(2, 3, -1), torch.tensor([[0, 1, 1], [1, 0, 1]])
    if text == "bow":
        seen, task = seen_of(text, x, y, labels=y[0])
        guess = adversary.build("bag_of_words(labels=given)")(seen[:1], task, 0)
    else:
        seen, task = seen_of(text, x, y)
        guess = adversary.build("bag_of_words")(seen, task, 0)
    for found, truth in zip(guess.x, x, strict=False):
        assert set(found.unique().tolist()) == set(truth.unique().tolist()) | {0}


@pytest.mark.parametrize("text", ["bert", "gpt"])
def test_the_closed_form_proves_a_sentence_and_no_wrong_one(text):
    x, y = sentences(5)[:, None], torch.tensor([[0], [1], [1], [0], [1]])
    x[0, 0, 2] = x[0, 0, 1]  # a word that occurs twice
    seen, task = seen_of(f"{text}({SMALL}, freeze=False)", x, y)
    guess = adversary.build("closed_form")(seen, task, 0)
    assert torch.equal(guess.x, x)
    assert torch.equal(guess.y, y)
    assert (guess.loss <= ClosedForm.proof).all()
    rng = torch.Generator().manual_seed(1)
    for one in seen:
        noisy = {name: value + 0.01 * torch.randn(value.shape, generator=rng) for name, value in one.update.items()}
        object.__setattr__(one, "update", noisy)
    again = adversary.build("closed_form")(seen, task, 0)
    assert (again.loss > ClosedForm.proof).all()


@pytest.mark.parametrize("text", [f"bert({SMALL})", f"bert({SMALL}, pool=first)", f"gpt({SMALL})"])
@pytest.mark.parametrize("batch", [1, 3])
def test_dager_finds_and_proves_all_sentences_while_tokens_are_fewer_than_the_width(text, batch):
    x = sentences(2 * batch, seed=4).view(2, batch, -1)
    y = torch.arange(2 * batch).view(2, batch) % 2
    seen, task = seen_of(text, x, y)
    attack = adversary.build("dager")
    guess = attack(seen, task, 0)
    for found, truth, classes, told in zip(guess.x, x, y, guess.y, strict=True):
        wanted = sorted(zip(truth.tolist(), classes.tolist(), strict=True))
        assert sorted(zip(found.tolist(), told.tolist(), strict=True)) == wanted
    assert (guess.loss <= attack.proof).all()


def test_true_words_lie_in_the_span_and_others_do_not():
    x = sentences(1, seed=7)
    (seen,), task = seen_of(f"gpt({SMALL})", x[None], torch.tensor([[1]]), dtype=torch.float64)
    span = span_of(seen.update, ATTENTION, "threshold", 1e-9)
    first, ids = First(transformer_at(task, seen.params)), torch.arange(SPACE.size)
    length = int((x[0] != 0).sum())
    assert span.rank == length
    for place in range(length):
        far = span.distances(first.entering(first.stream(ids, torch.full_like(ids, place))))
        assert far[x[0, place]] < 1e-10
        others = torch.cat([far[: x[0, place]], far[x[0, place] + 1 :]])
        assert others.min() > 1e-2
    # The query alone knows nothing of the first token, which attends to itself whatever it asks.
    rows = seen.update[f"{ATTENTION}.weight"][:48]
    assert int(torch.linalg.matrix_rank(rows, rtol=1e-9)) == length - 1
    assert span_of(seen.update, BEHIND, "threshold", 1e-9).rank >= length


def test_a_ranking_outlives_noise_that_ends_the_threshold():
    x, y = sentences(4, seed=5)[:, None], torch.tensor([[0], [1], [1], [0]])
    seen, task = seen_of(f"bert({SMALL})", x, y)
    rng = torch.Generator().manual_seed(2)
    for one in seen:
        size = one.update[f"{ATTENTION}.weight"].std()
        noisy = {k: v + 0.05 * size * torch.randn(v.shape, generator=rng) for k, v in one.update.items()}
        object.__setattr__(one, "update", noisy)
    ranked = adversary.build("dager(select=top)")(seen, task, 0)
    words = (x != 0) & ~torch.isin(x, torch.tensor(SPACE.vocabulary.special))
    assert ((ranked.x == x) & words).sum() / words.sum() > 0.8
    with pytest.raises(AttackError, match="more tokens than it can tell"):
        adversary.build("dager")(seen, task, 0)


@pytest.mark.parametrize("text", [f"bert({SMALL})", f"gpt({SMALL})"])
def test_tiger_proves_sentences_and_outlives_noise_that_a_ranking_does_not(text):
    x, y = sentences(4, seed=5)[:, None], torch.tensor([[0], [1], [1], [0]])
    seen, task = seen_of(text, x, y)
    attack = adversary.build("tiger")
    guess = attack(seen, task, 0)
    proved = guess.loss <= attack.proof
    assert proved.sum() >= 3
    assert torch.equal(guess.x[proved], x[proved])
    rng = torch.Generator().manual_seed(2)
    for one in seen:
        size = one.update[f"{ATTENTION}.weight"].std()
        noisy = {k: v + 0.5 * size * torch.randn(v.shape, generator=rng) for k, v in one.update.items()}
        object.__setattr__(one, "update", noisy)
    words = (x != 0) & ~torch.isin(x, torch.tensor(SPACE.vocabulary.special))
    right = {
        name: (((adversary.build(name)(seen, task, 0).x == x) & words).sum() / words.sum()).item()
        for name in ("tiger", "dager(select=top)")
    }
    assert right["tiger"] > max(0.4, right["dager(select=top)"])


def test_tiger_reads_batches():
    x = sentences(2, seed=4)[None]
    seen, task = seen_of(f"gpt({SMALL})", x, torch.tensor([[0, 1]]), lengths=(x[0] != 0).sum(1))
    guess = adversary.build("tiger")(seen, task, 0)
    found, truth = (set(one[one != 0].tolist()) for one in (guess.x, x))
    assert len(found & truth) > 0.7 * len(truth)


def test_who_knows_refiner_looks_for_words_as_it_blends_them():
    found = {one.name: one for one in adversary.build("dager").informed("refiner(alpha=0.3) + prune", Facts())}
    assert found["ranked"].attack == adversary.build("dager(select=top)")
    assert found["unblend"].attack == adversary.build("dager(select=top, blend=0.3)")
    assert [one.attack.blend for one in adversary.build("tiger").informed("refiner", Facts())] == [0.5]
    assert adversary.build("tiger").informed("dp_gaussian", Facts()) == []
    search = {one.name: one for one in adversary.build("tag").informed("refiner(eps=0.1)", Facts(public=9999, evaluator="d"))}
    assert search["most likely"].why_not == "it is about pixels, and these examples are text"
    assert search["unblend"].attack.space.blend == search["knows D"].attack.space.blend == 0.5
    assert search["knows D"].attack.of_text
    # Half of each word and half of another one: who looks for the half finds more than who looks for the whole.
    x = sentences(4, seed=11)[:, None]
    seen, task = seen_of(f"bert({SMALL})", x, torch.tensor([[0], [1], [1], [0]]))
    other = SPACE.noise(4, torch.Generator().manual_seed(3))[:, None]
    plain = (x != 0) & ~torch.isin(x, torch.tensor(SPACE.vocabulary.special))
    for one, ids, random, free in zip(seen, x, other, plain, strict=True):
        whole, strange = task.model.lift(ids), task.model.lift(random)
        blended = torch.where(free[..., None], 0.5 * whole + 0.5 * strange, whole)
        update = local_update(task.model, one.params, blended, torch.tensor([one.client % 2]), one.rule)
        object.__setattr__(one, "update", update)
    ranked, told = (adversary.build(text)(seen, task, 0).x for text in ("dager(select=top)", "dager(select=top, blend=0.5)"))
    assert ((told == x) & plain).sum() >= ((ranked == x) & plain).sum()
    assert ((told == x) & plain).sum() / plain.sum() > 0.25  # a half would be all that is there to tell


def test_what_tells_no_words_is_refused_in_one_line():
    x, y = sentences(1)[:, None], torch.tensor([[0]])
    frozen, task = seen_of(f"bert({SMALL})", x, y)
    for name in ("bag_of_words", "closed_form"):
        with pytest.raises(AttackError, match="frozen"):
            adversary.build(name)(frozen, task, 0)
    bow, other = seen_of("bow", x, y)
    with pytest.raises(AttackError, match="layers of a transformer"):
        adversary.build("dager")(bow, other, 0)


def test_what_a_mask_leaves_out_is_filled_in():
    rng = torch.Generator().manual_seed(0)
    whole = (torch.randn(40, 4, generator=rng) @ torch.randn(4, 30, generator=rng)).double()
    gaps = torch.rand(40, 30, generator=rng) < 0.3
    assert torch.allclose(completed(whole.masked_fill(gaps, 0)), whole, rtol=1e-4, atol=1e-4)
    with pytest.raises(AttackError, match="too little of the update"):
        completed(whole.masked_fill(torch.rand(40, 30, generator=rng) < 0.95, 0))


def test_masked_sentences_are_read_by_who_knows_of_the_mask():
    x, y = sentences(2, seed=5)[:, None], torch.tensor([[0], [1]])
    seen, task = seen_of(f"bert({SMALL})", x, y)
    mask = client_defenses.build("mask(ratio=0.25)")
    seen = [replace(one, update=mask.transform(one.update, Memory.fresh(i))) for i, one in enumerate(seen)]
    informed = {one.name: one.attack for one in adversary.build("dager").informed("mask(ratio=0.25)", Facts(examples=1))}
    assert torch.equal(informed["completed"](seen, task, 0).x, x)
    assert not torch.equal(informed["ranked"](seen, task, 0).x, x)
    assert "completed" not in {one.name for one in adversary.build("dager").informed("mask + sign", Facts(examples=1))}
