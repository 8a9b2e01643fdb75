#!/usr/bin/env python
"""Seconds of a client's gradient under every defense, beside the undefended gradient taken in turns with it.

    .venv/bin/python scripts/bench_defenses.py                         # LeNet, CIFAR-10 shapes, batch 128
    .venv/bin/python scripts/bench_defenses.py --model "resnet18(norm='group')" --batch 32 --repeat 3 --only dp_sgd,soteria
    .venv/bin/python scripts/bench_defenses.py --only soteria --batch 8 --slow      # with one backward pass per neuron
    .venv/bin/python scripts/bench_defenses.py --only refiner,fedem --parts         # beside the passes that they are made of

Images are uniform noise. "Refiner" are the seconds of that paper's Table 4 (batch 128, an A10 GPU; it has no undefended
figure) and their ratio to its cheapest defense, quantisation, which stands for undefended there.
"""

import argparse
import os
import time
from collections.abc import Callable
from dataclasses import replace
from statistics import median

import torch

import client_defenses
from client_defenses import Memory
from client_defenses.fedem import FedEM, entry_of, gradients
from client_defenses.refiner import Refiner
from client_defenses.soteria import Soteria
from client_defenses.tools import per_example
from client_defenses.tools.evaluator import (
    Evaluator,
    EvaluatorFacts,
    build_network,
    load,
    noise_error,
    train,
)
from client_defenses.tools.evaluator_networks import EvaluatorTraining, paper
from client_defenses.tools.layers import jacobian_norms, linear_layer, watched
from fl_app import data, models
from fl_app.core.local import Step, Tensors
from fl_app.data import photos
from fl_app.experiment.evaluators import ensure, prepared

# Refiner, Table 4: seconds per client-round of these defenses, by model.
THEIRS = ("prune", "dp_gaussian", "dp_laplace", "quantize", "soteria", "refiner")
TABLE_4 = {
    "lenet": (0.0187, 0.0467, 0.0469, 0.0179, 0.4103, 0.3340),
    "resnet10": (0.0495, 0.7317, 0.7322, 0.0277, 11.3148, 1.7341),
    "resnet18": (0.0873, 1.8408, 1.8414, 0.0514, 21.7539, 2.8539),
    "resnet34": (0.1370, 3.3020, 3.3025, 0.1050, 39.4410, 4.7012),
    "vit": (1.1232, 15.5051, 15.5236, 0.4489, 347.5668, 30.2268),
}
FEDEM_GOAL, REFINER_GOAL, NOISE_GOAL = 18, 1.3, 0.03
NAMED = (
    "fedem(fused=True)",
    "soteria(probes=0)",
    "soteria(probes=16)",
    "soteria(probes=256)",
    "soteria(variant='mixed')",
    "dp_sgd + quantize",
)


def soteria_loop(step: Step) -> Tensors:
    """The original's way: one backward pass for each entry of r, which takes the gradients of the weights along."""
    name, layer = linear_layer(step.model)
    leaves = {key: value.detach().requires_grad_() for key, value in step.params.items()}
    x = step.x.detach().requires_grad_()
    r, out, logits = watched(step.model, leaves, layer, name)(x)
    norms = torch.zeros_like(r)
    target = torch.zeros_like(r)
    for i in range(r.shape[1]):
        target[:, i] = 1
        r.backward(target, retain_graph=True)
        assert x.grad is not None
        norms[:, i] = x.grad.flatten(1).norm(dim=1)
        x.grad = None
        for leaf in leaves.values():
            leaf.grad = None
        target[:, i] = 0
    loss = torch.nn.functional.cross_entropy(logits, step.y)
    *plain, delta = torch.autograd.grad(loss, [*leaves.values(), out], materialize_grads=True)
    grads = dict(zip(leaves, plain, strict=True))
    pruned = (r.detach().abs() / norms).topk(int(0.6 * r.shape[1]), dim=1).indices
    grads[f"{name}.weight"] = delta.T @ r.detach().scatter(1, pruned, 0)
    return grads


def overlaps(step: Step) -> None:
    """How many of the entries that the sketch prunes are those of the exact norms."""
    name, layer = linear_layer(step.model)
    run = watched(step.model, step.params, layer, name)
    r, norms = run(step.x)[0], jacobian_norms(lambda x: run(x)[0], step.x)
    print("\nsoteria: share of the pruned entries that are the same with estimated and with exact norms")
    for ratio in (0.1, 0.4, 0.6, 0.8):
        pruned = int(ratio * r.shape[1])
        exact = torch.zeros_like(r).scatter(1, (r.abs() / norms).nan_to_num(0).topk(pruned, 1).indices, 1)
        shares = []
        for probes in (16, 32, 64, 256):
            kept = Soteria(probes=probes).kept(step, r, pruned, Memory.fresh(0))
            shares.append(f"{probes} probes {(exact * (1 - kept)).sum() / exact.sum():.3f}")
        print(f"  ratio {ratio}: {', '.join(shares)}", flush=True)


def in_turns(repeat: int, *actions: Callable[[], object]) -> list[float]:
    """Median seconds of each action, taken in turns."""
    taken = [[seconds(action) for action in actions] for _ in range(repeat + 1)][1:]  # the first one warms up
    return [median(column) for column in zip(*taken, strict=True)]


def fedem_parts(step: Step, repeat: int) -> None:
    """FedEM beside the passes that Algorithm 1 needs: N gradients by the perturbation, N - 1 by the copy, and the one sent."""
    exact, fused, delta = FedEM(), FedEM(fused=True), torch.full((1, *step.x.shape[1:]), 1e-3)
    entry = entry_of(step, delta)
    plain, naive, shared, both, whole, short = in_turns(
        repeat,
        step.gradient,
        lambda: gradients(step, delta, None),
        lambda: gradients(step, delta, entry),
        lambda: gradients(step, delta, entry, weights=True),
        lambda: exact.protect(step, Memory.fresh(0)),
        lambda: fused.protect(step, Memory.fresh(0)),
    )
    number = exact.steps
    print(f"\nfedem, N = {number}; an undefended gradient takes {plain:.4f} s; goal {FEDEM_GOAL} x")
    print(f"  a gradient by one perturbation: {shared / plain:.2f} x (each example's own, then summed: {naive / plain:.2f} x)")
    passes = number * (shared / plain + 1)
    print(f"  Algorithm 1: {whole / plain:.1f} x; the {number} + {number} gradients that it needs: {passes:.1f} x")
    print(f"  one pass for both steps (fused=True): {short / plain:.1f} x; such a pass: {both / plain:.2f} x", flush=True)


def refiner_parts(step: Step, repeat: int) -> None:
    """Refiner beside the sum of its parts, with D of our width and of the paper's (not trained: that costs no time)."""
    defense = Refiner(backtrack=False)
    x = step.x.detach().requires_grad_()

    def double_backward() -> object:
        grads = step._replace(x=x).differentiable_gradient()
        return torch.autograd.grad(torch.stack([value.square().sum() for value in grads.values()]).sum(), x)

    (plain,) = in_turns(repeat, step.gradient)
    print(f"\nrefiner, t = {defense.iterations}; goal {REFINER_GOAL} x the sum of its parts")
    for name, training in (("compact", EvaluatorTraining()), ("paper", paper(photos.NUMBER))):
        shape = step.x.shape[1], step.x.shape[2], step.x.shape[3]
        network = Evaluator(build_network(shape, training.width).requires_grad_(False), EvaluatorFacts(shape=shape))
        whole, model, judge = in_turns(
            repeat,
            lambda network=network: defense.refine(step, step.gradient(), step.x, defense.iterations, network),  # type: ignore[misc]
            double_backward,
            lambda network=network: torch.autograd.grad(network(x).sum(), x),  # type: ignore[misc]
        )
        parts = defense.iterations * (model + judge)
        print(
            f"  D of width {training.width} ({name}): {whole:.3f} s, {whole / plain:.0f} x undefended, {whole / parts:.2f} x "
            f"its parts (double-backward {model / plain:.1f} x, D {judge / plain:.1f} x undefended each)",
            flush=True,
        )
        _learning(name, training, shape)


def _learning(name: str, training: EvaluatorTraining, shape: tuple[int, int, int]) -> None:
    """How well D predicts the share of noise in images that it has never seen; at the paper's size, how long it would learn."""
    if name == "paper":
        few, images = 3, torch.rand(128, *shape, generator=torch.Generator().manual_seed(0))
        taken = seconds(lambda: train(images, replace(training, steps=few))) / few
        print(f"    to train: {taken:.2f} s per step, {training.steps} steps, about {taken * training.steps / 3600:.1f} h")
        return
    for dataset in ("mnist", "fashion_mnist", "cifar10"):
        error = noise_error(load(ensure(dataset)), data.load(dataset).test.at(slice(0, 500))[0])
        print(f"    mean absolute error of the share of noise on {dataset}: {error:.3f} (goal {NOISE_GOAL})", flush=True)


def ways(options: argparse.Namespace) -> dict[str, Callable[[Step], object]]:
    """What to time, by name."""
    found: dict[str, Callable[[Step], object]] = {}
    for spec in [*sorted(client_defenses.DEFENSES), *NAMED]:
        defense = prepared(client_defenses.build(spec), "cifar10", "official")  # refiner needs its network

        def protect(step: Step, defense: client_defenses.Defense = defense) -> object:
            return defense.protect(step, Memory.fresh(0))

        found[spec] = protect
    found["clipped sum by layers"] = lambda step: per_example.by_layers(step, 1.0)
    found["clipped sum by vmap"] = lambda step: per_example.by_vmap(step, 1.0)
    if options.slow:
        found["soteria, one backward per neuron"] = soteria_loop
    wanted = [part for part in options.only.split(",") if part]
    return {name: way for name, way in found.items() if not wanted or any(part in name for part in wanted)}


def seconds(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="lenet")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", default="", help="names or parts of names, with commas")
    parser.add_argument("--slow", action="store_true", help="also Soteria as the original does it, and the sketch's accuracy")
    parser.add_argument("--parts", action="store_true", help="also FedEM and Refiner beside the passes that they are made of")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model = models.build(options.model, (3, 32, 32), 10)
    draw = torch.Generator().manual_seed(0)
    x = torch.rand(options.batch, 3, 32, 32, generator=draw)
    step = Step(models.parameters_of(model), model, x, torch.arange(options.batch) % 10)
    paper = dict(zip(THEIRS, TABLE_4.get(options.model.partition("(")[0], ()), strict=False))
    print(
        f"{options.model}, batch {options.batch}, {options.threads} thread(s), load {os.getloadavg()[0]:.1f} on "
        f"{os.cpu_count()} cores; median of {options.repeat}"
    )
    print(f"{'':30} {'seconds':>9} {'x undefended':>13}   {'Refiner, s':>10} {'x cheapest':>11}")
    step.gradient()
    for name, way in ways(options).items():
        plain, taken, result = [], [], object()
        try:
            for turn in range(options.repeat + (options.repeat > 1)):
                plain.append(seconds(step.gradient))
                started = time.perf_counter()
                result = way(step)
                taken.append(time.perf_counter() - started)
                if turn == 0 and options.repeat > 1:  # the first one warms up
                    plain, taken = [], []
        except ValueError as error:
            print(f"{name:30} not with this model: {str(error)[:110]}", flush=True)
            continue
        if result is None:
            print(f"{name:30} not with this model: a parameter of no layer", flush=True)
            continue
        ratio = median(t / p for t, p in zip(taken, plain, strict=True))
        theirs = f"{paper[name]:10.4f} {paper[name] / paper['quantize']:11.1f}" if name in paper else ""
        print(f"{name:30} {median(taken):9.4f} {ratio:13.2f}   {theirs}", flush=True)
    if paper:
        print(f"(Refiner itself there: {paper['refiner']:.4f} s, {paper['refiner'] / paper['quantize']:.1f} x its cheapest)")
    if options.slow:
        overlaps(step)
    if options.parts:
        fedem_parts(step, options.repeat)
        refiner_parts(step, options.repeat)


if __name__ == "__main__":
    main()
