#!/usr/bin/env python
"""Flower's quickstart for PyTorch: its network, SGD with momentum 0.9, two local steps on one CIFAR-10 image a client.

    .venv/bin/python scripts/bench_quickstart.py                                  # 16 images of the test set, four networks
    .venv/bin/python scripts/bench_quickstart.py --attack "peeling(public=True)"    # given 4,000 images of the training set
    .venv/bin/python scripts/bench_quickstart.py --attack "inverting_gradients(iterations=1000)"

An auditor knows the rule, the weights before and the update; labels are inferred. Settings of `peeling` were chosen on images
of the training set. How well a rule explains an update says `thorns fit-rule`.
"""

import argparse
import time

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import adversary
from fl_app import data
from fl_app.core.local import LocalRule, local_update
from fl_app.core.observation import Observation, Task
from fl_app.core.space import Images
from fl_app.scoring.images import psnr, ssim

RULE = LocalRule(kind="delta", batch_size=1, steps=2, lr=0.1, examples=1, momentum=0.9)


class Net(nn.Module):
    """The network of PyTorch's 60-minute tutorial, which Flower's quickstart trains; inputs in [0, 1] are normalised first."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2, self.pool = nn.Conv2d(3, 6, 5), nn.Conv2d(6, 16, 5), nn.MaxPool2d(2, 2)
        self.fc1, self.fc2, self.fc3 = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, 3, 32, 32) in [0, 1] -> (batch, 10)."""
        x = self.pool(F.relu(self.conv1((x - 0.5) / 0.5)))
        x = self.pool(F.relu(self.conv2(x))).flatten(1)
        result: Tensor = self.fc3(F.relu(self.fc2(F.relu(self.fc1(x)))))
        return result


def targets(split: str, first: int, number: int, network: int) -> tuple[Tensor, Tensor, list[Observation], Task]:
    """First-round updates of clients with one image each: (x, y, observations, task)."""
    torch.manual_seed(network)
    model = Net()
    params = {name: value.detach().clone() for name, value in model.named_parameters()}
    x, y = getattr(data.load("cifar10"), split).at(slice(first, first + number))
    seen = [
        Observation(
            params=params,
            update=local_update(model, params, x[i : i + 1], y[i : i + 1], RULE),
            rule=RULE,
            num_examples=1,
            server_round=1,
            client=i,
        )
        for i in range(number)
    ]
    return x, y, seen, Task(model, Images((3, 32, 32)), 10)


def main() -> None:
    """Attack, and say how well."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attack", default="peeling")
    parser.add_argument("--split", default="test", choices=("train", "test"), help="settings are chosen on train")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--images", type=int, default=4, help="per network")
    parser.add_argument("--networks", type=int, default=4)
    parser.add_argument("--public", type=int, default=4000, help="training images that an attack with public=True learns from")
    parser.add_argument("--threads", type=int, default=1)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    quality, likeness, labels = [], [], []
    for network in range(asked.networks):
        x, y, seen, task = targets(asked.split, asked.first + network * asked.images, asked.images, network)
        began = time.perf_counter()
        attack = adversary.build(asked.attack)
        if attack.trained:
            public = adversary.Public(*data.load("cifar10").train.at(slice(10_000, 10_000 + asked.public)))
            attack = attack.taught(attack.learn(task, seen[0], public, torch.Generator().manual_seed(0)))
        guess = attack(seen, task, 0)
        assert isinstance(guess, adversary.Guess)
        found = psnr(guess.x[:, 0], x)
        quality.append(found)
        likeness.append(ssim(guess.x[:, 0], x))
        labels.append((guess.y[:, 0] == y).float())
        shown = ", ".join(f"{value:.1f}" for value in found.tolist())
        print(f"network {network}: {shown} dB; {time.perf_counter() - began:.0f} s", flush=True)
    values, alike, right = torch.cat(quality), torch.cat(likeness), torch.cat(labels)
    half = 1.96 * values.std().item() / len(values) ** 0.5
    print(
        f"{asked.attack}: PSNR {values.mean():.2f} ± {half:.2f} dB over {len(values)} images (median {values.median():.2f}, "
        f"{(values >= 20).float().mean():.0%} at 20 dB or more), SSIM {alike.mean():.3f}, labels {right.mean():.0%}"
    )


if __name__ == "__main__":
    main()
