"""A sweep with several kinds of targets and a judge, as it is done: who attacks what, and what is scored."""

import json

import pytest
from safetensors.torch import load_file

from fl_app.analysis.conditions import conditions_of
from fl_app.analysis.results import read_study
from fl_app.experiment.assets import assets_of
from fl_app.experiment.truth import true_examples
from fl_app.scoring.classifier import sees_class
from fl_app.scoring.matching import match
from fl_app.store.reconstructions import guess_path
from fl_app.store.runs import RunDir
from fl_app.sweeps import work

KINDS = """[targets]
clients = 3
client-examples = 1
batch-size = 1
[targets.once]
rounds = 1
capture = "1"
informed = false
[targets.again]
rounds = 2
capture = "all"
grant = "repeats"
"""


@pytest.fixture
def kinds(file):
    path = file(rounds=2)
    text = path.read_text().replace("prune(ratio={0.5,0.9})", "dp_gaussian(scale=0.01)").replace("lpips", "judge = true\nlpips")
    path.write_text(text[: text.index("[targets]")] + KINDS)
    return path


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_each_kind_has_its_attackers_and_each_example_counts_once(kinds, sweep, tmp_path):
    code, said = sweep(kinds)
    assert code == 0, said
    assert "to do: 6 runs and 4 attacks" in said  # two trainings serve both kinds
    found = {(one.defense, one.varied["targets"]): one for one in conditions_of(read_study(tmp_path / "runs" / "small").cells)}
    defense = "dp_gaussian(scale=0.01)"
    assert [one.who for one in found[defense, "once"].attackers] == ["attack"]
    naive, informed = found[defense, "again"].attackers
    assert (naive.who, informed.who) == ("naive", "informed: noise-proof")
    assert "rounds=2" in informed.attack
    for attacker in (naive, informed):
        assert [one.key for one in attacker.targets] == [(1, 0), (1, 1), (1, 2)]  # round 2 has the same examples
    rounds = [sorted({path.parent.name for path in one.parts[0].folder.glob("round-*/*")}) for one in (naive, informed)]
    assert rounds == [["round-0001"], ["round-0001", "round-0002"]]
    assert found[defense, "again"].pmm == found[defense, "once"].pmm


def test_the_judge_is_the_undefended_network_as_trained(kinds, sweep, tmp_path):
    assert sweep(kinds)[0] == 0
    cells = {(cell.varied["defense"], cell.varied["targets"]): cell for cell in read_study(tmp_path / "runs" / "small").cells}
    weights = RunDir.open(cells["none", "once"].training.path).load_checkpoint().weights
    attacked = cells["dp_gaussian(scale=0.01)", "once"].attacked
    assets, (attack,) = assets_of(attacked.experiment), attacked.attacks
    for target in attack.targets:
        true_x, true_y = true_examples(assets, target.client, target.round)
        x = load_file(guess_path(attack.folder, target.key))["x"]
        seen = sees_class(assets.model, weights, x[match(x, true_x)], true_y)
        assert target.values["judged_accuracy"] == seen.double().mean().item()


def test_without_the_judges_training_its_attacks_are_lost_and_nothing_else(kinds, sweep, monkeypatch, tmp_path):
    train = work.train

    def sometimes(experiment):
        if experiment.defense == "none" and experiment.clients == 2:
            raise RuntimeError("no luck")
        return train(experiment)

    monkeypatch.setattr(work, "train", sometimes)
    code, _ = sweep(kinds)
    out = tmp_path / "runs" / "small"
    assert code == 1
    assert [cell.failed for cell in read_study(out).cells] == ["RuntimeError: no luck"] * 4
    assert {line["event"] for line in lines_of(out / "journal.jsonl") if "attack" in line["unit"]} == set()
    assert len([line for line in lines_of(out / "journal.jsonl") if line["event"] == "finished"]) == 5
    monkeypatch.setattr(work, "train", train)
    assert sweep(out)[0] == 0
    assert all(cell.attacks and cell.failed is None for cell in read_study(out).cells)
