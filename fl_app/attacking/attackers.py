"""Naive and informed attackers on the captures of a run: who takes part."""

from collections import Counter

from adversary.adaptive import Informed, informed
from client_defenses import Chain, Defense
from client_defenses.refiner import Refiner
from fl_app.attacking.session import Session
from fl_app.core.observation import Key
from fl_app.experiment.assets import assets_of
from fl_app.experiment.grants import parse_grants

AT_ONCE = 64
"""Targets that are attacked together."""


def sessions_of(asked: Session, keys: list[Key], *, adaptive: bool) -> list[Session]:
    """The attack as asked for, and beside it the attackers who know the defense, the strongest as measured first."""
    sessions = [asked]
    for one in informed_of(asked, keys) if adaptive else []:
        if one.attack is not None:
            asked.who, who = "naive", f"adaptive: {one.name}" if one.name else "adaptive"
            grants = parse_grants([*asked.grants, *one.grants])
            told = Session(asked.run, one.attack, grants, asked.worker, who=who, asked=asked.attack, threads=asked.threads)
            sessions.append(told)
    return sessions


def informed_of(asked: Session, keys: list[Key]) -> list[Informed]:
    """What an attack becomes once it knows the defense of the run, also the variants that have nothing to work with."""
    return informed(
        asked.attack,
        asked.experiment.defense,
        repeats="repeats" in asked.grants,
        rounds=max(Counter(client for _, client in keys).values(), default=1),
        examples=asked.experiment.rule.num_examples,
        evaluator=_evaluator(assets_of(asked.experiment).defense),
    )


def _evaluator(defense: Defense) -> str:
    """The file of the evaluation network that the clients use, if they use one."""
    parts = defense.parts if isinstance(defense, Chain) else (defense,)
    return next((part.evaluator for part in parts if isinstance(part, Refiner)), "")
