"""Naive and informed attackers on the captures of a run: who takes part, and what each comes to."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from torch import nn

from adversary.adaptive import Informed, informed
from adversary.jobs import Key
from client_defenses import Chain, Defense
from client_defenses.evaluator import Training
from client_defenses.refiner import Refiner
from fl_app.assets import Assets, assets_of
from fl_app.attacking import Session
from fl_app.grants import parse_grants
from fl_app.local import Tensors
from fl_app.scoring.attacks import Scoring

AT_ONCE = 64
"""Targets that are attacked together."""
JUDGING = Training(seed=1)
"""Not the network that refiner works against: its robust data may fool that one."""


class Contender(NamedTuple):
    """An attack as it was asked for, or the same once it knows the defense."""

    session: Session
    scoring: Scoring


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


def worst(contenders: list[Contender], metric: str = "psnr") -> Contender | None:
    """The attacker who was worst for the defense, by the mean of a metric; None if nobody has one."""
    means = [(one, one.scoring.table()[0][1][metric].mean) for one in contenders]
    return max(((one, mean) for one, mean in means if mean is not None), key=lambda pair: pair[1], default=(None, 0.0))[0]


def scored(
    assets: Assets,
    session: Session,
    keys: list[Key],
    on_done: Callable[[], None] = lambda: None,
    *,
    perceptual: bool = True,
    judge: tuple[nn.Module, Tensors] | None = None,
    evaluator: Path | None = None,
    floors: bool = True,
) -> Scoring:
    """Hold the guesses of a session against the truth; its folder then has them as scores.jsonl."""
    found = Scoring(
        assets, session.folder, session.failures(), perceptual=perceptual, judge=judge, evaluator=evaluator, floors=floors
    )
    found.run(keys, on_done)
    return found
