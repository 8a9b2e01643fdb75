"""The bounds of a run: what is kept as bounds.json, and what it says in words."""

from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from fl_app.analysis.bounds.identifiability import Identifiability
from fl_app.analysis.bounds.information import Bayesian, Unbiased, psnr
from fl_app.analysis.bounds.layers import LayerRank, layer_sentences
from fl_app.analysis.bounds.robustness import Robustness
from fl_app.analysis.kept import Kept

CERTAIN = 0.999
"""A limit of success above which nothing is promised."""
At = Literal["true", "public"]
"""The examples at which an update is differentiated: those of the client, which only it and the judge of a simulation know,
or public ones of the same kind, which anybody can take."""


class TargetBounds(BaseModel):
    """The bounds for one update."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    round: int
    client: int
    examples: int
    batch: Identifiability
    """Of all examples together."""
    alone: Identifiability | None = None
    """Of the first example for somebody who knows the others, where there are others and this is quick."""
    unbiased: Unbiased | None = None
    bayesian: Bayesian | None = None
    seconds: float


class Bounds(Kept):
    """The bounds of a run, as in bounds.json."""

    file: ClassVar[str] = "bounds.json"
    command: ClassVar[str] = "bound"

    version: Literal[1] = 1
    at: At
    defense: str
    public: int
    """Examples of the test split by which the prior and the blind success rates were learned."""
    targets: list[TargetBounds]
    layers: list[LayerRank] = Field(default_factory=list)
    """What each layer tells of its input, for one example at initial weights: R-GAP's analysis."""
    smooth: bool
    """Whether the gradient moves without jumps, as the bounds from noise need."""
    no_noise: str = ""
    """Why there is no bound from the noise."""
    robustness: Robustness | None = None
    no_robustness: str = ""

    def bayesian_mse(self) -> float | None:
        """The least mean squared error that any attacker can have, as a mean over the targets."""
        found = [one.bayesian.mse for one in self.targets if one.bayesian]
        return sum(found) / len(found) if found else None

    def sentences(self) -> list[str]:
        """What they mean, one plain sentence each, with who is limited by it."""
        who = "the client's own examples" if self.at == "true" else "public examples"
        told = [f"Taken at {who}."]
        told += list(dict.fromkeys(one.batch.sentence() + "." for one in self.targets))
        told += list(
            dict.fromkeys(
                f"For somebody who knows the other {one.examples - 1} examples of the batch: {one.alone.sentence()}."
                for one in self.targets
                if one.alone
            )
        )
        told += layer_sentences(self.layers)
        if not self.smooth and not self.no_noise:
            told.append(
                "The model is not smooth (ReLU, max pooling): its gradient jumps, and what the jumps tell is not counted. The "
                "figures from noise are estimates here, no limits."
            )
        return told + self._of_noise() + self._of_privacy()

    def _of_noise(self) -> list[str]:
        if self.no_noise:
            return [f"No bound from noise: {self.no_noise}."]
        told = []
        plain = [one.unbiased for one in self.targets if one.unbiased]
        if any(one.mse is None for one in plain):
            told.append("Unbiased attackers: none has a finite error on every target.")
        elif plain:
            errors = [one.mse for one in plain if one.mse is not None]
            form = "" if all(one.whole for one in plain) else ", a weak form of it from the trace"
            told.append(
                f"Unbiased attackers, from one update: PSNR at most {psnr(min(errors)):.1f} dB at the most exposed target (of "
                f"the mean squared error{form}). This limits nobody who uses a prior."
            )
        least, bayesian = self.bayesian_mse(), [one.bayesian for one in self.targets if one.bayesian]
        if least is not None:
            blind = sum(one.blind for one in bayesian) / len(bayesian)
            told.append(
                "Every attacker, over images drawn from a Gaussian with the mean and covariance of their class, from one "
                f"update: PSNR at most {psnr(least):.1f} dB (of the mean squared error); {psnr(blind):.1f} dB without "
                "the update. Who knows more of images than that can do better on real ones."
            )
        return told

    def _of_privacy(self) -> list[str]:
        if self.robustness is None:
            return [f"No bound from differential privacy: {self.no_robustness}."]
        what = "all examples of a batch together" if self.robustness.whole_batch else "any one example"
        if all(one.one_update > CERTAIN for one in self.robustness.limits):
            mu = f"an example can move what is sent by {self.robustness.mu:g} standard deviations of the noise"
            return [f"Differential privacy promises nothing here against attacks on {what}: {mu}."]
        shares = []
        for one in self.robustness.limits:
            goal = "any success" if one.psnr is None else f"{one.psnr:g} dB"
            shares.append(f"{goal} {one.blind:.1%} -> {one.one_update:.1%}, {one.all_rounds:.1%}")
        return [
            f"Every attack on {what}, whatever it knows beside, by differential privacy: how often it succeeds at most, from "
            f"one update and from all rounds, where a blind guess does on the share before the arrow: {'; '.join(shares)}."
        ]
