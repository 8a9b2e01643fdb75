"""Tables and events: what is exported is what is on disk, pandas reads it back, and every file and key is documented."""

import json
import re
import sys

import pandas as pd
import pytest
from safetensors import safe_open
from typer.testing import CliRunner

from fl_app import engines
from fl_app.analysis.results import read_study
from fl_app.attacking.attackers import sessions_of
from fl_app.attacking.session import Session
from fl_app.attacking.worker import InlineWorker
from fl_app.engines.watcher import Watcher
from fl_app.experiment.assets import assets_of
from fl_app.report import tensorboard
from fl_app.report.export import TABLES, read_checked
from fl_app.scoring.attacks import Scoring
from fl_app.scoring.score import summarize
from fl_app.store.files import RunError
from fl_app.sweeps.expand import make_plan
from fl_app.sweeps.file import sweep_of
from helpers.gate import add_attack, app, failed, line, make_run, make_sweep
from helpers.paths import ROOT

DOCS = ROOT / "docs" / "files.md"
READERS = {"csv": pd.read_csv, "jsonl": lambda path: pd.read_json(path, lines=True), "parquet": pd.read_parquet}
FLOORS = [{"floor": "noise", "psnr": 5.0, "ssim": 0.0}, {"floor": "noise", "psnr": 7.0, "ssim": 0.0}]


@pytest.fixture
def sweep(tmp_path):
    """A defended cell with a naive and an informed attacker, a cell that failed, and one that was not begun."""
    path = make_sweep(
        tmp_path / "sweep", [("prune(ratio=0.9)", [line(psnr=10.0), line(1, psnr=12.0)]), ("sign", None), ("mask", None)]
    )
    informed = [line(psnr=30.0, ledger="defense", seconds="1.250"), failed(1)]
    add_attack(path / "runs/0/training", informed, "informed", grants=["defense"])
    (path / "runs/0/training/attacks/attack-idlg/floors.jsonl").write_text("".join(json.dumps(row) + "\n" for row in FLOORS))
    (path / "failed").mkdir()
    (path / "failed/1.json").write_text('{"reason": "out of memory"}')
    return path


def run_export(*words):
    done = CliRunner().invoke(app, ["export", *map(str, words)])
    return str(done.exception) if done.exception else done.stdout


@pytest.mark.parametrize("ending", READERS)
def test_one_row_a_target_read_back_by_pandas(sweep, tmp_path, ending):
    file = tmp_path / "new" / f"table.{ending}"
    assert "6 rows of targets" in run_export(sweep, "--to", file)
    table = READERS[ending](file)
    done = table[table.status == "done"]
    assert done.groupby("who").psnr.mean().to_dict() == {"informed": 30.0, "attack": 11.0}
    assert done.defense.unique().tolist() == ["prune(ratio=0.9)"]
    assert (done.batch_size.unique().tolist(), done.seed.unique().tolist()) == ([32], [0])
    assert done[done.who == "informed"][["ledger", "grants", "seconds"]].values.tolist() == [["defense", "defense", 1.25]]
    rest = table[table.status != "done"][["cell", "status", "reason"]]
    assert rest.values.tolist() == [
        ["prune(ratio=0.9), seed 0", "failed", "every attempt diverged"],
        ["sign, seed 0", "failed", "out of memory"],
        ["mask, seed 0", "open", "no scored attack"],
    ]
    assert not [name for name in table.columns if not name.isidentifier()]


def test_rounds_and_summaries_say_what_the_files_say(sweep, tmp_path):
    run_export(sweep, "--to", tmp_path / "r.csv", "--what", "rounds")
    rounds = pd.read_csv(tmp_path / "r.csv")
    assert rounds[rounds.status.isna()][["round", "accuracy"]].values.tolist() == [[0, 0.5], [1, 0.6], [2, 0.7]]
    run_export(sweep, "--to", tmp_path / "s.csv", "--what", "summary")
    summary = pd.read_csv(tmp_path / "s.csv")
    assert summary.status.tolist() == ["done", "done", "failed", "open"]
    informed, naive = (summary[summary.who == who].iloc[0] for who in ("informed", "attack"))
    expected = summarize([{"psnr": 10.0}, {"psnr": 12.0}], "psnr")
    assert (naive.psnr_mean, naive.psnr_low, naive.psnr_high, naive.psnr_n) == pytest.approx(expected[:4])
    assert (informed.targets, informed.failed, informed.psnr_mean) == (2, 1, 30.0)
    assert informed.floor_noise_psnr == naive.floor_noise_psnr == 6.0  # kept beside the naive twin
    assert (naive.accuracy, naive.rounds_done, naive.seconds_a_round) == (0.7, 2, 0.5)


def test_a_training_apart_from_its_targets_is_told_apart(tmp_path):
    sweep = make_sweep(tmp_path / "sweep", [("sign", [line()])], training="runs/long/training")
    make_run(sweep / "runs/long/training", defense="sign", batch_size=8)
    (row,) = TABLES["summary"](read_checked(sweep))
    assert (row["batch_size"], row["training_batch_size"], row["training_run"]) == (32, 8, "runs/long/training")
    assert "training_clients" not in row
    assert {row["batch_size"] for row in TABLES["rounds"](read_checked(sweep))} == {8}


def test_values_that_are_no_numbers_are_missing_and_mixed_columns_text(sweep, tmp_path):
    (sweep / "runs/0/training/attacks/attack-idlg/scores.jsonl").write_text(json.dumps(line(psnr=float("inf"))) + "\n")
    plan = json.loads((sweep / "plan.json").read_text())
    plan["cells"][1]["varied"]["clients"] = "many"
    (sweep / "plan.json").write_text(json.dumps(plan))
    for ending, read in READERS.items():
        run_export(sweep, "--to", tmp_path / f"t.{ending}")
        table = read(tmp_path / f"t.{ending}")
        assert table.psnr.isna().tolist() == [True, False, True, True, True]
        assert table.status[0] == "done"
        assert table.clients.astype(str).tolist()[-2] == "many"


def test_what_cannot_be_written_is_said_before_anything_is(sweep, tmp_path):
    assert "does not end in .csv, .jsonl, .parquet" in run_export(sweep, "--to", tmp_path / "t.xlsx")
    kept = sweep / "runs/0/training/metrics.jsonl"
    before = kept.read_text()
    assert "is there already" in run_export(sweep, "--to", kept)
    assert kept.read_text() == before
    assert "neither a run" in run_export(tmp_path / "nowhere", "--to", tmp_path / "t.csv")
    assert "nothing was recorded" in run_export(_empty(tmp_path), "--to", tmp_path / "t.csv", "--what", "rounds")
    assert not (tmp_path / "t.csv").exists()
    run_export(sweep, "--to", tmp_path / "t.csv")
    assert "6 rows" in run_export(sweep, "--to", tmp_path / "t.csv", "--overwrite")


def _empty(tmp_path):
    run = make_run(tmp_path / "empty")
    (run / "metrics.jsonl").unlink()
    return run


def test_parquet_without_pyarrow_and_events_without_tensorboard_say_what_to_install(sweep, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert "pip install pyarrow" in run_export(sweep, "--to", tmp_path / "t.parquet")
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    assert "pip install 'thorns[tensorboard]'" in run_export(sweep, "--to", f"tensorboard:{tmp_path / 'events'}")
    assert not (tmp_path / "events").exists()


def test_tensorboard_reads_scalars_words_and_pictures(sweep, tmp_path):
    from PIL import Image
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = sweep / "runs/0/training/attacks/attack-idlg"
    Image.new("RGB", (5, 4), (255, 0, 0)).save(folder / "grid.png")
    plan = json.loads((sweep / "plan.json").read_text())
    plan["cells"][1]["name"], plan["cells"][2]["name"] = "../../up", "../../up"
    (sweep / "plan.json").write_text(json.dumps(plan))
    run_export(sweep, "--to", f"tensorboard:{tmp_path / 'events'}")
    places = sorted(path.name for path in (tmp_path / "events").iterdir())
    assert places == ["prune-ratio=0.9-,-seed-0", "up", "up-2"]
    events = EventAccumulator(str(tmp_path / "events" / places[0]))
    events.Reload()
    accuracy = [(one.step, round(one.value, 3)) for one in events.Scalars("training/accuracy")]
    assert accuracy == [(0, 0.5), (1, 0.6), (2, 0.7)]
    assert events.Scalars("psnr/attack attack-idlg")[0].value == 11.0
    assert events.Scalars("failed targets/informed informed-idlg")[0].value == 1.0
    (picture,) = events.Images("attack attack-idlg/grid")
    assert (picture.width, picture.height) == (5, 4)
    assert "is not empty" in run_export(sweep, "--to", f"tensorboard:{tmp_path / 'events'}")
    (folder / "grid.png").write_bytes(b"damaged")
    with pytest.raises(RunError, match=r"grid\.png is not a picture"):
        tensorboard.export(read_study(sweep), tmp_path / "again")


@pytest.fixture(scope="module")
def real(pictures, tmp_path_factory):
    """A small run with an epsilon, attacked naively and informed, one of its captures damaged."""
    from fl_app.experiment.config import Experiment

    experiment = Experiment(
        dataset=f"imagefolder(path='{pictures}', size=12)",
        model="lenet",
        clients=3,
        batch_size=1,
        rounds=1,
        defense="dp_sgd(clip=1, noise=1) + prune(ratio=0.5)",
        capture="1",
        run_dir=str(tmp_path_factory.mktemp("real") / "run"),
    )
    run = engines.run(experiment, "inline", Watcher())
    (run.path / "captures/round-0001/client-02.safetensors").write_bytes(b"damaged")
    first = Session(run, "idlg(iterations=1, restarts=1)", (), InlineWorker())
    keys = first.captured()
    for number, session in enumerate(sessions_of(first, keys, informed=True)):
        session.work(session.pending(keys), 64, lambda _: None)
        Scoring(assets_of(experiment), session.folder, session.failures(), perceptual=False, floors=number == 0).run(keys)
    return run


def test_a_real_run_is_exported_as_scored(real):
    study = read_checked(real.path)
    rows = TABLES["targets"](study)
    assert {row["who"].partition(":")[0] for row in rows} == {"naive", "informed"}
    attack = next(one for one in study.cells[0].attacked.attacks if one.who == "naive")
    naive = [row for row in rows if row["who"] == "naive"]
    assert [row["psnr"] for row in naive] == [one.values.get("psnr") for one in attack.targets]
    assert [row["status"] for row in naive] == ["done", "done", "failed"]
    assert "client-02.safetensors" in naive[2]["reason"]
    assert naive[0]["seconds"] > 0
    assert TABLES["rounds"](study)[-1]["epsilon"] > 0


def test_every_file_and_key_of_a_real_run_is_documented(real, tmp_path):
    text = DOCS.read_text()
    words = set(re.findall(r"`([^`\n]+)`", text))
    shapes = {re.sub(r"[0-9]+", "0", word) for word in words}
    for path in [path for path in real.path.rglob("*") if path.is_file() and not path.name.startswith(".")]:
        place = path.relative_to(real.path).as_posix()
        place = re.sub(r"^attacks/[^/]+", "attacks/NAME", place)
        assert re.sub(r"[0-9]+", "0", place) in shapes, f"docs/files.md does not name {place}"
        for key in keys_of(path):
            assert key in words, f"docs/files.md does not name `{key}` of {place}"
    given = {"attacks": ["idlg"], "run": {"defense": ["none", "sign"]}, "targets": {"capture": "1", "rounds": 1}}
    make_plan(sweep_of(given, "x"), tmp_path / "sweep", "x", "c").save("")
    plan = json.loads((tmp_path / "sweep/plan.json").read_text())
    for key in {*plan, *plan["cells"][0], *plan["sweep"]}:
        assert key in words, f"docs/files.md does not name `{key}` of plan.json"


def keys_of(path):
    """The keys of an object, of every line, or of the header of a safetensors file; weights and settings are the model's."""
    if path.suffix == ".json":
        return set(json.loads(path.read_text()))
    if path.suffix == ".jsonl":
        return {key for text in path.read_text().splitlines() for key in json.loads(text)}
    if path.suffix == ".safetensors" and path.read_bytes() != b"damaged":
        with safe_open(path, "pt") as stored:
            named = {"x", "y", "loss"} & set(stored.keys())
            return named | set(stored.metadata() or {})
    return set()
