"""Files outside the package add to it; nothing of the package is touched. Most of them are those of docs/architecture.md."""

import json

import pytest
from safetensors.torch import load_file

from fl_app import engines
from fl_app.engines.watcher import Watcher
from helpers.cli import settings_of, thorns
from helpers.documents import files_of
from helpers.paths import ROOT

# An inference attack that is trained first: which of four public examples would have given the update?
MEMBER = """
from dataclasses import dataclass
import torch
from adversary import Attack, Belief
from fl_app.core.local import Step

@dataclass(frozen=True, kw_only=True)
class Member(Attack):
    trained = True
    def learn(self, task, seen, public, rng):
        grads = [Step(seen.params, task.model, x[None], y[None]).gradient() for x, y in zip(public.x[:4], public.y[:4])]
        return {"candidates": torch.stack([torch.cat([v.flatten() for v in g.values()]) for g in grads])}
    def run(self, seen, task, streams):
        updates = torch.stack([torch.cat([v.flatten() for v in one.update.values()]) for one in seen])
        return Belief(torch.nn.functional.cosine_similarity(updates[:, None], self.learned["candidates"][None], dim=-1))
"""


@pytest.fixture
def folder(tmp_path):
    """A user's own directory."""
    for name, text in {**files_of(ROOT / "docs" / "architecture.md"), "member.py": MEMBER}.items():
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.fixture
def one_round(small):
    return small.changed(batch_size=1, rounds=1, capture="all", model="linear", normalize=False)


@pytest.fixture
def captured(one_round):
    return engines.run(one_round, "inline", Watcher())


def lines_of(run, column="psnr"):
    """Attack -> a column of its targets."""
    found = {}
    for path in run.glob("attacks/*/scores.jsonl"):
        about = json.loads((path.parent / "attack.json").read_text())
        found[about["who"]] = [json.loads(line).get(column) for line in path.read_text().splitlines()]
    return found


def test_several_pieces_of_an_attack_together(folder, captured):
    text = "matching(objective=l1:L1, space=half:Half, priors=[dark:Dark(weight=1)], optimizer=lbfgs(iterations=20))"
    done = thorns("attack", str(captured.path), "--attack", text, "--no-lpips", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert all(value > 5 for value in lines_of(captured.path)["attack"])


def test_an_inference_attack_that_is_trained_first(folder, captured):
    done = thorns("attack", str(captured.path), "--attack", "member:Member", "--no-lpips", cwd=folder)
    assert done.returncode == 0, done.stderr
    (scores,) = {path.parent for path in captured.path.glob("attacks/*/round-0001/client-00.safetensors")}
    assert load_file(scores / "client-00.safetensors")["scores"].shape == (4,)
    assert lines_of(captured.path, "status")["attack"] == ["done"] * 3
    assert set(lines_of(captured.path, "ledger")["attack"]) == {"public examples"}


def test_a_defense_with_an_attacker_who_knows_it(folder, one_round):
    attack = "cosine_lbfgs(iterations=60, labels=joint)"
    words = settings_of(one_round, ("defense", "flip:Flip"), ("attack", attack))
    done = thorns("run", *words, "-c", "run-dir=run", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert lines_of(folder / "run").keys() >= {"naive", "informed: unflipped"}
    refused = thorns("attack", "run", "--attack", "idlg", cwd=folder)
    assert refused.returncode == 2
    assert "flip:Flip" in refused.stderr
    assert "--allow" in refused.stderr
