"""`thorns check`: does a defense or an attack keep what every one of them promises?"""

from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from fl_app.cli.permissions import typed


def check(
    text: Annotated[
        str, typer.Argument(metavar="SPEC", callback=typed, help="A defense or an attack, e.g. my_module:MyDefense.")
    ],
) -> None:
    """Run the contracts of all defenses or attacks on one of them: exit 0 if it keeps them, 1 if not."""
    from fl_app.experiment.assets import use_threads

    console, failed = Console(), 0
    thing, contracts = _found(text)
    use_threads(1)
    for name, contract in contracts.items():
        reason = _broken(contract, thing)
        failed += bool(reason)
        line = f"[bold red]FAILED[/bold red] {name}: {escape(reason)}" if reason else f"[green]kept[/green]   {name}"
        console.print(line, highlight=False, soft_wrap=True)
    if failed:
        console.print(f"{failed} of {len(contracts)} contracts are broken", highlight=False)
        raise typer.Exit(1)


def _found(text: str) -> tuple[Any, Mapping[str, Callable[[Any], None]]]:
    """What a spec names, and the contracts of its kind: of attacks if it is one, else of defenses."""
    import adversary
    import adversary.contracts
    import client_defenses
    import client_defenses.contracts
    from fl_app.core import plugins, spec

    name = spec.parse(text)[0].name
    known = name in client_defenses.DEFENSES or name in plugins.registered("defense")
    ours = {*client_defenses.DEFENSES, *adversary.ATTACKS, *plugins.registered("defense"), *plugins.registered("attack")}
    if ":" not in name and name not in ours:
        raise spec.SpecError(f"unknown defense or attack '{name}'; {spec.suggest(name, ours)}")
    plugged = None if known or ":" not in name else plugins.find("defense or attack", name)
    is_attack = isinstance(plugged, type) and issubclass(plugged, adversary.Attack)
    if is_attack or (not known and (name in adversary.ATTACKS or name in plugins.registered("attack"))):
        return adversary.build(text), adversary.contracts.CONTRACTS
    return client_defenses.build(text), client_defenses.contracts.CONTRACTS


def _broken(contract: Callable[[Any], None], thing: Any) -> str:
    """Why a contract is not kept; empty if it is."""
    try:
        contract(thing)
    except AssertionError as error:
        return str(error)
    except Exception as error:  # their code may raise anything, and a warning that was made an error counts too
        return f"{type(error).__name__}: {' '.join(str(error).split())}"
    return ""
