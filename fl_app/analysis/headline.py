"""What the numbers say in plain words: which settings hold, which fail, and what to be careful about."""

from collections.abc import Sequence

from fl_app.analysis.attackers import Attacker
from fl_app.analysis.conditions import Condition, floors_of, mean
from fl_app.analysis.limits import in_words, limits_of, of_examples
from fl_app.analysis.verdict import UNDECIDED, Verdict, nearly_fails, verdict_of
from fl_app.scoring.metrics import METRICS
from fl_app.scoring.score import summarize

FEW_TARGETS = 8


def _accuracy(condition: Condition) -> str:
    value, kept = mean(list(condition.accuracies.values())), mean(list(condition.pmm.values()))
    if value is None:
        return "accuracy not measured"
    share = f", {kept:.0%} of the undefended" if kept is not None and not condition.undefended else ""
    return f"{value:.1%} accuracy{share}"


def _reach(condition: Condition, attacker: Attacker) -> str:
    similarity, answered = attacker.mean("ssim"), condition.answered() if attacker.by_truth else None
    leading = condition.leading
    measure = condition.measures[leading]
    reached = f"{measure.text(attacker.mean(leading))} {measure.unit}".rstrip()
    words = f"{reached} {measure.title}"
    own = [f"SSIM {METRICS['ssim'].text(similarity)}"] * (similarity is not None)
    own += [f"the answers {measure.text(answered.mean(leading))} {measure.unit}".rstrip()] if answered is not None else []
    return words + (f" ({'; '.join(own)})" if own else "")


def headline(conditions: Sequence[Condition]) -> list[str]:
    """One or two sentences made from the numbers of comparable conditions."""
    judged = [(one, verdict_of(one)) for one in conditions]
    attacked = [(one, verdict) for one, verdict in judged if verdict.word != "not attacked"]
    if not attacked:
        trained = [one for one in conditions if one.accuracies]
        best = max(trained, key=lambda one: mean(list(one.accuracies.values())) or 0.0, default=None)
        nothing = "No reconstruction was scored." if any(one.attackers for one in conditions) else "No attack was scored."
        return [f"{nothing} {best.label} reached {_accuracy(best)}." if best else "There are no results yet."]
    limits = in_words(of_examples(limits_of(conditions[0].measures), [one.leading for one, _ in attacked]))
    sentences = []
    for one, verdict in attacked:
        worst = one.worst()
        if worst is not None and (one.undefended or len(attacked) == 1):
            words = "leaks" if verdict.fails else "stays within the limits"
            words += f", which is {verdict.words}" * (verdict.word == UNDECIDED)
            who = "Without a defense" if one.undefended else f"With {one.label}"
            shown = f" ({limits})" if len(attacked) == 1 else ""
            sentences.append(
                f"{who} the worst attacker ({worst.name}) reaches {_reach(one, worst)} at {_accuracy(one)}: it {words}{shown}."
            )
    defended = [pair for pair in attacked if not pair[0].undefended]
    if len(attacked) > 1 and defended:
        sentences.append(_defended(defended, limits))
    return [*sentences[:-1], *(f"{one} {_batch_sizes(conditions)}".rstrip() for one in sentences[-1:])]


def _batch_sizes(conditions: Sequence[Condition]) -> str:
    """Said where accuracy and leakage are not of the same batch size: larger batches leak less."""
    pairs = [one.batch_sizes for one in conditions]
    if all(trained == attacked or not trained or not attacked for trained, attacked in pairs):
        return ""
    trained, attacked = (", ".join(map(str, sorted(set().union(*sizes)))) for sizes in zip(*pairs, strict=True))
    return f"Accuracy is that of batch size {trained}, leakage that of batch size {attacked}."


def _defended(judged: Sequence[tuple[Condition, Verdict]], limits: str) -> str:
    holding = [one for one, verdict in judged if verdict.holds]
    failing = sum(verdict.fails for _, verdict in judged)
    open_ = len(judged) - len(holding) - failing
    undecided = f", {open_} cannot be decided, as the attacks are too weak" if open_ else ""
    if failing == len(judged):
        return f"All {failing} defended settings fail: the worst attacker on each gets beyond the limits ({limits})."
    if not holding:
        return f"Of {len(judged)} defended settings none is shown to hold: {failing} fail the limits ({limits}){undecided}."
    best = max(holding, key=lambda one: mean(list(one.accuracies.values())) or 0.0)
    worst = best.worst()
    reach = f"; the worst attacker ({worst.name}) reaches {_reach(best, worst)}" if worst else ""
    naive = " No informed attacker has tried it." if best.informed() is None else ""
    return (
        f"{len(holding)} of {len(judged)} defended settings keep every attacker within the limits ({limits}), "
        f"{failing} fail{undecided}. Of those that hold, {best.label} keeps the most: {_accuracy(best)}{reach}.{naive}"
    )


def cautions(conditions: Sequence[Condition]) -> list[str]:
    """Why the verdicts may say less than they seem to."""
    found, verdicts = [], [(one, verdict_of(one)) for one in conditions]
    for one, verdict in verdicts:
        if one.undefended and not verdict.fails and verdict.word != "not attacked":
            found.append(
                "Even undefended updates stay within the limits: these attacks are too weak here to show that a defense holds."
            )
    runs = [run for one in conditions for cell in one.cells for run in (cell.attacked, cell.training) if run is not None]
    found += [said for said in dict.fromkeys(run.experiment.warning for run in runs) if said]
    found += _blind(conditions)
    if len({cell.seed for one in conditions for cell in one.cells}) == 1 and any(one.attackers for one in conditions):
        found.append(
            "All of this is one seed: one start of the network, one draw of clients, batches and noise. Intervals are over "
            "targets alone; small differences, in accuracy above all, may be chance."
        )
    if verdicts and all(one.plain is None for one in conditions) and any(verdict.holds for _, verdict in verdicts):
        found.append("No undefended setting was attacked beside these: whether the attacks are strong enough is not known.")
    small = [n for one in conditions for attacker in one.attackers if (n := attacker.summary(one.leading).n)]
    if small and min(small) < FEW_TARGETS:
        found.append(f"Some means are over no more than {min(small)} targets: see the intervals.")
    close = [one.label for one, verdict in verdicts if verdict.holds and nearly_fails(one)]
    if close:
        found.append(f"They hold on average, but the 95 % interval reaches beyond a limit: {'; '.join(close)}.")
    missing = [one.label for one, verdict in verdicts if verdict.word == "holds (naive only)"]
    if missing:
        found.append(f"Attacked by naive attackers alone: {'; '.join(missing)}.")
    return found


def _blind(conditions: Sequence[Condition]) -> list[str]:
    """Limits that say little, as blind floors are beyond them."""
    floors, found = floors_of(conditions), []
    for metric, measure in conditions[0].measures.items() if conditions else ():
        means = {name: summarize(rows, metric).mean for name, rows in floors.items()}
        beyond = [f"{name} {measure.text(value)}" for name, value in means.items() if measure.leaks(value)]
        if beyond:
            found.append(
                f"Blind floors are beyond the {measure.title} limit by themselves ({', '.join(beyond)}): "
                "it says little on these targets."
            )
    return found
