"""Attackers on a setting, the targets of all seeds together, and which of them is the worst for the client."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from fl_app.analysis.results import AttackResult
from fl_app.scoring.base import Measure
from fl_app.scoring.score import Summary, summarize
from fl_app.scoring.target import Row, TargetScore

WORST_OF_ALL = "the worst of all attackers by each measure, the naive ones included: an informed one can ignore what it knows"
"""What the figures of 'informed' are, for legends."""


class Attacker:
    """One attacker, over one or more runs that differ in nothing but the seed."""

    def __init__(self, parts: Sequence[AttackResult]) -> None:
        self.parts = list(parts)
        first = parts[0]
        self.asked, self.attack, self.who, self.ledger = first.asked, first.attack, first.who, first.ledger
        self.by_truth = first.by_truth
        """Whether it is the worst member of an attack on each target, and not what the attack answered."""

    @property
    def informed(self) -> bool:
        """Whether it was told of the defense."""
        return self.who.startswith("informed")

    @property
    def name(self) -> str:
        """Who it is in a word or two, with the attack's name."""
        attack = self.asked.partition("(")[0]
        return attack if self.who == "attack" else f"{self.who}, {attack}"

    def members(self, metric: str) -> dict[str, int]:
        """Who the worst members were by a metric, and on how many targets, the most frequent first."""
        names = Counter(one.by_truth[metric].member for one in self.targets if metric in one.by_truth)
        return dict(names.most_common())

    @cached_property
    def targets(self) -> list[TargetScore]:
        """Every target that was attacked, failed ones included."""
        return [target for part in self.parts for target in part.targets]

    @property
    def visibility(self) -> str:
        """What the server saw: 'individual' updates or the 'aggregate'."""
        return next((one.visibility for one in self.targets if one.visibility), "individual")

    def summary(self, metric: str, server_round: int | None = None) -> Summary:
        """A metric over all targets, or over those of one round; failed targets are counted, not averaged."""
        chosen = [one for one in self.targets if server_round in (None, one.round)]
        return summarize([one.values if one.done else None for one in chosen], metric)

    @property
    def scored(self) -> set[str]:
        """The metrics that have a value on some target."""
        return {name for one in self.targets for name, value in one.values.items() if value is not None}

    def mean(self, metric: str) -> float | None:
        """The mean of a metric over all targets; None if no target has it."""
        return self.summary(metric).mean

    @property
    def controlled(self) -> bool:
        """Whether all that it draws looks like an example, so that it was also run on updates that say nothing."""
        return not self.by_truth and any(one.control for one in self.targets)

    def control(self, metric: str) -> Summary:
        """What the same attack reached by a metric on updates that say nothing; no mean if it needs no control."""
        return summarize([one.control for one in self.targets if one.done], metric)

    def told_by_updates(self, metric: str, measure: Measure) -> bool:
        """Whether what it reached is owed to the updates: more than its control, beyond the 95 % interval over targets."""
        pairs = [(one.values.get(metric), one.control.get(metric)) for one in self.targets if one.done and one.control]
        apart = [measure.leak(a) - measure.leak(b) for a, b in pairs if a is not None and b is not None]
        found = summarize([{metric: one} for one in apart], metric)
        least = found.mean if found.low is None else found.low
        return not self.controlled or (least is not None and least > 0)

    def leaks(self, metric: str, measure: Measure) -> bool:
        """Whether its mean is beyond the threshold, and owed to the updates."""
        mean = self.mean(metric)
        return mean is not None and measure.leaks(mean) and self.told_by_updates(metric, measure)

    @property
    def failed(self) -> int:
        """Targets that the attack could not do."""
        return sum(not one.done for one in self.targets)

    @property
    def rounds(self) -> list[int]:
        """The rounds of the targets."""
        return sorted({one.round for one in self.targets})

    @property
    def seconds(self) -> float | None:
        """Time of the attack in all; None if it was not taken."""
        times = [part.seconds for part in self.parts if part.seconds is not None]
        return sum(times) if times else None

    def floors(self) -> dict[str, list[Row]]:
        """The blind floors on the same targets."""
        found: dict[str, list[Row]] = {}
        for part in self.parts:
            for name, rows in part.floors.items():
                found.setdefault(name, []).extend(rows)
        return found


def attackers_of(attacks: Iterable[AttackResult]) -> list[Attacker]:
    """The attackers behind some results, those who were told nothing first; behind one with members, the worst of them."""
    found: dict[tuple[object, ...], list[AttackResult]] = {}
    for attack in (view for one in attacks for view in one.views):
        found.setdefault((attack.asked, attack.who, attack.grants), []).append(attack)
    return sorted((Attacker(parts) for parts in found.values()), key=lambda one: one.informed)


def worst(attackers: Iterable[Attacker], metric: str, measure: Measure, server_round: int | None = None) -> Attacker | None:
    """The attacker to whom most is leaked by the mean of a metric, over all rounds or in one; None if nobody has one."""
    means = [(one.summary(metric, server_round).mean, one) for one in attackers]
    reached = [(measure.leak(mean), one) for mean, one in means if mean is not None]
    return max(reached, key=lambda pair: pair[0])[1] if reached else None


def worst_naive(attackers: Iterable[Attacker], metric: str, measure: Measure) -> Attacker | None:
    """The worst of those who were told nothing of the defense."""
    return worst([one for one in attackers if not one.informed], metric, measure)


def worst_informed(attackers: Sequence[Attacker], metric: str, measure: Measure) -> Attacker | None:
    """The worst of all if somebody knew the defense, else None: an informed attacker can always ignore what it knows."""
    told = worst([one for one in attackers if one.informed], metric, measure)
    return None if told is None else worst(attackers, metric, measure)


def in_words(found: Mapping[str, Attacker | None]) -> str:
    """Who it was, by the titles of measures: one name, and those who differ by another measure."""
    known = {title: one for title, one in found.items() if one is not None}
    first = next(iter(known.values()), None)
    if first is None:
        return "-"
    others = [f"by {title} {one.who}" for title, one in known.items() if one is not first]
    return "; ".join([first.who, *others])
