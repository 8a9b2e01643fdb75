"""Naive and informed attackers on the captures of a run: who takes part."""

from collections import Counter

import adversary
import client_defenses
from adversary import Facts, Informed
from client_defenses import Chain, Defense
from client_defenses.refiner import Refiner
from fl_app.attacking.session import Session
from fl_app.core.observation import Key
from fl_app.core.spec import text_of
from fl_app.experiment.config import Experiment
from fl_app.experiment.evaluators import prepared
from fl_app.experiment.grants import parse_grants

AT_ONCE = 64
"""Targets that are attacked together."""


def who_of(one: Informed) -> str:
    """What an informed attacker is called in results."""
    return f"informed: {one.name}" if one.name else "informed"


def sessions_of(asked: Session, keys: list[Key], *, informed: bool) -> list[Session]:
    """The attack as asked for, and beside it the informed ones, the strongest as measured first."""
    sessions = [asked]
    for one in informed_of(asked, keys) if informed else []:
        if one.attack is not None:
            asked.who = "naive"
            text, grants = adversary.text_of(one.attack), parse_grants([*asked.grants, *one.grants])
            told = Session(
                asked.run,
                text,
                grants,
                asked.worker,
                who=who_of(one),
                asked=asked.asked,
                threads=asked.threads,
                device=asked.experiment.device,
                candidates=asked.candidates_file,
            )
            sessions.append(told)
    return sessions


def informed_of(asked: Session, keys: list[Key]) -> list[Informed]:
    """What an attack becomes once it knows the defense of the run, also the variants that have nothing to work with."""
    facts = Facts(
        rounds=max(Counter(client for _, client in keys).values(), default=1),
        examples=asked.experiment.rule.num_examples,
        repeats="repeats" in asked.grants,
        evaluator=_evaluator(asked.assets.defense),
        public=len(asked.assets.splits.test),
    )
    return asked.built.informed(_equipped(asked.experiment), facts)


def _equipped(experiment: Experiment) -> str:
    """The spec of the clients' defense with the public networks and images that it needs, where it needs some."""
    plain = client_defenses.build(experiment.defense)
    ready = prepared(plain, experiment.dataset, experiment.split, model=experiment.model)
    if ready == plain:
        return experiment.defense
    parts = ready.parts if isinstance(ready, Chain) else (ready,)
    return " + ".join(text_of(part, client_defenses.DEFENSES) for part in parts)


def _evaluator(defense: Defense) -> str:
    """The evaluation network that the clients use, if they use one."""
    parts = defense.parts if isinstance(defense, Chain) else (defense,)
    return next((part.evaluator for part in parts if isinstance(part, Refiner)), "")
