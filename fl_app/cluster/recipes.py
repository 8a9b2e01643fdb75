"""What nodes are told of data sets that lie on this machine alone: somebody's own folders and files."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from fl_app import data
from fl_app.data.base import Arrays, DataError, Recipe


def absent(_folder: Path) -> Arrays:
    """Stands for reading what lies on another machine."""
    raise DataError("the data lies on the machine that asked for this work, and should have come from there")


def recipes_for(datasets: Iterable[str]) -> dict[str, Recipe]:
    """Spec -> recipe, of data sets that nobody can fetch; their arrays are in the cache, and travel from there."""
    found = {}
    for text in dict.fromkeys(datasets):
        recipe = data.recipe_of(text)
        if not recipe.sources:
            data.fetch(recipe)  # so that there is something to travel
            found[text] = replace(recipe, read=absent, vocabulary=None)
    return found
