"""`thorns fit-rule`: which local rule explains the captured updates of somebody's own app."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from fl_app.cli.options import Classes, DeviceOption, InputShape, Mean, Std, VocabularyOption

# Heavy modules are imported inside the command, so that --help answers at once.

console = Console()


def fit_rule(
    captures: Annotated[Path, typer.Argument(metavar="DIR", help="Captures of another app, as Curious wrote them.")],
    model: Annotated[str, typer.Option(metavar="MODULE:FUNCTION", help="The app's model.")],
    truth: Annotated[Path, typer.Option(metavar="FILE", help="What the clients used, as for the gate.")],
    input_shape: InputShape = "",
    vocabulary: VocabularyOption = "",
    classes: Classes = 10,
    mean: Mean = "",
    std: Std = "",
    save: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write the captures there with the fitted rule, for thorns attack.")
    ] = None,
    device: DeviceOption = None,
) -> None:
    """Find the rule (kind, optimizer, steps, learning rate, momentum, weight decay) that explains an app's updates."""
    from fl_app.analysis.app_truth import UNEXPLAINED, check_numbers, read_pairs
    from fl_app.analysis.fit_rule import fit, save_with
    from fl_app.attacking.audit import captures_in, task_of
    from fl_app.experiment.assets import device_of

    task = task_of(model, input_shape, classes, mean, std, vocabulary)
    place = device_of(device.value if device else "cpu")
    seen = captures_in(captures)
    if save is not None and save.exists():
        raise ValueError(f"{save} is there already: name a new folder with --save")
    pairs, built = read_pairs(truth, seen, task), task.build().model
    check_numbers(truth, pairs)
    with console.status("trying rules"):
        found = fit(built, pairs, place)
    table = Table("relative error", "rule", box=None, header_style="bold")
    for one in found[:4]:
        table.add_row(f"{one.error:.2g}", one.rule.code())
    console.print(table, soft_wrap=True)
    best = found[0]
    if not best.error <= UNEXPLAINED:
        console.print(
            f"No rule explains the updates (the best leaves {best.error:.2g}): check the truth, --mean and --std; a shuffled "
            "order over several batches, dropout or a defense cannot be fitted",
            highlight=False,
            soft_wrap=True,
        )
        raise typer.Exit(1)
    console.print(f"Give this to Curious: {best.rule.code()}", highlight=False, soft_wrap=True)
    if save is not None:
        odd = save_with(seen, save, best.rule)
        console.print(f"The captures with this rule: {save}", markup=False, highlight=False, soft_wrap=True)
        for name in odd:
            console.print(f"{name}: its steps do not follow from its examples, so its rule is as it was", soft_wrap=True)
