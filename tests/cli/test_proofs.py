"""What an attack proves by itself is said beside what it scores."""

import io

import pytest
from rich.console import Console

from fl_app import engines
from fl_app.cli.attack import attack_run
from fl_app.engines.watcher import Watcher


@pytest.mark.parametrize(("defense", "proved"), [("none", 3), ("dp_gaussian(scale=0.1)", 0)])
def test_exact_answers_are_counted_without_the_truth(small, defense, proved):
    run = engines.run(small.changed(model="mlp", capture="1", batch_size=2, defense=defense), "inline", Watcher())
    told = io.StringIO()
    attack_run(Console(file=told, width=250), run.path, ["spear(draws=500)"], grants=[], perceptual=False, informed=False)
    assert f"exact by the attack's own evidence, without the truth: {proved} of 3 targets" in told.getvalue()


def test_a_search_proves_nothing(small):
    run = engines.run(small.changed(capture="1", batch_size=1), "inline", Watcher())
    told = io.StringIO()
    attack_run(Console(file=told, width=250), run.path, ["idlg(iterations=1, restarts=1)"], grants=[], perceptual=False)
    assert "own evidence" not in told.getvalue()
