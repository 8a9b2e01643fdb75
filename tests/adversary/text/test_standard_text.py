"""`standard` on text: what proves itself is taken, and the ranking where a defense is known."""

from dataclasses import replace

import torch

import adversary
from fl_app.core.observation import Knowledge
from tests.adversary.text.test_exact import SMALL, seen_of, sentences


def test_standard_takes_what_is_proved_and_asks_nobody_else():
    x, y = sentences(2, seed=6)[:, None], torch.tensor([[0], [1]])
    for text, who in ((f"bert({SMALL})", {"dager"}), (f"gpt({SMALL}, freeze=False)", {"closed_form"})):
        seen, task = seen_of(text, x, y)
        guess = adversary.build("standard")(seen, task, 0)
        assert torch.equal(guess.x, x)
        assert [set(each) for each in guess.others] == [who, who]


def test_under_a_known_defense_words_are_ranked():
    x, y = sentences(1, seed=6)[:, None], torch.tensor([[1]])
    seen, task = seen_of(f"bert({SMALL})", x, y)
    told = replace(seen[0], knowledge=Knowledge(defense="dp_gaussian(scale=0.1)"))
    members = adversary.build("standard").members(told, task, 0)
    assert members["dager: ranked"].select == "top"
    assert not any(attack == adversary.build("dager") for attack in members.values())
