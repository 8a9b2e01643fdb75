#!/usr/bin/env python
"""Accuracy against what an update says of attributes, properties and members, in the manner of Refiner's Figure 19.

    .venv/bin/python scripts/bench_attributes.py                       # rows: Titanic, an MLP, batches of 8
    .venv/bin/python scripts/bench_attributes.py --data digits         # images: MNIST, LeNet-5, batches of 1
    .venv/bin/python scripts/bench_attributes.py --defenses none "recup(attribute=sex, eps=1.0)"

Three seeds, FedSGD; the updates of some clients are kept in the first and the last round. Asked: an attribute (`attribute`:
the sex of each passenger given all else; whether a digit is odd, whether an object flies), whether a passenger embarked at
Queenstown (`property`), and who of some candidates was in the batch (`alignment`). Naive attackers know nothing of the defense;
informed ones pass what they try or learn from through it. No setting was chosen on these targets. ± is the half of the 95 %
interval over targets.
"""

import argparse
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

import adversary
import client_defenses
from adversary import Attack, AttackError, Belief, Facts, Public
from client_defenses import Memory
from client_defenses.tools.evaluator import EvaluatorError
from fl_app.core.local import Tensors, local_update
from fl_app.core.observation import Key, Knowledge, Observation, Task
from fl_app.core.seeds import derive
from fl_app.core.spec import text_of
from fl_app.experiment.assets import Assets, assets_of
from fl_app.experiment.candidates import public_examples
from fl_app.experiment.config import Experiment
from fl_app.experiment.evaluators import prepared
from fl_app.experiment.grants import candidates_of
from fl_app.experiment.truth import true_examples
from fl_app.experiment.utility import evaluate
from fl_app.models import parameters_of
from fl_app.scoring.membership import Believed
from fl_app.scoring.questions import question_of
from fl_app.scoring.score import summarize

SEEDS = (0, 1, 2)


@dataclass(frozen=True)
class Study:
    """What is trained, defended and asked."""

    dataset: str
    model: str
    rounds: int
    clients: int
    captured: int
    lr: float
    batch: int
    examples: int
    """Of a client."""
    attacks: Mapping[str, str]
    """By the measure that an attack is judged by."""
    hides: str
    """The attribute that RecUP-FL hides."""

    @property
    def defenses(self) -> tuple[str, ...]:
        """Whom it compares."""
        noisy = (f"dp_sgd(noise={noise})" for noise in (0.01, 0.1, 1.0))
        hiding = (f"recup(attribute={self.hides}, eps={eps})" for eps in (0.5, 2.0))
        return "none", "soteria", *hiding, "refiner", *noisy


def images(kind: str, column: str, rounds: int) -> Study:
    """One example per update: its attribute is asked for."""
    attacks = {"attribute_balanced": f"attribute(column={column}, batches=200)", "auc": "alignment"}
    return Study(f"attributed(kind='{kind}')", "lenet5", rounds, 16, 16, 0.02, 1, 60, attacks, column)


STUDIES = {
    "titanic": Study(
        "table(kind='titanic')",
        "mlp(hidden=[64, 32])",
        60,
        20,
        8,
        0.05,
        8,
        32,
        {
            "attribute_balanced": "attribute(column=sex)",
            "property_balanced": "property(column=embarked, value=Q)",
            "auc": "alignment",
        },
        "sex",
    ),
    "digits": images("digits", "odd", 200),
    "objects": images("objects", "flies", 80),
}


def trained(assets: Assets, study: Study) -> tuple[float, dict[Key, Observation]]:
    """(accuracy after the last round, what was kept of the first and the last round)."""
    experiment, model = assets.experiment, assets.model
    params: Tensors = parameters_of(model)
    weights = {name: value.clone().requires_grad_() for name, value in params.items()}
    server = torch.optim.SGD(list(weights.values()), lr=study.lr, momentum=0.9)
    kept: dict[Key, Observation] = {}
    for number in range(1, study.rounds + 1):
        total: Tensors = {}
        for client in range(study.clients):
            x, y = assets.batch(client, number)
            memory = Memory.fresh(derive(experiment.seed, "defense", client, number))
            update = local_update(
                model, params, x, y, experiment.rule, lambda step, own=memory: assets.defense.protect(step, own)
            )
            total = {name: total.get(name, 0) + value / study.clients for name, value in update.items()}
            if number in (1, study.rounds) and client < study.captured:
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
    for number in sorted({key[0] for key in kept}):
        own = {key: seen for key, seen in kept.items() if key[0] == number}
        first = next(iter(own.values()))
        ready = attack
        if attack.trained:
            ready = attack.taught(attack.learn(task, first, public, torch.Generator().manual_seed(number)))
        candidates = {key: candidates_of(assets, key, attack.question) for key in own}
        seen = [replace(one, knowledge=Knowledge(candidates=candidates[key])) for key, one in own.items()]
        answer = ready(seen, task, assets.experiment.seed)
        assert isinstance(answer, Belief)
        about = attack.question.partition(":")[2]
        for key, scores in zip(own, answer.scores, strict=True):
            found[key] = Believed(scores.double(), question.truth(assets, key, candidates[key], about))
    return found


def by_class(attack: Attack, assets: Assets, kept: Mapping[Key, Observation], public: Public) -> dict[Key, Believed]:
    """The value that goes best with the class, by public examples: what somebody says who knows the class and no more."""
    column, question = attack.question.partition(":")[2], question_of(attack.question)
    assert question is not None
    assert public.a is not None
    assert not hasattr(assets.space, "columns")
    place = [one.name for one in assets.space.attributes].index(column)  # type: ignore[attr-defined]
    a = public.a[:, place]
    found = {}
    for key in kept:
        asked = candidates_of(assets, key, attack.question)
        own = a[public.y == true_examples(assets, key[1], key[0])[1][0].cpu()]
        odds = own.bincount(minlength=len(asked.y)) / a.bincount(minlength=len(asked.y)).clamp_min(1)
        found[key] = Believed(odds.double(), question.truth(assets, key, asked, column))
    return found


def told(values: list[Any], measure: str) -> str:
    found = summarize(values, measure)
    if found.mean is None or found.low is None or found.high is None:
        return "-"
    return f"{found.mean:.2f} ± {(found.high - found.low) / 2:.2f}"


def equipped(defense: str, study: Study) -> str:
    """The spec with the public network or images that a run would make for it."""
    ready = prepared(client_defenses.build(defense), study.dataset)
    return text_of(ready, client_defenses.DEFENSES)


def line(defense: str, study: Study) -> None:
    """One defense over all seeds."""
    began, accuracies = time.perf_counter(), []
    believed: dict[str, dict[Any, Believed]] = {}
    lacking: dict[str, str] = {}
    ready = equipped(defense, study)
    for seed in SEEDS:
        assets = assets_of(
            Experiment(
                dataset=study.dataset,
                model=study.model,
                clients=study.clients,
                client_examples=study.examples,
                batch_size=study.batch,
                defense=ready,
                seed=seed,
            )
        )
        accuracy, kept = trained(assets, study)
        accuracies.append(accuracy)
        public = Public(*public_examples(assets))
        for measure, text in study.attacks.items():
            naive = adversary.build(text)
            attackers = {"naive": naive}
            for one in naive.informed(ready, Facts(examples=study.batch, public=len(public.y))):
                if one.attack is not None:
                    attackers["informed"] = one.attack
            for who, attack in attackers.items():
                try:
                    own = asked(attack, assets, kept, public)
                except (AttackError, EvaluatorError) as error:
                    lacking[f"{measure} {who}"] = str(error)
                    continue
                believed.setdefault(f"{measure} {who}", {}).update({(seed, *key): one for key, one in own.items()})
            if measure == "attribute_balanced" and defense == "none" and public.a is not None:
                own = by_class(naive, assets, kept, public)
                believed.setdefault(f"{measure} class", {}).update({(seed, *key): one for key, one in own.items()})
    words = [f"accuracy {sum(accuracies) / len(accuracies):.3f} ({min(accuracies):.3f} to {max(accuracies):.3f})"]
    for name, found in believed.items():
        measure, who = name.split()
        question = question_of(adversary.build(study.attacks[measure]).question)
        assert question is not None
        rows, floor = question.rows(found), question.floor(found)
        words.append(f"{measure} {who} {told(list(rows.values()), measure)} (floor {floor[measure]:.2f})")
    words += [f"{name}: {why}" for name, why in lacking.items()]
    print(f"{defense:34} " + "; ".join(words) + f"; {time.perf_counter() - began:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=list(STUDIES), default="titanic")
    parser.add_argument("--defenses", nargs="*", help="others than those of the study")
    options = parser.parse_args()
    torch.set_num_threads(1)
    study = STUDIES[options.data]
    for defense in options.defenses or study.defenses:
        try:
            line(defense, study)
        except (EvaluatorError, ValueError) as error:
            print(f"{defense:34} not possible: {error}", flush=True)


if __name__ == "__main__":
    main()
