#!/usr/bin/env python
"""Attacks on undefended updates of real images: how well, how fast, and against the public `breaching` package.

    .venv/bin/python scripts/bench_attack.py quality      # iDLG on CIFAR-10, DLG on MNIST, several local steps
    .venv/bin/python scripts/bench_attack.py breaching    # Inverting Gradients: PSNR and target-iterations/s of both
    .venv/bin/python scripts/bench_attack.py speed        # our loop and our vectorised path

`breaching` is optional: pip install --no-deps breaching hydra-core omegaconf antlr4-python3-runtime==4.9.3
"""

import argparse
import time
from dataclasses import replace
from types import SimpleNamespace

import torch
from torch import Tensor

import adversary
from fl_app import data, models
from fl_app.core.local import LocalRule, local_update
from fl_app.core.observation import Knowledge, Observation, Task
from fl_app.core.space import Images
from fl_app.core.vision import torchvision  # noqa: F401  (breaching imports torchvision: the guard has to come first)
from fl_app.scoring.images import psnr, ssim
from fl_app.scoring.matching import match

THREADS = 2
SEED = 0


def targets(
    dataset: str, number: int, examples: int = 1, rule: LocalRule | None = None, first: int = 0
) -> tuple[Tensor, Tensor, list[Observation], Task]:
    """First-round updates of DLG's LeNet on test images: (x, y, observations, task)."""
    source = data.load(dataset)
    model = models.build("lenet", source.input_shape, source.num_classes, seed=1)
    params = models.parameters_of(model)
    rule = rule or LocalRule(batch_size=examples)
    x, y = source.test.at(slice(first, first + number * examples))
    x, y = x.view(number, examples, *source.input_shape), y.view(number, examples)
    seen = [
        Observation(
            params=params,
            update=local_update(model, params, a, b, rule),
            rule=rule,
            num_examples=examples,
            server_round=1,
            client=client,  # each target has draws of its own
        )
        for client, (a, b) in enumerate(zip(x, y, strict=True))
    ]
    return x, y, seen, Task(model, Images(source.input_shape), source.num_classes)


def report(name: str, guess: Tensor, x: Tensor, seconds: float) -> Tensor:
    """Print and return the PSNR of each image, after matching within each target."""
    pairs = [(g[match(g, t)], t) for g, t in zip(guess, x, strict=True)]
    values = torch.cat([psnr(g, t) for g, t in pairs])
    similar = torch.cat([ssim(g, t) for g, t in pairs])
    good = (values > 30).float().mean().item()
    print(
        f"  {name:58} PSNR {values.mean():6.2f} dB, SSIM {similar.mean():.3f}, > 30 dB: {good:6.1%}, {seconds:6.1f} s",
        flush=True,
    )
    return values


def ours(name: str, text: str, x: Tensor, seen: list[Observation], task: Task) -> Tensor:
    """Run one of our attacks and report it."""
    began = time.perf_counter()
    guess = adversary.build(text)(seen, task, SEED)
    return report(name, guess.x, x, time.perf_counter() - began)


def floor(x: Tensor, y: Tensor, dataset: str) -> None:
    """Print the blind floor: the mean image of the class."""
    train = data.load(dataset).train
    means = torch.stack([train.x[train.y == label][:2000].float().mean(0) / 255 for label in range(10)])
    report("floor: class mean", means[y], x, 0.0)


def quality(first: int) -> None:
    print(f"CIFAR-10, LeNet with DLG's init, batch 1, 32 images of the test set from {first} on")
    x, y, seen, task = targets("cifar10", 32, first=first)
    ours("idlg", "idlg", x, seen, task)
    floor(x, y, "cifar10")
    print(f"MNIST, LeNet with DLG's init, batch 1, 100 images of the test set from {first} on")
    x, y, seen, task = targets("mnist", 100, first=first)
    began = time.perf_counter()
    guess = adversary.build("dlg")(seen, task, SEED)
    values = report("dlg", guess.x, x, time.perf_counter() - began)
    close = guess.loss.sqrt() < 0.1
    both = close & (values > 30)
    print(f"    gradient distance < 0.1: {close.float().mean():.1%}; and PSNR > 30 dB: {both.float().mean():.1%}")
    floor(x, y, "mnist")
    print("CIFAR-10, 4 local steps of batch 4 over 8 images (local rate 0.001), 4 clients")
    rule = LocalRule(kind="delta", batch_size=4, steps=4, lr=1e-3, examples=8)
    x, y, seen, task = targets("cifar10", 4, 8, rule, first)
    granted = [replace(one, knowledge=Knowledge(labels=labels)) for one, labels in zip(seen, y, strict=True)]
    ours(
        "cosine_lbfgs, labels granted",
        "cosine_lbfgs(iterations=500, labels='given')",
        x,
        granted,
        task,
    )
    ours("cosine_lbfgs, labels inferred", "cosine_lbfgs(iterations=500)", x, seen, task)
    floor(x, y, "cifar10")


def breaching(number: int, iterations: int) -> None:
    print(f"Inverting Gradients, CIFAR-10, LeNet, batch 1, the same {number} targets, {iterations} iterations, known labels")
    x, y, seen, task = targets("cifar10", number)
    theirs, speed = run_breaching(x, y, seen, task, iterations)
    if theirs is not None:
        report("breaching invertinggradients", theirs, x, number * iterations / speed)
        print(f"    {speed:8.0f} target-iterations/s")
    for name, text in (
        ("ours, the paper's settings (TV 1e-4)", f"inverting_gradients(iterations={iterations}, tv=1e-4)"),
        ("ours, the preset (TV 0.1)", f"inverting_gradients(iterations={iterations})"),
        (
            "ours, no sign, TV 1e-3, U(0,1) start",
            f"inverting_gradients(iterations={iterations}, tv=1e-3, signed=False, init='uniform')",
        ),
        ("ours, L-BFGS on the cosine, TV 1e-3, U(0,1) start", f"cosine_lbfgs(iterations={iterations})"),
    ):
        began = time.perf_counter()
        ours(name, text, x, seen, task)
        print(f"    {number * iterations / (time.perf_counter() - began):8.0f} target-iterations/s")


def run_breaching(x: Tensor, y: Tensor, seen: list[Observation], task: Task, iterations: int) -> tuple[Tensor | None, float]:
    """(reconstructions, target-iterations per second) of the breaching package, or (None, nan) without it."""
    try:
        import breaching as package
    except ImportError as error:
        print(f"  breaching is not installed ({error}); see --help")
        return None, float("nan")
    config = package.get_attack_config("invertinggradients")
    config.optim.max_iterations = iterations
    config.optim.callback = 10**9
    setup = {"dtype": torch.float, "device": torch.device("cpu")}
    attacker = package.attacks.prepare_attack(task.model, torch.nn.CrossEntropyLoss(), config, setup)
    facts = SimpleNamespace(
        shape=list(task.space.shape), modality="vision", classes=10, mean=[0.0] * 3, std=[1.0] * 3, task="classification"
    )
    guesses = []
    began = time.perf_counter()
    for one, label in zip(seen, y, strict=True):
        payload = [{"parameters": list(one.params.values()), "buffers": [], "metadata": facts}]
        notes = {"num_data_points": 1, "labels": label, "local_hyperparams": None}
        shared = [{"gradients": list(one.update.values()), "buffers": None, "metadata": notes}]
        guess, _ = attacker.reconstruct(payload, shared, {}, dryrun=False)
        guesses.append(guess["data"].detach().clamp(0, 1))
    return torch.stack(guesses), len(seen) * iterations / (time.perf_counter() - began)


def speed(iterations: int) -> None:
    print(f"Inverting Gradients, CIFAR-10, LeNet, batch 1: target-iterations/s, {THREADS} threads")
    x, y, seen, task = targets("cifar10", 64)
    text = f"inverting_gradients(iterations={iterations})"
    rates = {}
    _, rates["breaching"] = run_breaching(x[:2], y[:2], seen[:2], task, iterations)
    for name, parts in (
        ("our loop, one target at a time", [[one] for one in seen[:4]]),
        ("vectorised over 64 targets", [seen]),
    ):
        began = time.perf_counter()
        for part in parts:
            adversary.build(text)(part, task, SEED)
        rates[name] = sum(len(part) for part in parts) * iterations / (time.perf_counter() - began)
    began = time.perf_counter()
    adversary.build(f"inverting_gradients(iterations={iterations}, compiled=True)")(seen, task, SEED)
    first, began = time.perf_counter() - began, time.perf_counter()
    adversary.build(f"inverting_gradients(iterations={iterations}, compiled=True)")(seen, task, SEED)
    again = time.perf_counter() - began
    rates["the same, compiled"] = len(seen) * iterations / again
    print(f"  to compile: {first - again:.0f} s")
    for name, rate in rates.items():
        print(f"  {name:32} {rate:8.0f}   {rate / rates['breaching']:.1f} x breaching")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["quality", "breaching", "speed"])
    parser.add_argument("--targets", type=int, default=16)
    parser.add_argument("--iterations", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="first image of quality; settings were chosen on those from 0 on")
    options = parser.parse_args()
    torch.set_num_threads(THREADS)
    if options.what == "quality":
        quality(options.first)
    elif options.what == "breaching":
        breaching(options.targets, options.iterations)
    else:
        speed(min(options.iterations, 200))


if __name__ == "__main__":
    main()
