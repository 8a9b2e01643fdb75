"""An attack that can use more public examples is given them, in a file of its own, and says what it learned from."""

import json

import pytest
import torch
from safetensors.torch import load_file

from adversary.learned import spent
from fl_app import engines
from fl_app.attacking import session as sessions
from fl_app.attacking.session import Session
from fl_app.attacking.worker import InlineWorker
from fl_app.engines.watcher import Watcher
from fl_app.experiment import candidates
from fl_app.experiment.assets import assets_of
from fl_app.experiment.runs import experiment_of
from fl_app.scoring.attacks import Scoring


@pytest.fixture
def captured(small):
    return engines.run(small.changed(batch_size=1, rounds=1, capture="all"), "inline", Watcher())


def test_who_wants_more_gets_more_and_nobody_else(captured, monkeypatch):
    for where in (candidates, sessions):
        monkeypatch.setattr(where, "PUBLIC", 12)
    monkeypatch.setattr(spent, "LEAST_PUBLIC", 5)
    session = Session(captured, "lti(sketch=64, hidden=8, epochs=1, public=500)", (), InlineWorker())
    outcomes, keys = [], session.captured()
    session.work(session.pending(keys), 64, outcomes.extend)
    assert [one.status for one in outcomes] == ["done"] * 3
    assets = assets_of(experiment_of(captured))
    everything = assets.splits.test.at(slice(None))[0]
    assert torch.equal(load_file(captured.path / "public-500.safetensors")["x"], everything)
    scoring = Scoring(assets, session.folder, session.failures(), perceptual=False)
    scoring.run(keys)
    ledgers = [json.loads(line)["ledger"] for line in (session.folder / "scores.jsonl").read_text().splitlines()]
    assert all(one.startswith("public examples; learned from 30 public examples in ") for one in ledgers)
    usual = Session(captured, "ridge", (), InlineWorker()).learning().public
    assert torch.equal(load_file(usual)["x"], everything[:12])
    few = Session(captured, "fgla(public=500)", (), InlineWorker())
    assert few.learning().public.name == "public-500.safetensors"
    monkeypatch.setattr(type(few.built), "question", "membership")  # others are held out from who asks about members
    assert few.learning().public.name == "public.safetensors"
