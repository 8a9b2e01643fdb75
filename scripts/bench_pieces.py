#!/usr/bin/env python
"""Do FedLeak's two pieces and feature targets help? Batches of 8 CIFAR-10 images, labels given, each piece by itself.

    .venv/bin/python scripts/bench_pieces.py tune                 # every value, on images that are not scored
    .venv/bin/python scripts/bench_pieces.py score                # the best of each piece there, against the search without it
    .venv/bin/python scripts/bench_pieces.py tune --only lenet

The search is that of Inverting Gradients: cosine, total variation, signed Adam. Differences are by target, with the 95 %
interval of Student's t. What is done is in OUT and not done again.
"""

import argparse
import json
import time
from pathlib import Path

import torch
from scipy.special import stdtrit

import adversary
from fl_app import data, models
from fl_app.core.local import LocalRule, local_update
from fl_app.core.observation import Knowledge, Observation, Task
from fl_app.core.space import Images
from fl_app.scoring.images import psnr
from fl_app.scoring.matching import match

NETWORKS = {"lenet": "lenet", "lenet5": "lenet5", "convnet": "convnet(width=8, norm='none')"}
FIRST = {"tune": 0, "score": 5000}
EXAMPLES, TV = 8, 0.1
SHARES, FURTHER, WEIGHTS = (1.0, 0.5, 0.1), (0.0, 0.3, 0.5), (0.0, 0.01, 0.1)
Setting = tuple[float, float, float]
"""(share of the entries, share of the slope further up, weight of the feature targets)."""
PLAIN: Setting = (1.0, 0.0, 0.0)
GRID: list[Setting] = [(share, further, 0.0) for share in SHARES for further in FURTHER]
GRID += [(1.0, 0.0, weight) for weight in WEIGHTS if weight]


def search(setting: Setting, iterations: int) -> str:
    """The attack with a setting of the pieces."""
    share, further, weight = setting
    objective = "cosine" if share == 1 else f"partial(objective=cosine, share={share})"
    priors = f"tv({TV})" + (f", features({weight})" if weight else "")
    return (
        f"matching(objective={objective}, priors=[{priors}], labels=given, "
        f"optimizer=adam(iterations={iterations}, signed=True, decay=True, further={further}))"
    )


def targets(network: str, number: int, first: int, seed: int) -> tuple[torch.Tensor, list[Observation], Task]:
    """Updates of batches of test images at random weights."""
    source = data.load("cifar10")
    model = models.build(NETWORKS[network], source.input_shape, 10, seed=seed, normalize=(source.mean, source.std))
    params, rule = models.parameters_of(model), LocalRule(batch_size=EXAMPLES)
    x, y = source.test.at(slice(first, first + number * EXAMPLES))
    x, y = x.view(number, EXAMPLES, *source.input_shape), y.view(number, EXAMPLES)
    seen = [
        Observation(
            params=params,
            update=local_update(model, params, a, b, rule),
            rule=rule,
            num_examples=EXAMPLES,
            server_round=1,
            client=client,
            knowledge=Knowledge(labels=b),
        )
        for client, (a, b) in enumerate(zip(x, y, strict=True))
    ]
    return x, seen, Task(model, Images(source.input_shape), 10)


def measured(args: argparse.Namespace, part: str, network: str, setting: Setting) -> list[float]:
    """The mean PSNR of each target, from OUT or anew."""
    key = [part, network, *setting, args.targets, args.iterations, args.seed]
    lines = args.out.read_text().splitlines() if args.out.exists() else []
    for line in map(json.loads, lines):
        if line["key"] == key:
            return list(line["psnr"])
    began = time.perf_counter()
    x, seen, task = targets(network, args.targets, FIRST[part], args.seed)
    guess = adversary.build(search(setting, args.iterations))(seen, task, args.seed)
    found = [psnr(g[match(g, t)], t).mean().item() for g, t in zip(guess.x, x, strict=True)]
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with args.out.open("a") as stream:
        stream.write(json.dumps({"key": key, "psnr": found, "seconds": time.perf_counter() - began}) + "\n")
    return found


def compared(args: argparse.Namespace, part: str, network: str, setting: Setting) -> float:
    """Print a setting beside the search without any piece; -> the mean difference."""
    plain, own = (torch.tensor(measured(args, part, network, one)) for one in (PLAIN, setting))
    gap = own - plain
    half = stdtrit(len(gap) - 1, 0.975) * gap.std().item() / len(gap) ** 0.5
    name = f"share {setting[0]:g}, further {setting[1]:g}, features {setting[2]:g}"
    print(
        f"  {part:5} {network:8} {name:40} {own.mean():6.2f} dB, {gap.mean():+.2f} +- {half:.2f} (n = {len(gap)})", flush=True
    )
    return gap.mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=sorted(FIRST))
    parser.add_argument("--only", nargs="+", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--targets", type=int, default=8)
    parser.add_argument("--iterations", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="of the weights and of the attack")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/pieces.jsonl"))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    pieces = {
        "partial matching": [one for one in GRID if one[0] < 1 and not one[1]],
        "gradient regularisation": [one for one in GRID if one[0] == 1 and one[1]],
        "both": [one for one in GRID if one[0] < 1 and one[1]],
        "feature targets": [one for one in GRID if one[2]],
    }
    for network in args.only:
        for piece, settings in pieces.items():
            print(f"{network}, {piece}", flush=True)
            lifts = {setting: compared(args, "tune", network, setting) for setting in settings}
            if args.part == "score":
                compared(args, "score", network, max(lifts, key=lambda one: lifts[one]))


if __name__ == "__main__":
    main()
