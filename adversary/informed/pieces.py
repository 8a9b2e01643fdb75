"""The pieces of `matching` that know a defense, by the names that they have in specs."""

from collections.abc import Callable

from adversary.informed.bido import Penalised
from adversary.informed.cells import Grid, Pruned, Signs
from adversary.informed.drop_fedsgd import Dropped, KeptOrDropped
from adversary.informed.expected import Expected
from adversary.informed.fedem import Common, Replay
from adversary.informed.gradient_dropout import Mixture
from adversary.informed.latent_perturbation import MeanLatent, ReadFeatures
from adversary.informed.ldpm import OneRow
from adversary.informed.noise import NoiseLaw
from adversary.informed.refiner import NoiseShare, Unblend
from adversary.objectives import Objective
from adversary.priors import Prior
from adversary.search.observers import Observer

OBSERVERS: dict[str, Callable[..., Observer]] = {
    "common": Common,
    "dropped": Dropped,
    "expected": Expected,
    "mean_latent": MeanLatent,
    "penalised": Penalised,
    "read_features": ReadFeatures,
    "replay": Replay,
    "unblend": Unblend,
}
OBJECTIVES: dict[str, Callable[..., Objective]] = {
    "grid": Grid,
    "kept_or_dropped": KeptOrDropped,
    "mixture": Mixture,
    "noise_law": NoiseLaw,
    "one_row": OneRow,
    "pruned": Pruned,
    "signs": Signs,
}
PRIORS: dict[str, Callable[..., Prior]] = {"noise": NoiseShare}
