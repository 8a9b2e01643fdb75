#!/usr/bin/env python
"""Photos of 128 or 256 pixels from the gradient of a ResNet-18 or ResNet-50 at batch 1: how well, how long, how much memory.

    .venv/bin/python scripts/bench_highres.py                                # the figure of docs/high-resolution.md
    .venv/bin/python scripts/bench_highres.py --photo china rocket --only sigmoid-batch/coarse_to_fine
    .venv/bin/python scripts/bench_highres.py --list

Every case is a process of its own, whose peak of memory is printed. What is done is in OUT/results.jsonl and not done again; a
case that was broken off goes on where it was, from OUT/states. Each photo is the middle square of one of the data set `photos`:
those of its train part are scored, settings were chosen on `flower`, of its test part.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import torch
from PIL import Image
from scipy.special import stdtrit

import adversary
from adversary.search import progress
from adversary.search.checkpoint import kept_in
from fl_app import data, models
from fl_app.core.local import LocalRule, local_update
from fl_app.core.observation import Observation, Task
from fl_app.core.space import Images
from fl_app.data.squares import PARTS, SUBJECTS, squares
from fl_app.scoring.images import psnr, ssim

MODELS = {
    "sigmoid-batch": "resnet18(norm='batch',activation='sigmoid')",
    "sigmoid-group": "resnet18(norm='group',activation='sigmoid')",
    "relu-batch": "resnet18(norm='batch')",
    "relu-group": "resnet18(norm='group')",
    "resnet10-sigmoid-batch": "resnet10(norm='batch',activation='sigmoid')",
    "resnet50-imagenet": "resnet50(weights='imagenet')",
}
ATTACKS = {
    "coarse_to_fine": "coarse_to_fine(coarsest=32, finest=2, iterations=300)",
    "coarse_to_fine_longer": "coarse_to_fine(coarsest=32, finest=1, iterations=600, tv=0.01)",
    "pixels": "matching(objective=relative, space=contrast(pixels(init='uniform', boxed=False)), priors=[tv(0.03)], "
    "optimizer=lbfgs(iterations=1500))",
    "rog": "rog(iterations=1000, release=500)",
    "ci_net": "ci_net(iterations=1500)",
    "inverting_gradients": "inverting_gradients(iterations=1500)",
}


def one(args: argparse.Namespace, photo: str, net: str, attack: str) -> None:
    """Attack one photo, write its picture and print what was found as JSON."""
    torch.set_num_threads(args.threads)
    dataset = data.load(f"photos(size={args.size})")
    x = squares(photo, args.size)[:1].float() / 255
    subjects = {name: subject for part in PARTS.values() for name, subject in part.items()}
    classes = 1000 if "imagenet" in net else len(SUBJECTS)
    y = torch.tensor([subjects[photo]])
    model = models.build(MODELS[net], (3, args.size, args.size), classes, seed=args.seed, normalize=(dataset.mean, dataset.std))
    rule, params = LocalRule(batch_size=1), models.parameters_of(model)
    update = local_update(model, params, x, y, rule)
    seen = Observation(params=params, update=update, rule=rule, num_examples=1, server_round=1)
    began = time.perf_counter()

    def say(iteration: int, iterations: int) -> None:
        if iteration % 50 < args.every:
            print(f"    {iteration:5}/{iterations} {time.perf_counter() - began:6.0f} s", file=sys.stderr, flush=True)

    progress.report.set(say)
    name = f"{args.size}-{photo}-{net}-{attack}-{args.seed}"
    with kept_in(args.out / "states"), progress.within(args.seconds):
        guess = adversary.build(ATTACKS[attack])([seen], Task(model, Images((3, args.size, args.size)), classes), args.seed)
    found = guess.x[0].clamp(0, 1)
    seconds = time.perf_counter() - began
    beside = torch.cat([x, found], -1)[0].mul(255).round().byte()
    Image.fromarray(beside.permute(1, 2, 0).numpy()).save(args.out / f"{name}.png")
    result = {
        "case": name,
        "model": net,
        "attack": attack,
        "photo": photo,
        "size": args.size,
        "psnr": psnr(found, x).item(),
        "ssim": ssim(found, x).item(),
        "floor": psnr(x.mean((2, 3), keepdim=True).expand_as(x), x).item(),
        "label": bool((guess.y[0] == y).all()),
        "seconds": seconds,
        "gigabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9,
    }
    print(json.dumps(result))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--photo", nargs="+", default=["astronaut"], choices=[name for part in PARTS.values() for name in part])
    parser.add_argument("--only", nargs="+", default=["sigmoid-batch/coarse_to_fine"], help="model/attack; 'all' for all")
    parser.add_argument("--seed", type=int, default=0, help="of the random weights and of the attack")
    parser.add_argument("--seconds", type=float, default=1800, help="the most that an attack may take")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--every", type=int, default=5, help="how often to say how far it is")
    parser.add_argument("--out", type=Path, default=Path("runs/highres"))
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--case", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    cases = [f"{net}/{attack}" for net in MODELS for attack in ATTACKS]
    if args.list:
        print("\n".join(cases))
        return
    args.out.mkdir(parents=True, exist_ok=True)
    if args.case:
        one(args, *args.case)
        return
    file = args.out / "results.jsonl"
    known = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    for case in cases if args.only == ["all"] else args.only:
        net, attack = case.split("/")
        some = [found_or_run(args, known, file, photo, net, attack) for photo in args.photo]
        summary(case, [result for result in some if result])


def found_or_run(
    args: argparse.Namespace, known: list[dict[str, object]], file: Path, photo: str, net: str, attack: str
) -> dict[str, object] | None:
    """What is known of a case, or what a process of its own finds."""
    name = f"{args.size}-{photo}-{net}-{attack}-{args.seed}"
    for result in known:
        if result["case"] == name:
            return shown(result)
    passed = {"size": args.size, "seed": args.seed, "seconds": args.seconds, "threads": args.threads, "out": args.out}
    options = [word for key, value in passed.items() for word in (f"--{key}", str(value))]
    command = [sys.executable, __file__, *options, "--case", photo, net, attack]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        print(f"  {name}: failed with exit code {done.returncode}", flush=True)
        return None
    result = json.loads(done.stdout.splitlines()[-1])
    with file.open("a") as stream:
        stream.write(json.dumps(result) + "\n")
    return shown(result)


def shown(result: dict[str, object]) -> dict[str, object]:
    """Print a result, and hand it on."""
    print(
        f"  {result['case']:58} {result['psnr']:6.2f} dB (its mean colour {result['floor']:.2f}), SSIM {result['ssim']:.3f}, "
        f"label {'right' if result['label'] else 'wrong'}, {result['seconds']:.0f} s, peak {result['gigabytes']:.2f} GB",
        flush=True,
    )
    return result


def summary(case: str, results: list[dict[str, object]]) -> None:
    """The mean over photos with its interval."""
    if len(results) < 2:
        return
    for what in ("psnr", "ssim"):
        values = torch.tensor([float(str(result[what])) for result in results], dtype=torch.float64)
        half = stdtrit(len(values) - 1, 0.975) * values.std().item() / len(values) ** 0.5
        print(f"{case}: {what} {values.mean():.3f} +- {half:.3f} (95 %, n = {len(values)} photos)", flush=True)


if __name__ == "__main__":
    main()
