"""Scores of an attack's reconstructions on a run: read back from disk, held against the truth and the floors, and kept."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Self

import torch

from fl_app.core.observation import Candidates, Key
from fl_app.core.seeds import generator
from fl_app.core.table import Rows
from fl_app.core.text import Tokens
from fl_app.data import load
from fl_app.experiment.assets import Assets
from fl_app.experiment.grants import candidates_of
from fl_app.experiment.truth import clients_behind, true_aggregate, true_positions
from fl_app.scoring.answers import score_answer
from fl_app.scoring.base import Judge, Measure, Metric, Tools
from fl_app.scoring.floors import floors_for
from fl_app.scoring.grids import save_grid, save_sheet
from fl_app.scoring.membership import Believed
from fl_app.scoring.metrics import METRICS
from fl_app.scoring.passages import passages
from fl_app.scoring.questions import Question, question_of, save_judged
from fl_app.scoring.score import score
from fl_app.scoring.sheets import sheet
from fl_app.scoring.target import Row, TargetScore, lines_of
from fl_app.scoring.text import Text, by_frequency
from fl_app.store.files import write_atomic
from fl_app.store.reconstructions import CandidateScores

AT_MOST = 16


def text_of(assets: Assets) -> Text | None:
    """What the examples of an experiment are, if they are text: words are frequent or rare by public text."""
    if not isinstance(assets.space, Tokens):
        return None
    public = load(assets.experiment.dataset).public
    return Text(assets.space, by_frequency(assets.space, (public or assets.splits.test).x))


class Scoring:
    """Scores the targets of one attack and keeps them as `scores.jsonl`, with a picture of the first ones."""

    def __init__(
        self,
        assets: Assets,
        folder: Path,
        failures: dict[Key, str],
        *,
        perceptual: bool = True,
        judge: Judge | None = None,
        evaluator: Path | None = None,
        floors: bool = True,
        metrics: Mapping[str, Metric] = METRICS,
        candidates: Candidates | None = None,
    ) -> None:
        self.assets, self.folder, self.failures = assets, folder, failures
        rows = assets.space if isinstance(assets.space, Rows) else None
        self.tools = Tools(judge, evaluator, perceptual, rows, text_of(assets))
        self.metrics = {name: metric for name, metric in metrics.items() if self.tools.has(metric.needs)}
        self.targets: list[TargetScore] = []
        self.blind = floors_for(assets.space, self.tools.text) if floors else {}
        self.floors: dict[str, list[Row]] = {name: [] for name in self.blind}
        self.question = ""
        self.candidates = candidates
        self._believed: dict[Key, Believed] = {}
        self._shown: list[tuple[torch.Tensor, torch.Tensor, str]] = []

    def run(self, keys: list[Key], on_done: Callable[[], None] = lambda: None) -> Self:
        """Score all targets, failed ones as failed; the folder then has them as scores.jsonl."""
        for key in keys:
            self.targets.append(self._target(key))
            on_done()
        self._judge_beliefs()
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomic(self.folder / "scores.jsonl", lines_of(self.targets))
        # What is plugged in is described, so that results can be read without importing it.
        plugged = {name: one.to_dict() for name, one in self.measures.items() if name not in METRICS}
        described = self.folder / "metrics.json"
        if plugged:
            write_atomic(described, json.dumps(plugged, indent=1))
        else:
            described.unlink(missing_ok=True)
        blind = [{"floor": name, **row} for name, rows in self.floors.items() for row in rows]
        if blind:
            write_atomic(self.folder / "floors.jsonl", "".join(json.dumps(line) + "\n" for line in blind))
        if self._shown:
            self.save_picture(self.folder / "grid.png", {self.folder.name[:-7]: self})
        return self

    def save_picture(self, path: Path, shown: dict[str, "Scoring"]) -> None:
        """A picture of the truth and of the same targets' reconstructions by one or more attacks; of rows, a table."""
        true_x, _, captions = zip(*self._shown[:AT_MOST], strict=True)
        rows = {name: torch.stack([rebuilt for _, rebuilt, _ in one._shown[:AT_MOST]]) for name, one in shown.items()}
        if self.tools.text is not None:
            save_sheet(path, passages(self.tools.text.tokens, torch.stack(true_x), rows, captions))
        elif self.tools.rows is not None:
            save_sheet(path, sheet(self.tools.rows, torch.stack(true_x), rows, captions))
        else:
            save_grid(path, torch.stack(true_x), rows, captions)

    @property
    def pictured(self) -> list[str]:
        """Which targets are in the picture."""
        return [caption for _, _, caption in self._shown[:AT_MOST]]

    def rows(self) -> list[Row | None]:
        """One row per target; None where it failed."""
        return [one.values if one.done else None for one in self.targets]

    def _target(self, key: Key) -> TargetScore:
        clients = clients_behind(self.assets, key[1], key[0])
        true_x, true_y = true_aggregate(self.assets, clients, key[0])
        target, x, believed = score_answer(self.folder, key, (true_x, true_y), self.failures, self.metrics, self.tools)
        if believed is not None and question_of(believed.notes.get("question", "")) is not None:
            return self._believe(target, believed)
        if x is not None:
            self._blind(key, clients, true_x, true_y)
            if len(self._shown) < AT_MOST:
                labels = [f"r{key[0]} c{key[1]}: {label}" for label in true_y.tolist()]
                self._shown += zip(true_x, x, labels, strict=True)
        return target

    def _believe(self, target: TargetScore, believed: CandidateScores) -> TargetScore:
        """Hold scores beside what is true of the candidates; they are judged once all targets are known."""
        self.question, key = believed.notes["question"], target.key
        asked = self.candidates or candidates_of(self.assets, key, self.question)
        if believed.scores.shape != asked.y.shape:
            reason = f"{tuple(believed.scores.shape)} scores are not of the {len(asked.y)} candidates: attack it again"
            return TargetScore(round=target.round, client=target.client, status="failed", reason=reason)
        truth = self._asked.truth(self.assets, key, asked, self.question.partition(":")[2])
        if truth.shape != asked.y.shape:
            reason = f"the {len(asked.y)} candidates are not those of {self.question}: leave --candidates out"
            return TargetScore(round=target.round, client=target.client, status="failed", reason=reason)
        self._believed[key] = Believed(believed.scores.double().cpu(), truth)
        return target

    def _judge_beliefs(self) -> None:
        if not self._believed:
            return
        question = self._asked
        rows = question.rows(self._believed)
        self.targets = [replace(one, values=rows[one.key]) if one.key in rows else one for one in self.targets]
        if self.floors:
            self.floors["prior guess"] = [question.floor(self._believed)] * len(rows)
        self.folder.mkdir(parents=True, exist_ok=True)
        save_judged(self.folder, self.question, self._believed)

    @property
    def measures(self) -> Mapping[str, Measure]:
        """What its targets are measured by."""
        return self._asked.measures if self.question else self.metrics

    @property
    def _asked(self) -> Question:
        found = question_of(self.question)
        assert found is not None
        return found

    def _blind(self, key: Key, clients: list[int], true_x: torch.Tensor, true_y: torch.Tensor) -> None:
        excluded = torch.cat([true_positions(self.assets, client, key[0]) for client in clients])
        for name, rows in self.floors.items():
            rng = generator(self.assets.experiment.seed, "floor", name, *key)
            blind = self.assets.space.clamp(self.blind[name](self.assets.splits.train, true_y, rng, excluded))
            rows.append(score(blind, true_y, true_x, true_y, self.metrics, self.tools).row())
