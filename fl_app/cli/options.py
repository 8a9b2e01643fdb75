"""Options that several commands have in common."""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from fl_app.cli.permissions import assigned, typed
from fl_app.cluster.connect import knock
from fl_app.core.machine import name_cluster

ANOTHER_APP = "captures of another app: add --model MODULE:FUNCTION"


def only_for(what: str, options: Mapping[str, object]) -> None:
    """Refuse options that would be ignored: those in use that are for something else than what is asked for."""
    for name, value in options.items():
        if value:
            raise ValueError(f"{name} is for {what}")


class Place(StrEnum):
    """Where attacks run."""

    inline = "inline"
    ray = "ray"


class Device(StrEnum):
    """Where attacks compute."""

    cpu = "cpu"
    cuda = "cuda"
    auto = "auto"


def _cluster(address: str) -> str:
    """Have all that uses Ray use this cluster, if anybody answers there."""
    if address:
        knock(address)
        name_cluster(address)
    return address


ClusterOption = Annotated[
    str,
    typer.Option(
        "--cluster",
        metavar="ADDRESS",
        callback=_cluster,
        help="Work on this Ray cluster: ray://HOST:PORT, HOST:PORT or auto; as THORNS_RAY_ADDRESS.",
    ),
]
Settings = Annotated[
    list[str] | None, typer.Option("-c", "--set", metavar="KEY=VALUE", callback=assigned, help="Change a setting.")
]
Config = Annotated[Path | None, typer.Option(metavar="FILE", help="Settings from a TOML file; -c comes on top.")]
Resume = Annotated[Path | None, typer.Option(metavar="DIR", help="Go on with the run in this directory.")]
Attacks = Annotated[
    list[str] | None, typer.Option("--attack", metavar="SPEC", callback=typed, help="An attack; may be repeated.")
]
Metrics = Annotated[
    list[str] | None,
    typer.Option("--metric", metavar="MODULE:NAME", callback=typed, help="Score your own metric too; may be repeated."),
]

Model = Annotated[str | None, typer.Option(metavar="MODULE:FUNCTION", help="Captures of another app: its model.")]
InputShape = Annotated[str, typer.Option(metavar="1,8,8", help="With --model: the shape of an input.")]
VocabularyOption = Annotated[
    str, typer.Option("--vocabulary", metavar="NUMBER|FILE", help="With --model: of text, its tokens, or how many there are.")
]
Classes = Annotated[int, typer.Option(min=2, help="With --model: the number of classes.")]
Mean = Annotated[str, typer.Option(help="With --model: what the app subtracts from its inputs, by channel.")]
Std = Annotated[str, typer.Option(help="With --model: what it then divides them by.")]
DeviceOption = Annotated[
    Device | None, typer.Option("--device", help="Where attacks compute; default: where the run did, else the CPU.")
]
Protection = Annotated[
    str | None, typer.Option(metavar="SPEC", callback=typed, help="With --model: the clients' defense, for informed attackers.")
]
