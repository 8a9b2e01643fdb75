"""`thorns list` and `thorns data`: what there is, and which data sets are here."""

import importlib
import inspect
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fl_app.cli.permissions import typed

# Heavy modules are imported inside the commands, so that --help answers at once.

data_app = typer.Typer(no_args_is_help=True, suggest_commands=False, help="Fetch data sets and see where they are.")
console = Console()
errors = Console(stderr=True)


class Kind(StrEnum):
    """What can be listed."""

    attacks = "attacks"
    defenses = "defenses"
    models = "models"
    datasets = "datasets"
    metrics = "metrics"
    partitions = "partitions"
    optimizers = "optimizers"
    engines = "engines"
    servers = "servers"
    settings = "settings"


PLUGGED = {
    Kind.attacks: "attack",
    Kind.defenses: "defense",
    Kind.models: "model",
    Kind.datasets: "data set",
    Kind.metrics: "metric",
}
"""What installed packages can add to, by the word that specs have for it."""


REGISTRIES = {
    Kind.attacks: ("adversary", "ATTACKS"),
    Kind.defenses: ("client_defenses", "DEFENSES"),
    Kind.models: ("fl_app.models", "MODELS"),
    Kind.datasets: ("fl_app.data", "DATASETS"),
    Kind.metrics: ("fl_app.scoring.metrics", "METRICS"),
    Kind.partitions: ("fl_app.data.partitions", "PARTITIONS"),
    Kind.optimizers: ("strategies.optimizers", "OPTIMIZERS"),
    Kind.servers: ("strategies.crafts", "CRAFTS"),
}
"""Modules by name: each is imported only when it is listed."""


def list_(
    kind: Annotated[Kind, typer.Argument(help="What to list.")],
    name: Annotated[
        str | None, typer.Argument(callback=typed, help="One of them: what its settings mean, may be and are.")
    ] = None,
    leak: Annotated[
        bool,
        typer.Option("--leak", help="Models: what the equations of each layer tell of one example, without an attack."),
    ] = False,
    shape: Annotated[str, typer.Option(help="With --leak: channels, height and width of an example.")] = "3,32,32",
) -> None:
    """List what a setting can be, one line each; with a name, the meaning, choices and default of its settings."""
    if leak:
        from fl_app.cli.leak import print_leak

        print_leak(kind.value, name, shape)
        return
    if name is not None:
        _explain(kind, name)
        return
    from fl_app import engines
    from fl_app.core import spec
    from fl_app.experiment.config import Experiment

    table = Table("name", "what it is", box=None, header_style="bold")
    if kind is Kind.metrics:
        for name, metric in _registry(kind).items():
            table.add_row(name, f"{metric.title}{f' in {metric.unit}' if metric.unit else ''}")
    elif kind is Kind.engines:
        for name, engine in engines.ENGINES.items():
            table.add_row(name, engine.about)
    elif kind is Kind.settings:
        table = Table("name", "default", "what it is", box=None, header_style="bold")
        for name, value in Experiment().run_config().items():
            table.add_row(name, repr(value), Experiment.model_fields[name.replace("-", "_")].description)
    else:
        for name, factory in _registry(kind).items():
            table.add_row(name, escape(spec.describe(factory)[1]))
    console.print(table)
    if kind in PLUGGED or kind in REGISTRIES:
        console.print(f"The settings of one of them: thorns list {kind.value} NAME", highlight=False)
    if kind in PLUGGED:
        _say_installed(PLUGGED[kind], _registry(kind))


def _registry(kind: Kind) -> Mapping[str, Any]:
    """What is registered of a kind."""
    module, name = REGISTRIES[kind]
    found: Mapping[str, Any] = getattr(importlib.import_module(module), name)
    return found


def _explain(kind: Kind, name: str) -> None:
    """Print one registered thing, or one plugged in, with its settings."""
    from fl_app.cli.explain import explain
    from fl_app.core import plugins, spec
    from fl_app.experiment.config import Experiment

    if kind is Kind.settings:
        settings = Experiment().run_config()
        if name not in settings:
            raise spec.SpecError(f"unknown setting '{name}'; {spec.suggest(name, settings)}")
        about = Experiment.model_fields[name.replace("-", "_")].description
        console.print(f"{name} = {settings[name]!r}: {about}", markup=False, highlight=False, soft_wrap=True)
        return
    if kind in (Kind.engines, Kind.metrics):
        raise spec.SpecError(f"{kind.value} have no settings: thorns list {kind.value} says what they are")
    registry, word = _registry(kind), PLUGGED.get(kind, kind.value.removesuffix("s"))
    factory: Any = registry.get(name) or (plugins.find(word, name) if kind in PLUGGED else None)
    if factory is None:
        raise spec.SpecError(f"unknown {word} '{name}'; {spec.suggest(name, registry)}")
    console.print(f"{name}: {inspect.getdoc(factory) or ''}", markup=False, highlight=False, soft_wrap=True)
    if kind is Kind.defenses:
        from adversary.informed import words

        console.print(f"An attacker who knows it: {words(factory)}", markup=False, highlight=False, soft_wrap=True)
    table = Table("setting", "default", "may be", "what it is", box=None, header_style="bold")
    found = explain(factory)
    for one in found:
        table.add_row(*map(escape, one))
    console.print(table if found else "It has no settings.")


def _say_installed(word: str, ours: Mapping[str, Any]) -> None:
    """What installed packages registered: each on a line, with its package, also if it cannot be used."""
    from fl_app.core import plugins, spec

    for name in sorted(plugins.registered(word)):
        package = " and ".join(plugins.packages(word, name))
        try:
            factory = None if name in ours else plugins.find(word, name)
            about = (
                "not used: one of ours has that name" if factory is None else "; ".join(filter(None, spec.describe(factory)))
            )
        except spec.SpecError as error:
            about = str(error)
        console.print(f"{name} [bold](from the package {package})[/bold]: {escape(about)}", highlight=False, soft_wrap=True)
    console.print(f"Your own {word} needs no place here: name it as module:Name (see docs/plugins.md)", highlight=False)


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

    for name, recipe in [(name, data.recipe_of(name)) for name in names]:
        with console.status(f"{recipe.key} ..."):
            data.load(name)  # one that is here may be damaged
        console.print(f"{recipe.key}: {data.cached_file(recipe)}", markup=False, soft_wrap=True)


@data_app.command("path")
def data_path(name: Annotated[str, typer.Argument(callback=typed, help="A data set.")]) -> None:
    """Say where a data set is kept, and where to put its files by hand."""
    from fl_app import data

    recipe = data.recipe_of(name)
    path = data.cached_file(recipe)
    console.print(str(path), soft_wrap=True)
    if not path.exists():
        errors.print(f"not there yet; files put into {data.cache_dir() / 'raw' / recipe.key} are used first", soft_wrap=True)
