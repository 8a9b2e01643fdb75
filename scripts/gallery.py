#!/usr/bin/env python
"""Pictures of what leaks from larger models: ConvNet-64 and ResNet-18 with Sigmoid on CIFAR-10, batch 1 and 8.

.venv/bin/python scripts/gallery.py [--iterations 900] [--out docs/pictures]
"""

import argparse
import time
from pathlib import Path

import torch

import adversary
from fl_app import data, models
from fl_app.core.local import LocalRule, local_update
from fl_app.core.observation import Knowledge, Observation, Task
from fl_app.core.space import Images
from fl_app.scoring.grids import save_grid
from fl_app.scoring.images import psnr
from fl_app.scoring.matching import match

CASES = {
    "convnet64-batch1": ("convnet(norm='none')", 1, 4),
    # Without a norm, sigmoids flatten the signal until the gradient hardly depends on the pixels: 16 dB, a blur.
    "resnet18-sigmoid-batch1": ("resnet18(activation='sigmoid', norm='batch')", 1, 2),
    "convnet64-batch8": ("convnet(norm='none')", 8, 1),
    "resnet18-sigmoid-batch8": ("resnet18(activation='sigmoid', norm='batch')", 8, 1),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=900)
    parser.add_argument("--out", type=Path, default=Path("docs/pictures"))
    parser.add_argument("--only", choices=CASES)
    parser.add_argument("--number", type=int, default=0, help="targets; 0: as many as the case names")
    parser.add_argument("--attack", default="inverting_gradients(tv=1e-4, labels='given', iterations={iterations})")
    options = parser.parse_args()
    source = data.load("cifar10")
    for name in [options.only] if options.only else CASES:
        text, batch, number = CASES[name]
        number = options.number or number
        model = models.build(text, source.input_shape, 10, seed=1, normalize=(source.mean, source.std))
        params = models.parameters_of(model)
        rule = LocalRule(batch_size=batch)
        x, y = source.test.at(slice(0, batch * number))
        x, y = x.view(number, batch, *x.shape[1:]), y.view(number, batch)
        seen = [
            Observation(
                params=params,
                update=local_update(model, params, a, b, rule),
                rule=rule,
                num_examples=batch,
                server_round=1,
                client=client,
                knowledge=Knowledge(labels=b),
            )
            for client, (a, b) in enumerate(zip(x, y, strict=True))
        ]
        began = time.perf_counter()
        attack = adversary.build(options.attack.format(iterations=options.iterations))
        guess = attack(seen, Task(model, Images(source.input_shape), 10), seed=0)
        matched = torch.cat([g[match(g, t)] for g, t in zip(guess.x, x, strict=True)])
        save_grid(
            options.out / f"{name}.png",
            x.flatten(0, 1),
            {"inverting_gradients": matched},
            [str(c) for c in y.flatten().tolist()],
        )
        quality = ", ".join(f"{value:.1f}" for value in psnr(matched, x.flatten(0, 1)).tolist())
        print(f"{name}: PSNR {quality} dB in {time.perf_counter() - began:.0f} s (labels granted)", flush=True)


if __name__ == "__main__":
    main()
