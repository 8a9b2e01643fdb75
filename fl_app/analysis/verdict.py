"""What the numbers say in plain words: which settings hold, which fail, and what to be careful about."""

from collections.abc import Sequence
from typing import NamedTuple

from fl_app.analysis.measures import JUDGED, LIMITS, PSNR, SSIM
from fl_app.analysis.settings import Attacker, Setting, floors_of, mean
from fl_app.scoring.score import summarize

FEW_TARGETS = 8


class Verdict(NamedTuple):
    """Whether a setting holds, and by which measure and whom it fails."""

    word: str
    """'fails', 'holds', 'holds (naive only)' or 'not attacked'."""
    reasons: list[str]

    @property
    def fails(self) -> bool:
        """Whether an attacker got beyond a threshold."""
        return self.word == "fails"


def judge(setting: Setting) -> Verdict:
    """A setting fails if any attacker's mean is beyond any threshold of the Refiner paper."""
    reasons, attacked = [], False
    for measure in JUDGED:
        worst = setting.worst(measure)
        if worst is None:
            continue
        attacked, found = True, worst.summary(measure.key)
        if measure.leaked(found):
            sign = ">" if measure.higher_leaks else "<"
            reasons.append(f"{measure.title} {measure.text(found.mean)} {sign} {measure.threshold:g} ({worst.name})")
    if not attacked:
        return Verdict("not attacked", [])
    if reasons:
        return Verdict("fails", reasons)
    return Verdict("holds" if setting.informed or setting.undefended else "holds (naive only)", [])


def _accuracy(setting: Setting) -> str:
    value, kept = mean(list(setting.accuracies.values())), mean(list(setting.pmm.values()))
    if value is None:
        return "accuracy not measured"
    share = f", {kept:.0%} of the undefended" if kept is not None and not setting.undefended else ""
    return f"{value:.1%} accuracy{share}"


def _reach(attacker: Attacker) -> str:
    similarity = attacker.summary(SSIM.key).mean
    words = f"{PSNR.text(attacker.summary(PSNR.key).mean)} dB PSNR"
    return words + (f" (SSIM {SSIM.text(similarity)})" if similarity is not None else "")


def headline(settings: Sequence[Setting]) -> list[str]:
    """One or two sentences made from the numbers of comparable settings."""
    judged = [(setting, judge(setting)) for setting in settings]
    attacked = [(setting, verdict) for setting, verdict in judged if verdict.word != "not attacked"]
    if not attacked:
        trained = [setting for setting in settings if setting.accuracies]
        best = max(trained, key=lambda one: mean(list(one.accuracies.values())) or 0.0, default=None)
        return [f"No attack was scored. {best.label} reached {_accuracy(best)}." if best else "There are no results yet."]
    sentences = []
    for setting, verdict in attacked:
        worst = setting.worst()
        if worst is not None and (setting.undefended or len(attacked) == 1):
            words = "leaks" if verdict.fails else "stays within the limits"
            who = "Without a defense" if setting.undefended else f"With {setting.label}"
            limits = f" ({LIMITS})" if len(attacked) == 1 else ""
            sentences.append(
                f"{who} the worst attacker ({worst.name}) reaches {_reach(worst)} at {_accuracy(setting)}: it {words}{limits}."
            )
    defended = [pair for pair in attacked if not pair[0].undefended]
    if len(attacked) > 1 and defended:
        sentences.append(_defended(defended))
    return sentences


def _defended(judged: Sequence[tuple[Setting, Verdict]]) -> str:
    holding = [setting for setting, verdict in judged if not verdict.fails]
    failing = len(judged) - len(holding)
    if not holding:
        return f"All {failing} defended settings fail: the worst attacker on each gets beyond the limits ({LIMITS})."
    best = max(holding, key=lambda one: mean(list(one.accuracies.values())) or 0.0)
    worst = best.worst()
    reach = f"; the worst attacker ({worst.name}) reaches {_reach(worst)}" if worst else ""
    naive = " Nobody who knows this defense attacked it." if best.informed is None else ""
    return (
        f"{len(holding)} of {len(judged)} defended settings keep every attacker within the limits ({LIMITS}), "
        f"{failing} fail. Of those that hold, {best.label} keeps the most: {_accuracy(best)}{reach}.{naive}"
    )


def cautions(settings: Sequence[Setting]) -> list[str]:
    """Why the verdicts may say less than they seem to."""
    found = []
    for setting in settings:
        if setting.undefended and judge(setting).word.startswith("holds"):
            found.append(
                "Even undefended updates stay within the limits: these attacks are too weak here to show that a defense holds."
            )
    for measure in JUDGED:
        blind = {
            name: summarize([{measure.key: row.get(measure.key)} for row in rows], measure.key)
            for name, rows in floors_of(settings).items()
        }
        beyond = [f"{name} {measure.text(value.mean)}" for name, value in blind.items() if measure.leaked(value)]
        if beyond:
            found.append(
                f"Blind guesses are beyond the {measure.title} limit by themselves ({', '.join(beyond)}): "
                "it says little on these targets."
            )
    small = [one.summary(PSNR.key).n for setting in settings for one in setting.attackers]
    if small and min(small) < FEW_TARGETS:
        found.append(f"Some means are over no more than {min(small)} targets: see the intervals.")
    close = [setting.label for setting in settings if judge(setting).word.startswith("holds") and _close(setting)]
    if close:
        found.append(f"They hold on average, but the 95 % interval reaches beyond a limit: {'; '.join(close)}.")
    missing = [setting.label for setting in settings if judge(setting).word == "holds (naive only)"]
    if missing:
        found.append(f"Attacked only by those who know nothing of the defense: {'; '.join(missing)}.")
    return found


def _close(setting: Setting) -> bool:
    """Whether the interval of any attacker reaches beyond a threshold."""
    for measure in JUDGED:
        for one in setting.attackers:
            found = one.summary(measure.key)
            if measure.leaked(found._replace(mean=found.high if measure.higher_leaks else found.low)):
                return True
    return False
