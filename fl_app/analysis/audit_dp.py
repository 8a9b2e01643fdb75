"""An audit of a defense's epsilon by canaries: what is kept as audit-dp.json, and what it says in words."""

import math
from typing import Annotated, ClassVar, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from client_defenses.tools.accounting import epsilon
from fl_app.analysis.canaries import Stage, many_canaries, one_canary
from fl_app.analysis.kept import Kept
from fl_app.experiment.assets import Assets, assets_of
from fl_app.experiment.fingerprint import check_data
from fl_app.experiment.runs import experiment_of
from fl_app.scoring.epsilon import from_errors, from_errors_gaussian, from_guesses
from fl_app.store.files import RunError
from fl_app.store.runs import RunDir

LEAST_TRIALS = 100
OTHERS = 4
"""The most examples of a client beside the canaries: they are known to the auditor, so that more only take time."""


class CanaryAudit(BaseModel):
    """What the auditor's lower bound is, beside the accountant's upper one for the same releases."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["per round", "one run"]
    releases: int
    """Updates in which a canary takes part."""
    trials: int
    """Releases with or without the one canary, or canaries of one run."""
    right: int
    """Of the scored trials or guesses, those that were right."""
    scored: int
    lower: float
    """Epsilon that is refuted whatever the mechanism is."""
    lower_gaussian: float | None = None
    """Epsilon that is refuted if the noise is Gaussian."""
    upper: float
    """The accountant's."""

    @property
    def empirical(self) -> float:
        """The largest lower bound."""
        return max(self.lower, self.lower_gaussian or 0.0)

    def sentence(self) -> str:
        """The audit in words."""
        how = "canaries in one run" if self.kind == "one run" else "releases with or without a canary"
        gaussian = "" if self.lower_gaussian is None else f" ({self.lower_gaussian:.2f} as the noise is Gaussian)"
        verdict = "REFUTED: it does not keep its promise" if self.empirical > self.upper else "not refuted"
        return (
            f"{self.trials} {how}, {self.releases} release{'s' * (self.releases > 1)} of an example: epsilon is at least "
            f"{self.lower:.2f}{gaussian}; the accountant says at most {self.upper:.2f}: {verdict}"
        )


class Audit(Kept):
    """The audits of a run's defense, as in audit-dp.json."""

    file: ClassVar[str] = "audit-dp.json"
    command: ClassVar[str] = "audit-dp"

    version: Literal[1] = 1
    defense: str
    delta: float
    confidence: float
    audits: Annotated[list[CanaryAudit], Field(min_length=1)]

    @property
    def refuted(self) -> bool:
        """Whether a lower bound is above the accountant's upper one."""
        return any(one.empirical > one.upper for one in self.audits)

    @property
    def empirical(self) -> float:
        """The largest lower bound of all audits."""
        return max(one.empirical for one in self.audits)

    def sentences(self) -> list[str]:
        """What was found, one plain sentence each."""
        head = f"Canary audit of {self.defense} at delta {self.delta:g}, each bound with {self.confidence:.0%} confidence:"
        return [head, *(one.sentence() + "." for one in self.audits)]


class Effort(NamedTuple):
    """How much is tried: releases with or without one canary, canaries in one run of some rounds, and the confidence."""

    trials: int = 2000
    canaries: int = 200
    rounds: int = 1
    confidence: float = 0.99
    seed: int = 0


def audit_run(run: RunDir, effort: Effort) -> Audit:
    """Audit the defense of a run on its network and a client's examples; ValueError if it promises no epsilon."""
    experiment = experiment_of(run)
    check_data(run.path, experiment)
    assets = assets_of(experiment)
    delta = experiment.delta or 1e-5
    epsilon(assets.defense, examples=1, batch_size=1, steps=0, delta=delta)  # refuses a defense that promises none
    return audit(_stage(run, assets), experiment.defense, delta, effort)


def audit(stage: Stage, name: str, delta: float, effort: Effort) -> Audit:
    """Audit a defense where it stands: by one canary in many releases, and by many in one run."""

    def upper(releases: int) -> float:
        return epsilon(stage.defense, examples=1, batch_size=1, steps=releases, delta=delta).as_drawn

    trials, canaries, rounds, confidence, seed = effort
    if 0 < trials < LEAST_TRIALS:
        raise ValueError(f"{trials} releases refute nothing: take at least {LEAST_TRIALS}")
    if not math.isfinite(upper(1)):
        raise ValueError(f"{name} adds no noise: there is no epsilon to audit")
    found = []
    if trials:
        tried = one_canary(stage, trials, delta, confidence, seed)
        errors = tried.errors_gaussian
        scored = errors.out + errors.in_
        found.append(
            CanaryAudit(
                kind="per round",
                releases=1,
                trials=trials,
                right=scored - errors.false_positives - errors.false_negatives,
                scored=scored,
                lower=from_errors(tried.errors, delta, confidence),
                lower_gaussian=from_errors_gaussian(errors, delta, confidence),
                upper=upper(1),
            )
        )
    law = stage.defense.noise_law()
    if canaries and law is not None and law.summed:
        ran = many_canaries(stage, canaries, rounds, delta, confidence, seed)
        lower = from_guesses(ran.canaries, ran.guesses, ran.right, delta, confidence)
        found.append(
            CanaryAudit(
                kind="one run",
                releases=rounds,
                trials=ran.canaries,
                right=ran.right,
                scored=ran.guesses,
                lower=lower,
                upper=upper(rounds),
            )
        )
    if not found:
        raise ValueError("there is nothing to audit by: ask for --trials, or for --canaries of a defense with noise on a sum")
    return Audit(defense=name, delta=delta, confidence=confidence, audits=found)


def _stage(run: RunDir, assets: Assets) -> Stage:
    """The network of a run with its last weights, and some examples of its first client."""
    kept = run.load_checkpoint()
    params = kept.weights if kept is not None else dict(assets.model.named_parameters())
    if not all(bool(value.isfinite().all()) for value in params.values()):
        raise RunError(f"{run.path} ended with weights that are not finite: there is nothing to audit at")
    x, y = assets.splits.train.at(assets.shares[0][:OTHERS])
    model = assets.model.to("cpu")
    return Stage(model, {name: value.detach().cpu() for name, value in params.items()}, x, y, assets.defense)
