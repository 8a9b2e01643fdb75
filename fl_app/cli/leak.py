"""`thorns list models --leak`: R-GAP's rank analysis of the registered models, or of one."""

from rich.console import Console
from rich.table import Table

from fl_app.core.spec import SpecError

CLASSES = 10
EXACT = 3200
"""Unknowns up to which the rank of a layer of one named model is computed: half a minute each."""


def print_leak(kind: str, name: str | None, shape: str) -> None:
    """A line per model, or per layer of the one that is named."""
    from fl_app import models
    from fl_app.analysis.bounds.layers import SMALL, LayerRank, layer_ranks, weakest

    if kind != "models":
        raise SpecError(f"--leak is for models, not for {kind}: thorns list models --leak")
    size = tuple(int(part) if part.strip().isdigit() else 0 for part in shape.split(","))
    if len(size) != 3 or not all(0 < side <= 4096 for side in size):
        raise SpecError(f"--shape must be channels, height and width, such as 3,32,32, not '{shape}'")

    def shown(one: LayerRank) -> tuple[str, ...]:
        rank = f"at most {one.known:,}" if one.rank is None else f"{one.rank:,}"
        closed = "no: a part of it cannot follow" if one.closed else "yes" if one.rank is not None else "by counting"
        return f"{one.equations:,}", f"{one.unknowns:,}", rank, closed

    console = Console()
    if name is not None:
        table = Table("layer", "equations", "unknowns", "rank", "gives its input away", box=None, header_style="bold")
        for one in layer_ranks(models.build(name, size, CLASSES), size, CLASSES, EXACT):
            table.add_row(one.layer, *shown(one))
    else:
        table = Table(
            "model", "layers", "do not", "the weakest", "equations", "unknowns", "rank", "", box=None, header_style="bold"
        )
        for model in sorted(set(models.MODELS) - set(models.TEXT)):  # an example here is an image
            try:
                ranks = layer_ranks(models.build(model, size, CLASSES), size, CLASSES, SMALL)
            except SpecError as error:
                table.add_row(model, str(error))
                continue
            closed, least = sum(one.closed for one in ranks), weakest(ranks)
            table.add_row(model, str(len(ranks)), str(closed), least.layer, *shown(least))
    console.print(table)
    console.print(
        "Equations of one example: a layer's weight gradient and its output, in its input. Where every layer gives its input"
        " away, one image follows from its gradient layer by layer (R-GAP), unless pooling lies between. See docs/exact.md.",
        highlight=False,
    )
