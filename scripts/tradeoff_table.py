"""The cells of scripts/tradeoff.py as a table in docs/results."""

import argparse
import math
from pathlib import Path
from typing import Any

from fl_app.analysis.limits import PSNR as THRESHOLD
from fl_app.scoring.score import Summary, summarize


def cell_text(summary: Summary, digits: int) -> str:
    """Mean and half of its 95 % interval."""
    if summary.mean is None:
        return "-"
    if summary.low is None or summary.high is None:
        return f"{summary.mean:.{digits}f}"
    return f"{summary.mean:.{digits}f} ± {(summary.high - summary.low) / 2:.{digits}f}"


def rows_of(cells: list[dict[str, Any]], who: str) -> list[Any]:
    """The targets of an attacker over all seeds."""
    return [row for one in cells if who in one["leaks"] for row in one["leaks"][who]["rows"]]


def worst(cells: list[dict[str, Any]], words: str) -> tuple[str, Summary] | None:
    """The attacker of a kind with the highest mean PSNR."""
    names = sorted({name for one in cells for name in one["leaks"] if name.startswith(words)})
    found = [(name, summarize(rows_of(cells, name), "psnr")) for name in names]
    return max(found, key=lambda pair: -math.inf if pair[1].mean is None else pair[1].mean, default=None)


def line_of(defense: str, cells: list[dict[str, Any]], plain: float) -> tuple[str, float, float]:
    """(a row of the table, accuracy relative to undefended, PSNR of the worst attacker)."""
    accuracies = [one["accuracy"] for one in cells]
    accuracy = sum(accuracies) / len(accuracies)
    spread = f" ({min(accuracies):.3f} to {max(accuracies):.3f})" if len(accuracies) > 1 else ""
    columns = [f"`{defense}`", f"{accuracy:.3f}{spread}", f"{accuracy / plain:.2f}"]
    peak = -math.inf
    for words in ("naive", "informed"):
        found = worst(cells, words)
        if found is None:
            columns += ["as naive"] + [""] * 4
            continue
        name, summary = found
        rows = rows_of(cells, name)
        failed = f", {summary.failed} failed" if summary.failed else ""
        columns += [
            cell_text(summary, 1),
            cell_text(summarize(rows, "ssim"), 2),
            cell_text(summarize(rows, "lpips_alex"), 2),
            f"{summarize(rows, 'label_accuracy').mean or 0:.0%}",
            name.removeprefix(words).strip(" ,") + failed,
        ]
        peak = max(peak, summary.mean if summary.mean is not None else -math.inf)
    epsilon = cells[0].get("epsilon")
    columns.append("" if epsilon is None else f"{epsilon:.3g}")
    return "| " + " | ".join(columns) + " |", accuracy / plain, peak


def write(
    out: Path, dataset: str, cells: list[dict[str, Any]], families: dict[str, list[str]], options: argparse.Namespace
) -> None:
    """Write docs/results/tradeoff-<dataset>.md."""
    own = [one for one in cells if one["dataset"] == dataset]
    by_defense = {text: [one for one in own if one["defense"] == text] for family in families.values() for text in family}
    undefended = by_defense.get("none", [])
    if not undefended:
        print(f"{dataset}: no undefended cell, so no table")
        return
    plain = sum(one["accuracy"] for one in undefended) / len(undefended)
    head = [
        "| defense | accuracy (range over seeds) | of undefended | naive PSNR | SSIM | LPIPS | labels | by | "
        "informed PSNR | SSIM | LPIPS | labels | by | epsilon |",
        "|" + "---|" * 14,
    ]
    lines, good = [], []
    for text, found in by_defense.items():
        if found:
            line, share, peak = line_of(text, found, plain)
            lines.append(line)
            if share >= 0.95 and peak < THRESHOLD:
                good.append(text)
    floors = [
        f"- {name}: PSNR {cell_text(summarize(rows_of(undefended, name), 'psnr'), 1)}, "
        f"SSIM {cell_text(summarize(rows_of(undefended, name), 'ssim'), 2)}, "
        f"LPIPS {cell_text(summarize(rows_of(undefended, name), 'lpips_alex'), 2)}"
        for name in sorted(undefended[0]["leaks"])
        if name.startswith("floor")
    ]
    targets = len(rows_of(undefended, "naive inverting gradients"))
    verdict = (
        f"Settings that keep 95 % of the undefended accuracy and hold every attacker here below "
        f"{THRESHOLD:.0f} dB, {len(good)} of {len(by_defense)}: {', '.join(f'`{text}`' for text in good) or 'none'}."
    )
    command = f"scripts/tradeoff.py --seeds {options.seeds} --first-seed {options.first_seed}"
    minutes = sum(one["seconds"] for one in own) / 60
    text = f"""# Accuracy against leakage: {dataset}, LeNet

`{command} --training-rounds {options.training_rounds}`, inline engine, CPU;
{len(own)} cells took {minutes:.0f} minutes one after another, on a machine that others used too.

Accuracy: 4 clients, batch 32, server Adam 0.003, {options.training_rounds} rounds; nothing is tuned by defense.
Leakage: the first update of clients with one example, {targets} targets; mean ± half of the 95 %
interval over targets. "Naive" knows the protocol and the architecture; "informed" also knows the defense and its settings,
and where it says "rounds" sees as many updates on the same example. Of each kind the attacker with the highest mean PSNR is
shown: Inverting Gradients (500 iterations, TV 0.1) or ours with L-BFGS (600 iterations, TV 0.01, or 0.03
where noise is known; 300 where rounds are matched together). Labels are inferred by all; "labels" is the share that was right.
These settings were chosen on undefended images of seed 0 and are the same for every defense.
Epsilon: delta 1e-5, of one example of a client in the training run, for the batches as they are drawn.

Blind guesses on the same targets:
{chr(10).join(floors)}

{verdict}

{chr(10).join(head + lines)}
"""
    out.mkdir(parents=True, exist_ok=True)
    (out / f"tradeoff-{dataset}.md").write_text(text)
    print(out / f"tradeoff-{dataset}.md")
