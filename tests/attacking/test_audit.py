"""The audit of an app that is not ours: models named by their owner, captures without a truth, and what cannot work."""

import io
import json
import sys

import pytest
import torch
from rich.console import Console
from safetensors.torch import save_file
from torch import nn

from adversary.base import AttackError
from fl_app.attacking import foreign
from fl_app.attacking.audit import normalization, shape_of
from fl_app.attacking.jobs import Job, TaskSpec, run_job
from fl_app.attacking.worker import make_worker
from fl_app.cli.audit import audit, sheet
from fl_app.core.space import Images
from fl_app.store.files import RunError
from fl_app.store.reconstructions import load_guess
from helpers.foreign_app import IDLG, MODULE, capture


def go(theirs, function="plain", attacks=(IDLG,), normalize=None, **settings):
    text = io.StringIO()
    task = TaskSpec(f"{MODULE}:{function}", (1, 6, 6), 3, normalize, theirs)
    out = audit(Console(file=text, width=200), theirs, task, list(attacks), **settings)
    return out, text.getvalue()


def guesses(out):
    return [load_guess(path) for path in sorted(out.glob("*/round-*/client-*.safetensors"))]


def test_captures_of_a_foreign_model_are_attacked(theirs):
    images = capture(theirs, "plain")
    out, text = go(theirs)
    found = guesses(out)
    assert out == theirs / "attacks"
    for (x, y, _, notes, *_), image, client in zip(found, images, range(2), strict=True):
        assert y.tolist() == [client]
        assert (x[0] - image).square().mean() < 1e-2
        assert notes["ledger"] == "nothing beyond the protocol"
    for word in (
        "round 1, client 1",
        "individual",
        "nothing beyond the protocol",
        "No reconstruction is scored",
        "Results: attacks",
    ):
        assert word in text
    lines = [json.loads(line) for line in next(out.glob("*/reconstructions.jsonl")).read_text().splitlines()]
    assert [(line["status"], line["classes"], line["visibility"]) for line in lines] == [
        ("done", [client], "individual") for client in range(2)
    ]
    assert next(out.glob("*/reconstructions.png")).stat().st_size > 300
    assert "2 of 2 targets were attacked before" in go(theirs)[1]


def test_an_auditor_asks_whether_its_own_records_were_there(theirs, rng):
    images = torch.stack(list(capture(theirs, "plain")))
    others = torch.rand(3, *images.shape[1:], generator=rng)
    save_file({"x": torch.cat([others, images]), "y": torch.tensor([0, 1, 2, 0, 1])}, theirs / "asked.safetensors")
    out, text = go(theirs, attacks=["alignment"], candidates=theirs / "asked.safetensors")
    assert "the likeliest first" in text
    assert "granted" in text
    assert "candidates" in text
    lines = [json.loads(line) for line in next(out.glob("*/reconstructions.jsonl")).read_text().splitlines()]
    for client, line in enumerate(lines):
        assert max(range(5), key=lambda place: line["scores"][place]) == 3 + client  # clients have the classes 0 and 1
        assert f"{3 + client} (1)" in text
    with pytest.raises(AttackError, match="none of the 2 targets"):
        go(theirs, attacks=["alignment"])


def test_what_the_auditor_knows_is_in_the_ledger(theirs):
    capture(theirs, "plain")
    _, text = go(theirs, defense="none", limit=1)
    assert "defense" in text
    assert "client 1" not in text


def test_running_statistics_and_dropout_are_no_obstacle(theirs):
    counters = {"1.running_mean": torch.full((4,), 0.3), "1.num_batches_tracked": torch.tensor(5)}
    capture(theirs, "normed", more=counters)
    out, _ = go(theirs, "normed")
    assert len(guesses(out)) == 2
    assert all(loss < 1e-2 for _, _, loss, *_ in guesses(out))


def test_frozen_weights_and_buffers_are_those_that_were_sent(theirs):
    images = capture(theirs, "Frozen", more={"scale": torch.tensor(2.0), "shift": torch.tensor(-0.5)})
    out, _ = go(theirs, "Frozen")
    assert all((x[0] - image).square().mean() < 1e-2 for (x, *_), image in zip(guesses(out), images, strict=True))


def test_inputs_that_the_app_normalises(theirs):
    images = capture(theirs, "plain", inputs=lambda x: (x - 0.5) / 0.25)
    out, _ = go(theirs, normalize=((0.5,), (0.25,)))
    assert all((x[0] - image).square().mean() < 1e-2 for (x, *_), image in zip(guesses(out), images, strict=True))


def test_a_forgotten_normalisation_does_not_look_safe(theirs):
    capture(theirs, "plain", inputs=lambda x: (x - 0.5) / 0.5)
    hint = "explain the updates badly"
    line = next(line for line in go(theirs)[1].splitlines() if hint in line)
    assert "name --mean and --std" in line
    assert "thorns fit-rule" in line
    assert hint not in go(theirs, normalize=((0.5,), (0.5,)))[1]
    assert hint not in go(theirs, defense="none", limit=1)[1]  # a defense changes updates: nothing follows from that


def test_a_worker_in_another_process_finds_the_model_too(theirs):
    capture(theirs, "plain", clients=1)
    worker = make_worker("ray")
    try:
        task = TaskSpec(f"{MODULE}:plain", (1, 6, 6), 3, None, theirs)
        (outcome,) = worker.run(Job(theirs / "captures", theirs / "out", IDLG, task, ((1, 0),), threads=1))
    finally:
        worker.close()
    assert outcome.status == "done", outcome


def test_an_aggregate_says_so(theirs):
    capture(theirs, "plain", clients=1, client=-1, visibility="aggregate")
    _, text = go(theirs, attacks=["idlg(iterations=3)"])
    assert "round 1, aggregate" in text
    assert text.count("aggregate") >= 2


@pytest.mark.parametrize(
    ("function", "hint"),
    [
        ("Branching", "torch.func cannot vectorise it"),
        ("Tied", "another name of the same weights"),
        ("broken", "no GPU here"),
        ("nothing", "gives an int, not a torch module"),
        ("missing", "has no attribute 'missing'"),
        ("normed", "the capture is not of this model"),
        ("a b", "module:function"),
    ],
)
def test_a_model_that_cannot_work_is_refused_before_any_attack(theirs, function, hint):
    capture(theirs, "plain")
    with pytest.raises(AttackError, match=hint):
        go(theirs, function)
    assert not (theirs / "attacks").exists()


@pytest.mark.parametrize(
    ("shape", "classes", "hint"), [((1, 8, 8), 3, "does not take two inputs"), ((1, 6, 6), 10, r"not \(2, 10\)")]
)
def test_wrong_facts_are_noticed(theirs, shape, classes, hint):
    capture(theirs, "plain")
    with pytest.raises(AttackError, match=hint):
        audit(Console(file=io.StringIO()), theirs, TaskSpec(f"{MODULE}:plain", shape, classes, None, theirs), [IDLG])


def test_bad_names_and_empty_folders_are_refused(theirs):
    with pytest.raises(RunError, match="wrap the app's strategy in Curious"):
        go(theirs)
    capture(theirs, "plain")
    with pytest.raises(ValueError, match="did you mean 'idlg'"):
        go(theirs, attacks=["idgl"])
    with pytest.raises(ValueError, match="unknown defense"):
        go(theirs, defense="nnone")
    with pytest.raises(AttackError, match="labels cannot be granted"):
        go(theirs, grants=["labels"])
    with pytest.raises(RunError, match="these rounds and clients"):
        go(theirs, rounds="7")


def test_a_damaged_capture_costs_itself_alone(theirs):
    capture(theirs, "plain")
    (theirs / "captures" / "round-0001" / "client-00.safetensors").write_bytes(b"damaged")
    out, text = go(theirs)
    assert "round 1, client 0 failed" in text
    assert len(guesses(out)) == 1
    (theirs / "captures" / "round-0001" / "client-01.safetensors").write_bytes(b"damaged")
    with pytest.raises(AttackError, match="none of the 2 targets"):
        go(theirs, attacks=["idlg(iterations=2)"])


def test_captures_of_other_weights_are_an_outcome(theirs):
    capture(theirs, "plain")
    task = TaskSpec(f"{MODULE}:Frozen", (1, 6, 6), 3, None, theirs)
    outcomes = run_job(Job(theirs / "captures", theirs / "out", IDLG, task, ((1, 0), (1, 1)), threads=1))
    assert {outcome.status for outcome in outcomes} == {"failed"}
    assert "missing ['scale'" in outcomes[0].reason


def test_loading_leaves_the_path_alone(theirs):
    before = list(sys.path)
    assert isinstance(foreign.load(f"{MODULE}:plain", theirs, Images((1, 6, 6)), 3).model, nn.Sequential)
    with pytest.raises(AttackError):
        foreign.load(f"{MODULE}:broken", theirs, Images((1, 6, 6)), 3)
    assert sys.path == before


def test_the_sheet_is_bounded():
    picture = sheet([(f"round {i}, client 0", torch.rand(40, 3, 8, 8)) for i in range(60)])
    assert picture.width < 1400
    assert picture.height < 2000


def test_facts_from_the_command_line():
    assert shape_of("1,8,8") == (1, 8, 8)
    assert normalization("", "") is None
    assert normalization("0.5,0.4", "0.2, 1") == ((0.5, 0.4), (0.2, 1.0))
    for text in ("", "1,x", "0,8"):
        with pytest.raises(ValueError, match="--input-shape 1,8,8"):
            shape_of(text)
    for pair in (("0.5", ""), ("0.5", "0"), ("1,2", "1")):
        with pytest.raises(ValueError, match="one number per channel"):
            normalization(*pair)


def test_rounds_of_a_client_are_attacked_together_where_an_attacker_compares_them(theirs):
    """FedEM's `common` attacker takes out what the reconstructions of a client share, over all of its rounds."""
    for server_round in (1, 2):
        capture(theirs, "plain", server_round=server_round)
    plain = "matching(optimizer=adam(iterations=2))"
    common = plain[:-1] + ", observers=[common(rho=5.0)])"
    alone, _ = go(theirs, attacks=[plain], out=theirs / "alone", defense="fedem")
    compared, _ = go(theirs, attacks=[common], out=theirs / "compared", defense="fedem")
    pairs = list(zip(guesses(alone), guesses(compared), strict=True))
    assert len(pairs) == 4
    assert all(not torch.equal(one.x, other.x) for one, other in pairs)
