"""What is searched: pixels, and whatever else stands for examples; pieces of `matching`, one file each."""

from collections.abc import Callable

from adversary.spaces.base import Parametrisation, Variables
from adversary.spaces.blended import Blended
from adversary.spaces.cells import Cells
from adversary.spaces.contrast import Contrast
from adversary.spaces.epochs import Epochs
from adversary.spaces.feature_maps import FeatureMaps
from adversary.spaces.gaussian import ClassGaussian
from adversary.spaces.generator_weights import GeneratorWeights
from adversary.spaces.latent import Latent
from adversary.spaces.lowres import LowResolution
from adversary.spaces.pixels import Pixels
from adversary.spaces.untrained import Untrained
from adversary.spaces.words import Words

SPACES: dict[str, Callable[..., Parametrisation]] = {
    "blended": Blended,
    "cells": Cells,
    "class_gaussian": ClassGaussian,
    "contrast": Contrast,
    "epochs": Epochs,
    "feature_maps": FeatureMaps,
    "generator_weights": GeneratorWeights,
    "latent": Latent,
    "lowres": LowResolution,
    "pixels": Pixels,
    "untrained": Untrained,
    "words": Words,
}

__all__ = [
    "SPACES",
    "Blended",
    "Cells",
    "ClassGaussian",
    "Contrast",
    "Epochs",
    "FeatureMaps",
    "GeneratorWeights",
    "Latent",
    "LowResolution",
    "Parametrisation",
    "Pixels",
    "Untrained",
    "Variables",
    "Words",
]
