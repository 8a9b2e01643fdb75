#!/usr/bin/env python
"""Accuracy against what an update says of attributes, properties and members (in the manner of Refiner's Figure 19), Titanic.

    .venv/bin/python scripts/bench_attributes.py
    .venv/bin/python scripts/bench_attributes.py --defenses none "recup(attribute=sex, eps=1.0)"

Three seeds; 20 clients with an MLP, batches of 8, FedSGD. The updates of 8 clients are kept in the first and the last round.
Asked: the sex of each passenger of a batch, given all else (`attribute`); whether one embarked at Queenstown (`property`); who
of some candidates was in the batch (`alignment`). Naive attackers know nothing of the defense; informed ones pass what they try
through it. No setting was chosen on these targets. ± is the half of the 95 % interval over targets.
"""

import argparse
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

import adversary
from adversary import Attack, AttackError, Belief, Facts, Public
from client_defenses import Memory
from client_defenses.tools.evaluator import EvaluatorError
from fl_app.core.local import Tensors, local_update
from fl_app.core.observation import Key, Knowledge, Observation, Task
from fl_app.core.seeds import derive
from fl_app.experiment.assets import Assets, assets_of
from fl_app.experiment.candidates import public_examples
from fl_app.experiment.config import Experiment
from fl_app.experiment.grants import candidates_of
from fl_app.experiment.utility import evaluate
from fl_app.models import parameters_of
from fl_app.scoring.membership import Believed
from fl_app.scoring.questions import question_of
from fl_app.scoring.score import summarize

SEEDS = (0, 1, 2)
ROUNDS, CLIENTS, CAPTURED, LR = 60, 20, 8, 0.05
DEFENSES = (
    "none",
    "soteria",
    "refiner",
    "recup(attribute=sex, eps=0.5)",
    "recup(attribute=sex, eps=2.0)",
    "dp_sgd(noise=0.01)",
    "dp_sgd(noise=0.1)",
    "dp_sgd(noise=1.0)",
)
MODEL = "mlp(hidden=[64, 32])"
ATTACKS = {
    "attribute_balanced": "attribute(column=sex)",
    "property_balanced": "property(column=embarked, value=Q)",
    "auc": "alignment",
}
"""The measure that an attack is judged by."""


def trained(assets: Assets) -> tuple[float, dict[Key, Observation]]:
    """(accuracy after the last round, what was kept of the first and the last round)."""
    experiment, model = assets.experiment, assets.model
    params: Tensors = parameters_of(model)
    weights = {name: value.clone().requires_grad_() for name, value in params.items()}
    server = torch.optim.SGD(list(weights.values()), lr=LR, momentum=0.9)
    kept: dict[Key, Observation] = {}
    for number in range(1, ROUNDS + 1):
        total: Tensors = {}
        for client in range(CLIENTS):
            x, y = assets.batch(client, number)
            memory = Memory.fresh(derive(experiment.seed, "defense", client, number))
            update = local_update(
                model, params, x, y, experiment.rule, lambda step, own=memory: assets.defense.protect(step, own)
            )
            total = {name: total.get(name, 0) + value / CLIENTS for name, value in update.items()}
            if number in (1, ROUNDS) and client < CAPTURED:
                kept[number, client] = Observation(
                    params=params, update=update, rule=experiment.rule, num_examples=len(y), server_round=number, client=client
                )
        for name, value in weights.items():
            value.grad = total[name]
        server.step()
        params = {name: value.detach().clone() for name, value in weights.items()}
    return evaluate(model, params, assets.splits.test, assets.num_classes).accuracy, kept


def asked(attack: Attack, assets: Assets, kept: Mapping[Key, Observation], public: Public) -> dict[Key, Believed]:
    """What an attack believes of the targets, beside the truth."""
    task = Task(assets.model, assets.space, assets.num_classes)
    question = question_of(attack.question)
    assert question is not None
    found = {}
    for number in (1, ROUNDS):
        own = {key: seen for key, seen in kept.items() if key[0] == number}
        first = next(iter(own.values()))
        ready = attack
        if attack.trained:
            ready = attack.taught(attack.learn(task, first, public, torch.Generator().manual_seed(number)))
        candidates = {key: candidates_of(assets, key, attack.question) for key in own}
        seen = [replace(one, knowledge=Knowledge(candidates=candidates[key])) for key, one in own.items()]
        answer = ready(seen, task, assets.experiment.seed)
        assert isinstance(answer, Belief)
        for key, scores in zip(own, answer.scores, strict=True):
            found[key] = Believed(scores.double(), question.truth(assets, key, candidates[key]))
    return found


def told(values: list[Any], measure: str) -> str:
    found = summarize(values, measure)
    if found.mean is None or found.low is None or found.high is None:
        return "-"
    return f"{found.mean:.2f} ± {(found.high - found.low) / 2:.2f}"


def line(defense: str) -> None:
    """One defense over all seeds."""
    began, accuracies = time.perf_counter(), []
    believed: dict[str, dict[Any, Believed]] = {}
    lacking: dict[str, str] = {}
    for seed in SEEDS:
        assets = assets_of(
            Experiment(
                dataset="table(kind='titanic')",
                model=MODEL,
                clients=CLIENTS,
                client_examples=32,
                batch_size=8,
                defense=defense,
                seed=seed,
            )
        )
        accuracy, kept = trained(assets)
        accuracies.append(accuracy)
        public = Public(*public_examples(assets))
        for measure, text in ATTACKS.items():
            naive = adversary.build(text)
            attackers = {"naive": naive}
            for one in naive.informed(defense, Facts(examples=8, public=len(public.y))):
                if one.attack is not None:
                    attackers["informed"] = one.attack
            for who, attack in attackers.items():
                try:
                    own = asked(attack, assets, kept, public)
                except (AttackError, EvaluatorError) as error:
                    lacking[f"{measure} {who}"] = str(error)
                    continue
                believed.setdefault(f"{measure} {who}", {}).update({(seed, *key): one for key, one in own.items()})
    words = [f"accuracy {sum(accuracies) / len(accuracies):.3f} ({min(accuracies):.3f} to {max(accuracies):.3f})"]
    for name, found in believed.items():
        measure, who = name.split()
        question = question_of(adversary.build(ATTACKS[measure]).question)
        assert question is not None
        rows, floor = question.rows(found), question.floor(found)
        words.append(f"{measure} {who} {told(list(rows.values()), measure)} (floor {floor[measure]:.2f})")
    words += [f"{name}: {why}" for name, why in lacking.items()]
    print(f"{defense:34} " + "; ".join(words) + f"; {time.perf_counter() - began:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--defenses", nargs="*", default=DEFENSES)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for defense in options.defenses:
        try:
            line(defense)
        except (EvaluatorError, ValueError) as error:
            print(f"{defense:34} not possible: {error}", flush=True)


if __name__ == "__main__":
    main()
