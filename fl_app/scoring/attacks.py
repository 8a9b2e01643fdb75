"""Scores of an attack's guesses on a run: read back from disk, held against the truth and the floors, written beside them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import torch
from torch import nn

from fl_app.core.local import Tensors
from fl_app.core.observation import Key
from fl_app.core.seeds import generator
from fl_app.experiment.assets import Assets
from fl_app.experiment.truth import clients_behind, true_aggregate, true_positions
from fl_app.scoring.classifier import clean_accuracy, kl_divergence
from fl_app.scoring.floors import FLOORS
from fl_app.scoring.grids import save_grid
from fl_app.scoring.noise_ratio import noise_ratio
from fl_app.scoring.score import Row, Scores, score, success_rate, summarize
from fl_app.store.files import write_atomic
from fl_app.store.reconstructions import guess_path, load_guess

METRICS = ("psnr", "ssim", "mse", "lpips_alex", "lpips_vgg", "label_accuracy")
JUDGED = ("kl", "judged_accuracy")
"""Only with a judge: KL of its class distributions, and how often it sees the true class in a guess."""
AT_MOST = 16


class Scoring:
    """Scores the targets of one attack and keeps them as `scores.jsonl`, with a picture of the first ones."""

    def __init__(
        self,
        assets: Assets,
        folder: Path,
        failures: dict[Key, str],
        *,
        perceptual: bool = True,
        judge: tuple[nn.Module, Tensors] | None = None,
        evaluator: Path | None = None,
        floors: bool = True,
    ) -> None:
        self.evaluator = evaluator
        self.assets, self.folder, self.failures, self.perceptual, self.judge = assets, folder, failures, perceptual, judge
        self.metrics = METRICS + (JUDGED if judge else ()) + (("noise_ratio",) if evaluator else ())
        self.lines: list[dict[str, Any]] = []
        self.floors: dict[str, list[Row]] = {name: [] for name in FLOORS} if floors else {}
        self._shown: list[tuple[torch.Tensor, torch.Tensor, str]] = []

    def run(self, keys: list[Key], on_done: Callable[[], None] = lambda: None) -> Self:
        """Score all targets, failed ones as failed; the folder then has them as scores.jsonl."""
        for key in keys:
            self.lines.append(self._target(key))
            on_done()
        text = "".join(json.dumps(line) + "\n" for line in self.lines)
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomic(self.folder / "scores.jsonl", text)
        blind = [{"floor": name, **row} for name, rows in self.floors.items() for row in rows]
        if blind:
            write_atomic(self.folder / "floors.jsonl", "".join(json.dumps(line) + "\n" for line in blind))
        if self._shown:
            self.save_picture(self.folder / "grid.png", {self.folder.name[:-7]: self})
        return self

    def save_picture(self, path: Path, shown: dict[str, "Scoring"]) -> None:
        """A picture of the truth and of the same targets' guesses by one or more attacks, one a row."""
        true_x, _, captions = zip(*self._shown[:AT_MOST], strict=True)
        rows = {name: torch.stack([guess for _, guess, _ in one._shown[:AT_MOST]]) for name, one in shown.items()}
        save_grid(path, torch.stack(true_x), rows, captions)

    @property
    def pictured(self) -> list[str]:
        """Which targets are in the picture."""
        return [caption for _, _, caption in self._shown[:AT_MOST]]

    def rows(self) -> list[Row | None]:
        """One row a target; None where it failed."""
        return [{name: line[name] for name in self.metrics} if line["status"] == "done" else None for line in self.lines]

    def _target(self, key: Key) -> dict[str, Any]:
        server_round, client = key
        line: dict[str, Any] = {"round": server_round, "client": client}
        path = guess_path(self.folder, key)
        if key in self.failures or not path.exists():
            return {**line, "status": "failed", "reason": self.failures.get(key, "there is no guess")}
        clients = clients_behind(self.assets, client, server_round)
        true_x, true_y = true_aggregate(self.assets, clients, server_round)
        try:
            x, y, loss, notes = load_guess(path)
            scores = score(x, y, true_x, true_y, perceptual=self.perceptual)
        except ValueError as error:
            return {**line, "status": "failed", "reason": str(error)}
        self._keep_picture(x, true_x, true_y, scores, key)
        self._blind(key, clients, true_x, true_y)
        row = self._row(scores, x, true_x, true_y)
        return {**line, "status": "done", **row, "loss": loss, **notes, "unavailable": scores.unavailable}

    def _row(self, scores: Scores, x: torch.Tensor, true_x: torch.Tensor, true_y: torch.Tensor) -> Row:
        row = scores.row()
        if self.evaluator is not None:
            row["noise_ratio"] = noise_ratio(x, self.evaluator).mean().item()
        if self.judge is not None:
            guess = x[scores.order]
            row["kl"] = kl_divergence(*self.judge, true_x, guess).mean().item()
            row["judged_accuracy"] = clean_accuracy(*self.judge, guess, true_y)
        return row

    def success(self, threshold: float = 30.0) -> float:
        """The share of targets whose mean PSNR reaches a threshold; failed ones do not."""
        values = torch.tensor([line["psnr"] for line in self.lines if line["status"] == "done"])
        return success_rate(values, threshold, failed=len(self.lines) - len(values))

    def _keep_picture(self, x: torch.Tensor, true_x: torch.Tensor, true_y: torch.Tensor, scores: Scores, key: Key) -> None:
        if len(self._shown) < AT_MOST:
            for true, guess, label in zip(true_x, x[scores.order], true_y.tolist(), strict=True):
                self._shown.append((true, guess, f"r{key[0]} c{key[1]}: {label}"))

    def _blind(self, key: Key, clients: list[int], true_x: torch.Tensor, true_y: torch.Tensor) -> None:
        excluded = torch.cat([true_positions(self.assets, client, key[0]) for client in clients])
        for name in self.floors:
            floor = FLOORS[name]
            rng = generator(self.assets.experiment.seed, "floor", name, *key)
            blind = floor(self.assets.splits.train, true_y, rng, excluded)
            scores = score(blind, true_y, true_x, true_y, perceptual=self.perceptual)
            self.floors[name].append(self._row(scores, blind, true_x, true_y))

    def table(self, who: str = "attack") -> list[tuple[str, dict[str, Any]]]:
        """(who, metric -> Summary) for the attack and for each floor."""
        found = [(who, {name: summarize(self.rows(), name) for name in self.metrics})]
        for name, rows in self.floors.items():
            found.append((f"floor: {name}", {metric: summarize(rows, metric) for metric in self.metrics}))
        return found
