"""`thorns new`: files for a defense or an attack of one's own that run as they are written."""

import importlib.util
import keyword
import os
import re
from pathlib import Path
from typing import Annotated

import typer

new_app = typer.Typer(
    no_args_is_help=True,
    suggest_commands=False,
    help="Begin a defense or an attack of your own: a file that runs, and its test.",
)
TEMPLATES = Path(__file__).parent / "templates"
Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of the file, without .py.")]


@new_app.command()
def defense(name: Name) -> None:
    """Write NAME.py, a defense that works, and test_NAME.py."""
    _write("defense", name, f'thorns compare "{name}:{_class_of(name)}"')


@new_app.command()
def attack(name: Name) -> None:
    """Write NAME.py, an attack that works, and test_NAME.py."""
    _write("attack", name, f'thorns compare none --attack "{name}:{_class_of(name)}"')


def _class_of(name: str) -> str:
    return "".join(word[:1].upper() + word[1:] for word in name.split("_"))


def _write(kind: str, name: str, use: str) -> None:
    """Write both files or none; nothing is overwritten, and no module that is there already is hidden by the new one."""
    from fl_app.store.files import write_atomic  # late: it imports torch

    if not re.fullmatch("[a-z][a-z0-9_]{,60}[a-z0-9]", name) or keyword.iskeyword(name):
        raise ValueError(
            f"{name!r} cannot be the name of a module: use up to 60 small letters, digits and _, such as my_{kind}"
        )
    files = {Path(f"{name}.py"): f"{kind}.txt", Path(f"test_{name}.py"): f"test_{kind}.txt"}
    for path in files:
        if os.path.lexists(path):
            raise ValueError(f"{path} is there already: choose another name")
    if importlib.util.find_spec(name) is not None:
        raise ValueError(f"there is a module {name} already, which would be found first: choose another name")
    for path, template in files.items():
        text = (TEMPLATES / template).read_text(encoding="utf-8")
        text = text.replace(f"My{kind.capitalize()}", _class_of(name)).replace(f"my_{kind}", name)
        write_atomic(path, text)
    for line in (f"wrote {' and '.join(map(str, files))}; now try", f"  thorns check {name}:{_class_of(name)}", f"  {use}"):
        typer.echo(line)
