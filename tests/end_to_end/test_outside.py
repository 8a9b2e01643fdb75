"""One file outside the package adds a defense, an attack, or a piece of one; nothing of the package is touched."""

import json

import pytest
from safetensors.torch import load_file

from fl_app import engines
from fl_app.engines.watcher import Watcher
from helpers.cli import thorns

FILES = {
    # A parametrisation: an image of half the size, blown up.
    "half": """
from dataclasses import dataclass
import torch
from torch.nn import functional as F
from adversary.spaces import Parametrisation

@dataclass(frozen=True, kw_only=True)
class Half(Parametrisation):
    def bind(self, task):
        return Variables(task)

class Variables:
    def __init__(self, task):
        self.space = task.space
    def draw(self, seeds, examples, stream):
        c, h, w = self.space.shape
        return {"small": torch.rand((seeds, examples, c, h // 2, w // 2), generator=stream)}
    def inputs(self, z):
        return z["small"].repeat_interleave(2, -1).repeat_interleave(2, -2)
    def project(self, z):
        return {"small": z["small"].clamp(0, 1)}
    def answer(self, z):
        return self.inputs(z)
""",
    # An objective: absolute differences.
    "l1": """
from dataclasses import dataclass
import torch
from adversary.objectives import Objective

@dataclass(frozen=True, kw_only=True)
class L1(Objective):
    def __call__(self, dummy, seen, progress):
        return torch.stack([(dummy[name] - seen[name]).abs().sum() for name in seen]).sum()
""",
    # A prior: images are dark.
    "dark": """
from dataclasses import dataclass
from adversary.priors import Prior

@dataclass(frozen=True, kw_only=True)
class Dark(Prior):
    def penalty(self, x):
        return x.flatten(2).mean(-1)
""",
    # An exact attack: the input of a linear layer is a row of its weight's gradient over that of its bias.
    "readout": """
from dataclasses import dataclass
import torch
from adversary import Attack, AttackError, Guess

@dataclass(frozen=True, kw_only=True)
class Readout(Attack):
    def run(self, seen, task, streams):
        if seen[0].num_examples != 1:
            raise AttackError("the read-out is for one example")
        x, y = [], []
        for one in seen:
            weight = next(v for v in one.update.values() if v.ndim == 2)
            bias = next(v for v in one.update.values() if v.ndim == 1)
            row = bias.abs().argmax()
            x.append((weight[row] / bias[row]).view(1, *task.space.shape))
            y.append(bias.argmin()[None])
        return Guess(torch.stack(x), torch.stack(y), torch.zeros(len(seen)))
""",
    # An inference attack that is trained first: which of four public examples would have given the update?
    "member": """
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
""",
    # A defense with an attacker who knows it.
    "flip": """
from dataclasses import dataclass, replace
from typing import ClassVar
from client_defenses import Defense

@dataclass(frozen=True, kw_only=True)
class Flip(Defense):
    informed_by: ClassVar[str] = "flip:attackers"
    factor: float = 1.0
    def transform(self, grads, memory):
        return {name: -self.factor * value for name, value in grads.items()}
    def expected(self, grads):
        return self.transform(grads, None)

def attackers(defense, facts):
    '''Turns the sign back.'''
    from adversary.informed.expected import Expected
    from adversary.informed.variant import Variant, with_observer
    return [Variant("turns the sign back", lambda attack: with_observer(attack, Expected()), "unflipped")]
""",
}


@pytest.fixture
def folder(tmp_path):
    """A user's own directory."""
    for name, text in FILES.items():
        (tmp_path / f"{name}.py").write_text(text)
    return tmp_path


@pytest.fixture
def captured(small):
    return engines.run(small.changed(batch_size=1, rounds=1, capture="all", model="linear", normalize=False), "inline", Watcher())


def lines_of(run, column="psnr"):
    """Attack -> a column of its targets."""
    found = {}
    for path in run.glob("attacks/*/scores.jsonl"):
        about = json.loads((path.parent / "attack.json").read_text())
        found[about["who"]] = [json.loads(line).get(column) for line in path.read_text().splitlines()]
    return found


@pytest.mark.parametrize(
    "pieces", ["space=half:Half", "objective=l1:L1", "priors=[dark:Dark(0.1)]", "space=half:Half, priors=[dark:Dark(weight=1)]"]
)
def test_a_piece_of_an_attack(folder, captured, pieces):
    text = f"matching({pieces}, optimizer=lbfgs(iterations=20))"
    done = thorns("attack", str(captured.path), "--attack", text, "--no-lpips", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert all(value > 5 for value in lines_of(captured.path)["attack"])


def test_an_exact_attack(folder, captured):
    done = thorns("attack", str(captured.path), "--attack", "readout:Readout", "--no-lpips", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert all(value > 60 for value in lines_of(captured.path)["attack"])  # exact but for rounding


def test_an_inference_attack_that_is_trained_first(folder, captured):
    done = thorns("attack", str(captured.path), "--attack", "member:Member", "--no-lpips", cwd=folder)
    assert done.returncode == 0, done.stderr
    (scores,) = {path.parent for path in captured.path.glob("attacks/*/round-0001/client-00.safetensors")}
    assert load_file(scores / "client-00.safetensors")["scores"].shape == (4,)
    assert lines_of(captured.path, "status")["attack"] == ["done"] * 3
    assert set(lines_of(captured.path, "ledger")["attack"]) == {"public examples"}


def test_a_defense_with_an_attacker_who_knows_it(folder, small):
    settings = small.changed(batch_size=1, rounds=1, capture="all", model="linear").run_config()
    kept = [f"-c{key}={value}" for key, value in settings.items() if key not in ("defense", "attack", "run-dir")]
    words = ["run", *kept, "-c", "run-dir=run", "-c", "defense=flip:Flip(factor=2.0)"]
    attack = "cosine_lbfgs(iterations=60, labels=joint)"
    done = thorns(*words, "-c", f"attack={attack}", cwd=folder)
    assert done.returncode == 0, done.stderr
    found = lines_of(folder / "run")
    assert found.keys() == {"naive", "informed: unflipped"}
    assert sum(found["informed: unflipped"]) > sum(found["naive"]) + 3 * 3  # 3 dB per target
    refused = thorns("attack", "run", "--attack", "idlg", cwd=folder)
    assert refused.returncode == 2
    assert "flip:Flip" in refused.stderr
    assert "--allow" in refused.stderr
