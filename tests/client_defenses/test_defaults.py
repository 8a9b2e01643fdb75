"""The settings that a name alone stands for: results that are published depend on each of them."""

import dataclasses

import pytest

from client_defenses import DEFENSES
from client_defenses.tools.evaluator import EvaluatorTraining
from fl_app.core.local import LocalRule
from strategies.optimizers import OPTIMIZERS

DEFAULTS = {
    "bido": {"lambda_x": 0.1, "lambda_y": 2.0, "layers": "auto", "kernel": "linear", "sigma": 5.0, "normalized": True},
    "dp_gaussian": {"scale": 0.01, "clip": 1.0},
    "dp_laplace": {"scale": 0.01, "clip": 1.0},
    "dp_sgd": {"clip": 1.0, "noise": 1.0},
    "drop_fedsgd": {"p": 0.05, "clip": 1.0, "sigma": 0.01},
    "fedem": {
        "rho_min": 0.0,
        "rho_max": 8 / 255,
        "steps": 15,
        "alpha": 0.1,
        "lr": 0.1,
        "scope": "client",
        "batches": 0,
        "fused": False,
    },
    "gradient_dropout": {"p": 0.9, "sigma": 0.005},
    "instahide": {"k": 4, "c1": 0.65, "center": "mean", "flip": True},
    "latent_perturbation": {
        "alpha": 1.0,
        "noise": "fixed",
        "mu": 1.0,
        "sigma": 0.1,
        "layer": "auto",
        "over": "batch",
        "decoder_lr": 1e-3,
        "pretrain_epochs": 10,
        "pretrain_lr": 1e-3,
        "pretrain_batch": 128,
    },
    "ldpm": {"clip": 1.0, "noise": 5e-4},
    "mask": {"ratio": 0.25},
    "mixup": {"alpha": 1.0},
    "none": {},
    "ppfa": {"budget": 0.995},
    "prune": {"memory": False, "ratio": 0.9, "scope": "global"},
    "quantize": {"memory": False, "bits": 8, "stochastic": False},
    "recup": {"eps": 0.5, "attribute": "", "models": 4, "steps": 10, "block": (0, 0), "bank": "", "alike": 8},
    "refiner": {
        "alpha": 0.5,
        "beta": 1.0,
        "iterations": 10,
        "warm_iterations": 5,
        "tau": 0.95,
        "eps": None,
        "lr": 1.0,
        "backtrack": True,
        "relative": False,
        "remember": None,
        "evaluator": "",
    },
    "sign": {"memory": False, "scale": "mean"},
    "soteria": {"ratio": 0.6, "layer": "auto", "masks": "sample", "variant": "original", "probes": 64, "scale": 5e-4},
}


@pytest.mark.parametrize("name", DEFENSES)
def test_a_name_alone_stands_for_these_settings(name):
    assert dataclasses.asdict(DEFENSES[name]()) == DEFAULTS[name]


def test_the_settings_of_training():
    assert dataclasses.asdict(OPTIMIZERS["sgd"]()) == {
        "lr": 0.1,
        "drop_at": (),
        "drop": 0.1,
        "momentum": 0.0,
        "weight_decay": 0.0,
    }
    assert dataclasses.asdict(OPTIMIZERS["adam"]()) == {
        "lr": 1e-3,
        "drop_at": (),
        "drop": 0.1,
        "beta1": 0.9,
        "beta2": 0.999,
    }
    assert LocalRule(batch_size=4) == LocalRule(
        kind="gradient", batch_size=4, steps=1, lr=1.0, examples=0, optimizer="sgd", momentum=0.0, weight_decay=0.0
    )
    assert EvaluatorTraining() == EvaluatorTraining(
        width=32, steps=1500, batch_size=128, lr=3e-3, decay=True, levels=11, stark=0.2, seed=0
    )
