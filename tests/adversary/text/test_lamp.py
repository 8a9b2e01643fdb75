"""Searches over word vectors: their pieces, and that several targets at once are each as if alone."""

import math

import torch

import adversary
from adversary.base import Facts, Public
from adversary.text.language import SHARES, Trigrams
from adversary.text.lengths import lengths_of
from adversary.text.moves import moved
from adversary.text.objectives import CosineTensors, Tag
from tests.adversary.text.test_exact import SMALL, SPACE, seen_of, sentences


def test_the_language_model_is_the_interpolation_that_it_says_it_is():
    x = torch.tensor([[2, 5, 6, 3, 0], [2, 5, 7, 3, 0]])
    model = Trigrams.counted(x, 8)
    total, size = 8, 8

    def share(a, b, c):
        single = SHARES[0] * (int((x == c).sum()) + 1) / (total + size)
        pair = SHARES[1] * sum(row[i : i + 2].tolist() == [b, c] for row in x for i in range(4)) / int((x == b).sum())
        if a is None:
            return single + pair
        both = sum(row[i : i + 2].tolist() == [a, b] for row in x for i in range(4))
        triple = sum(row[i : i + 3].tolist() == [a, b, c] for row in x for i in range(3))
        return single + pair + SHARES[2] * triple / max(1, both)

    wanted = -(math.log(share(None, 2, 5)) + math.log(share(2, 5, 6)) + math.log(share(5, 6, 3))) / 3
    assert math.isclose(model.surprise(x[0]).item(), wanted, rel_tol=1e-5)
    assert model.surprise(x[0]) < model.surprise(torch.tensor([2, 6, 5, 3, 0]))


def test_orders_keep_all_words_and_the_ends():
    orders = moved(41, 9, 12, torch.Generator().manual_seed(0))
    assert torch.equal(orders[0], torch.arange(12))
    assert torch.equal(orders.sort(1).values, torch.arange(12).expand(41, -1))
    assert (orders[:, 0] == 0).all()
    assert torch.equal(orders[:, 8:], torch.arange(8, 12).expand(41, -1))
    assert (orders[1:] != orders[0]).any(1).float().mean() > 0.5


def test_distances_are_zero_at_the_truth_and_blind_to_what_they_say():
    rng = torch.Generator().manual_seed(0)
    seen = {"a": torch.randn(3, 4, generator=rng), "b": torch.zeros(2)}
    assert torch.isclose(CosineTensors()(seen, seen, 0.0), torch.tensor(0.5))  # one of zeros counts 1
    doubled = {name: 2 * value for name, value in seen.items()}
    assert torch.isclose(CosineTensors()(doubled, seen, 0.0), torch.tensor(0.5))
    assert Tag()(seen, seen, 0.0) == 0
    size = seen["a"].square().sum()
    assert torch.isclose(Tag(l1=0.5)(doubled, seen, 0.0), (size + 0.5 * seen["a"].abs().sum()) / size)


def test_lengths_follow_from_the_update():
    x, y = sentences(6, seed=3)[:, None], torch.zeros(6, 1, dtype=torch.int64)
    for text in (f"bert({SMALL})", f"gpt({SMALL})", f"bert({SMALL}, freeze=False)"):
        seen, task = seen_of(text, x, y)
        assert [lengths_of(one, task).tolist() for one in seen] == (x != 0).sum(-1).tolist()


def test_lamp_finds_words_that_nobody_told_and_learns_from_public_text_alone():
    x, y = sentences(3, seed=8)[:, None], torch.tensor([[0], [1], [1]])
    seen, task = seen_of("bert(dim=24, depth=2, heads=2)", x, y)
    attack = adversary.build("lamp_cos(iterations=25, lr=0.1, draws=5, orders=0)")
    public = Public(sentences(50, seed=9), torch.zeros(50, dtype=torch.int64))
    guess = attack.taught(attack.learn(task, seen[0], public, torch.Generator()))(seen, task, 0)
    words = (x != 0) & ~torch.isin(x, torch.tensor(SPACE.vocabulary.special))
    right = [len(set(a[w].tolist()) & set(b[w].tolist())) / int(w.sum()) for a, b, w in zip(guess.x, x, words, strict=True)]
    assert sum(right) / 3 > 0.1  # of 196 words


def test_who_knows_the_defense_keeps_the_language_model():
    x, y = sentences(1, seed=2)[:, None], torch.tensor([[1]])
    seen, task = seen_of(f"bert({SMALL})", x, y)
    public = Public(sentences(20, seed=4), torch.zeros(20, dtype=torch.int64))
    naive = adversary.build("lamp_cos(iterations=2, draws=1, orders=2)")
    (informed,) = [one.attack for one in naive.informed("mask(ratio=0.25)", Facts(examples=1)) if one.attack is not None]
    assert (informed.trained, informed.needs_public) == (True, False)
    learned = informed.learn(task, seen[0], public, torch.Generator())
    assert learned.keys() == naive.learn(task, seen[0], public, torch.Generator()).keys() == set(Trigrams._fields)
    assert not adversary.build("tag").matching().trained
