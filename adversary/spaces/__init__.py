"""What is searched: pixels, and whatever else stands for examples; pieces of `matching`, one file each."""

from collections.abc import Callable

from adversary.spaces.base import Parametrisation, Variables
from adversary.spaces.pixels import Pixels

SPACES: dict[str, Callable[..., Parametrisation]] = {"pixels": Pixels}

__all__ = ["SPACES", "Parametrisation", "Pixels", "Variables"]
