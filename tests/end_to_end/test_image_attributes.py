"""An attribute of images from the capture to the scores: what the attacker is told, and what it finds."""

import io
import json

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

import adversary
import client_defenses
from adversary import AttackError, Public
from client_defenses import Memory
from fl_app import engines
from fl_app.attacking.attackers import informed_of
from fl_app.attacking.session import Session
from fl_app.attacking.worker import InlineWorker
from fl_app.cli.attack import attack_run
from fl_app.core.local import Step
from fl_app.core.observation import Observation, Task
from fl_app.core.space import Images
from fl_app.core.spec import SpecError
from fl_app.engines.watcher import Watcher
from fl_app.experiment.assets import assets_of
from fl_app.experiment.config import Experiment
from fl_app.experiment.grants import candidates_of
from fl_app.experiment.truth import true_attributes, true_positions
from fl_app.models import parameters_of
from fl_app.scoring.attributes import attribute, having
from fl_app.store.runs import RunDir
from helpers.marked import marked_folder

SMALL = "attribute(column=mark, batches=60)"


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
    place = tmp_path_factory.mktemp("marked")
    root = marked_folder(place / "images")
    settings = {"clients": 12, "batch_size": 1, "rounds": 1, "capture": "1", "normalize": False, "run_dir": str(place / "run")}
    return Experiment(dataset=f"imagefolder(path='{root}', size=12, test_share=0.4)", model="linear", **settings)


@pytest.fixture(scope="module")
def run(experiment):
    path = engines.run(experiment, "inline", Watcher()).path
    said = Console(file=io.StringIO(), width=200)
    assert attack_run(said, path, [SMALL, "property(column=mark, value=top, batches=60)"], grants=[])
    return path


def lines(run, name):
    (folder,) = run.glob(f"attacks/{name}-*")
    return folder, [json.loads(line) for line in (folder / "scores.jsonl").read_text().splitlines()]


def test_the_mark_of_an_image_follows_from_its_update(run):
    folder, scored = lines(run, "attribute")
    assert sum(line["attribute_accuracy"] for line in scored) / 12 > 0.9
    assert {line["ledger"] for line in scored} == {"public examples, candidates"}
    assert load_file(folder / "round-0001" / "client-00.safetensors").keys() == {"scores"}
    _, scored = lines(run, "property")
    assert sum(line["property_balanced"] for line in scored) / 12 > 0.8


def test_the_attacker_is_told_the_marks_of_public_images_alone(run, experiment):
    public, assets = load_file(run / "public.safetensors"), assets_of(experiment)
    assert torch.equal(public["a"], assets.splits.test.a)
    for key in ((1, 0), (1, 5)):
        asked = candidates_of(assets, key, "attribute:mark")
        assert (asked.x.sum(), asked.y.tolist()) == (0, [0, 1])  # the names of the values, whatever the truth is


def test_the_truth_is_what_most_of_a_target_have(experiment):
    assets, key = assets_of(experiment.changed(batch_size=3)), (1, 4)
    own = assets.splits.train.a[true_positions(assets, 4, 1), 0]
    assert torch.equal(true_attributes(assets, key, "mark"), own)
    told = attribute(assets, key, candidates_of(assets, key, "attribute:mark"), "mark")
    assert told.argmax() == own.mode().values
    for place, value in enumerate(("left", "top")):
        asked = candidates_of(assets, key, f"property:mark={value}")
        assert having(assets, key, asked, f"mark={value}").tolist() == [int((own == place).any())]
    with pytest.raises(ValueError, match="no column of categories 'age'; valid: mark, size"):
        candidates_of(assets, key, "attribute:age")


def test_without_public_attributes_it_says_so():
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 2))
    x, y, plain = torch.rand(5, 1, 4, 4), torch.zeros(5, dtype=torch.int64), Images((1, 4, 4))
    params = parameters_of(net)
    seen = Observation(params=params, update=params, rule=Experiment().rule, num_examples=1, server_round=1)
    attack = adversary.build(SMALL)
    with pytest.raises(AttackError, match="these examples have no attributes"):
        attack.learn(Task(net, plain, 2), seen, Public(x, y), torch.Generator())
    named = Task(net, Images(plain.shape, assets_columns()), 2)
    with pytest.raises(AttackError, match="'mark' of these images is not known"):
        attack.learn(named, seen, Public(x, y), torch.Generator())
    with pytest.raises(AttackError, match="all public examples have the same 'mark'"):
        attack.learn(named, seen, Public(x, y, y[:, None]), torch.Generator())
    with pytest.raises(AttackError, match="learned from public ones first"):
        attack([seen], named, 0)


def assets_columns():
    from fl_app.core.table import Column

    return (Column("mark", ("left", "top")),)


def test_recup_hides_a_mark_within_its_bound(experiment):
    """A linear reader that learned from other images than the client's substitutes did believes less in the truth."""
    assets = assets_of(experiment.changed(defense="recup(attribute=mark, eps=1.0)"))
    reader = client_defenses.build("none")
    x, y = assets.splits.test.at(slice(None))
    params = parameters_of(assets.model)

    def sent(defense, number):
        step = Step(params, assets.model, *assets.batch(number, 1))
        return torch.cat([value.flatten() for value in defense.protect(step, Memory.fresh(number)).values()])

    each = Step(params, assets.model, x, y).per_example_gradients()
    known = torch.cat([value.flatten(1) for value in each.values()], 1).abs()
    marks = assets.splits.test.a[:, 0].double() * 2 - 1
    direction = known.T @ (marks.float() - marks.mean()) / len(marks)
    moved = 0
    for number in range(12):
        plain, changed = (sent(one, number) for one in (reader, assets.defense))
        assert (changed - plain).norm() <= 1.0001 * plain.norm()
        side = float(true_attributes(assets, (1, number), "mark")) * 2 - 1
        moved += side * float(direction @ (changed.abs() - plain.abs())) < 0
    assert moved >= 9
    with pytest.raises(SpecError, match="no column of categories 'age'"):
        assets_of(experiment.changed(defense="recup(attribute=age)"))
    with pytest.raises(SpecError, match="needs split='official'"):
        assets_of(experiment.changed(defense="recup(attribute=mark)", split="70/15/15"))


def test_who_knows_recup_has_its_public_images(run):
    text = run / "experiment.toml"
    text.write_text(text.read_text().replace('"none"', '"recup(attribute=mark)"'))
    session = Session(RunDir(run), SMALL, (), InlineWorker())
    (one,) = informed_of(session, [(1, 0)])
    assert "bank=" in one.attack.through
    assert client_defenses.build(one.attack.through).bank == session.assets.defense.bank
