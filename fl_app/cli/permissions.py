"""Which code from outside may be imported: what a person typed in a command, and what was allowed with `--allow`."""

from typing import Any, TypeVar

import click
from typer.core import TyperOption

from fl_app.core import plugins

T = TypeVar("T", bound=list[str] | str | None)


def typed(given: T) -> T:
    """Allow the code that is named in the specs that a person typed; what files name is not allowed by that."""
    _allow(given)
    return given


def assigned(given: list[str] | None) -> list[str] | None:
    """The same of `key=value`."""
    if given:
        from fl_app.experiment.config import SPECS
        from fl_app.experiment.toml import parse_assignment

        changes = [parse_assignment(text) for text in given]
        _allow([value for key, value in changes if key in SPECS])
    return given


def _allow(value: Any) -> None:
    if isinstance(value, str):
        plugins.allow(plugins.named_in(value))
    for inner in value if isinstance(value, list) else ():
        _allow(inner)


def with_allow(command: click.Command) -> click.Command:
    """Give a command and all of its own commands the option `--allow`, so that it may stand anywhere in a line."""
    option = TyperOption(
        param_decls=["--allow"],
        type=str,
        multiple=True,
        expose_value=False,
        metavar="MODULE:NAME",
        callback=lambda _context, _option, names: plugins.allow(names),
        help="Trust this code from outside Thorns, also if a file names it; may be repeated.",
    )
    command.params.append(option)
    for inner in command.commands.values() if isinstance(command, click.Group) else ():
        with_allow(inner)
    return command
