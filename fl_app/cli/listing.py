"""`thorns list` and `thorns data`: what there is, and which data sets are here."""

from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fl_app.cli.permissions import typed

# Heavy modules are imported inside the commands, so that --help answers at once.

data_app = typer.Typer(no_args_is_help=True, help="Fetch data sets and see where they are.")
console = Console()
errors = Console(stderr=True)


class Kind(StrEnum):
    """What can be listed."""

    attacks = "attacks"
    defenses = "defenses"
    models = "models"
    datasets = "datasets"
    partitions = "partitions"
    optimizers = "optimizers"
    engines = "engines"
    settings = "settings"


def list_(kind: Annotated[Kind, typer.Argument(help="What to list.")]) -> None:
    """List what a setting can be, with its own settings and their defaults."""
    import adversary
    import client_defenses
    from adversary.adaptive import PAIRS
    from fl_app import engines, models
    from fl_app.core import spec
    from fl_app.data import DATASETS
    from fl_app.data.partitions import PARTITIONS
    from fl_app.experiment.config import Experiment
    from strategies.optimizers import OPTIMIZERS

    table = Table("name", "settings", "what it is", box=None, header_style="bold")
    registries: dict[Kind, Any] = {
        Kind.attacks: adversary.ATTACKS,
        Kind.defenses: client_defenses.DEFENSES,
        Kind.models: models.MODELS,
        Kind.datasets: DATASETS,
        Kind.partitions: PARTITIONS,
        Kind.optimizers: OPTIMIZERS,
    }
    if kind is Kind.defenses:
        table = Table("name", "what it is; its settings; what an attacker does who knows it", box=None, header_style="bold")
        for name, factory in client_defenses.DEFENSES.items():
            settings, words = spec.describe(factory)
            lines = [words, f"[dim]{escape(settings)}[/dim]", f"[italic]attacker: {PAIRS[name].why}[/italic]"]
            table.add_row(name, "\n".join(line for line in lines if line), end_section=True)
    elif kind in registries:
        for name, factory in registries[kind].items():
            table.add_row(name, *spec.describe(factory))
    elif kind is Kind.engines:
        for name, text in engines.ENGINES.items():
            table.add_row(name, "", text)
    else:
        table = Table("name", "default", "what it is", box=None, header_style="bold")
        for name, value in Experiment().run_config().items():
            table.add_row(name, repr(value), Experiment.model_fields[name.replace("-", "_")].description)
    console.print(table)


@data_app.command("list")
def data_list() -> None:
    """List the data sets and which of them are on this machine."""
    from fl_app import data
    from fl_app.core import spec

    table = Table("name", "here", "what it is", box=None, header_style="bold")
    for name, factory in data.DATASETS.items():
        needed = any(setting.required for setting in spec.settings_of(factory).values())
        here = "-" if needed else ("yes" if data.cached_file(data.recipe_of(name)).exists() else "no")
        table.add_row(name, here, spec.describe(factory)[1])
    console.print(table)
    console.print(f"Kept in {data.cache_dir()} (set THORNS_DATA to change it)", soft_wrap=True)


@data_app.command("get")
def data_get(
    names: Annotated[list[str], typer.Argument(callback=typed, help="Data sets, e.g. mnist or \"medmnist(kind='blood')\".")],
) -> None:
    """Fetch data sets from the first source that has them, and check them."""
    from fl_app import data

    for recipe in [data.recipe_of(name) for name in names]:
        with console.status(f"{recipe.key} ..."):
            path = data.fetch(recipe)
        console.print(f"{recipe.key}: {path}", soft_wrap=True)


@data_app.command("path")
def data_path(name: Annotated[str, typer.Argument(callback=typed, help="A data set.")]) -> None:
    """Say where a data set is kept, and where to put its files by hand."""
    from fl_app import data

    recipe = data.recipe_of(name)
    path = data.cached_file(recipe)
    console.print(str(path), soft_wrap=True)
    if not path.exists():
        errors.print(f"not there yet; files put into {data.cache_dir() / 'raw' / recipe.key} are used first", soft_wrap=True)
