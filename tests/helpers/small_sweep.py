"""A sweep that any test can afford: its file, and what is compared of its folder."""

import json
from collections import Counter

from safetensors.torch import load_file

FILE = """
title = "A small [one]"
seeds = {seeds}
attacks = ["{attack}"]
lpips = false
[run]
dataset = "{dataset}"
model = "lenet"
clients = 2
batch-size = 4
rounds = {rounds}
eval-every = 2
defense = ["none", "prune(ratio={{0.5,0.9}})"]
[targets]
clients = 3
client-examples = 1
batch-size = 1
rounds = 1
capture = "1"
"""


def text_of(pictures, *, seeds, attack, rounds):
    """The file of a sweep on the pictures."""
    return FILE.format(dataset=f"imagefolder(path='{pictures}', size=12)", seeds=seeds, attack=attack, rounds=rounds)


def journal(folder, event):
    lines = [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]
    return Counter(line["unit"] for line in lines if line["event"] == event)


def results_of(folder):
    """All that must not depend on workers or interruptions: weights, metrics without their clocks, guesses, scores."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.suffix == ".safetensors":
            found[name] = {key: value.tolist() for key, value in load_file(path).items()}
        elif path.name in ("metrics.jsonl", "scores.jsonl", "floors.jsonl"):
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            found[name] = [{key: value for key, value in line.items() if not key.endswith("seconds")} for line in lines]
    return found
