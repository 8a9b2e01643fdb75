"""What can be known of a plan before its first unit: whether data is there, defenses fit their models, grants are true."""

from collections.abc import Callable
from typing import TypeVar

import adversary
import client_defenses
from client_defenses import Chain, Defense, Memory
from client_defenses.refiner import Refiner
from fl_app import data, models
from fl_app.attacking.generators import prepared as in_generator
from fl_app.cluster.connect import on_cluster
from fl_app.core.errors import told
from fl_app.core.local import Step
from fl_app.experiment.assets import assets_of, device_of
from fl_app.experiment.config import Experiment
from fl_app.experiment.evaluators import JUDGING, ensure, prepared
from fl_app.experiment.grants import examples_repeat
from fl_app.experiment.limits import check_limits
from fl_app.experiment.toml import ConfigError
from fl_app.models import parameters_of
from fl_app.scoring.base import Unavailable
from fl_app.scoring.perceptual import BACKBONES, fetch_backbone
from fl_app.sweeps.plan import Plan

FEW = 4
T = TypeVar("T")


def check(plan: Plan, source: str, *, fetch: bool) -> list[str]:
    """Try each defense on a few examples of its data set, and each grant; what was not checked, in words.

    Without `fetch` nothing is downloaded: a data set that is not there leaves its cells unchecked.
    """
    unchecked: list[str] = []
    tried: set[tuple[str, str, bool, str, str]] = set()
    for unit in plan.units:
        experiment = unit.experiment
        what = (experiment.dataset, experiment.model, experiment.normalize, experiment.defense, experiment.server)
        if what in tried:
            continue
        tried.add(what)
        if not on_cluster():  # there each node has devices of its own
            _named(source, device_of, experiment.device)
        recipe = _named(source, data.recipe_of, experiment.dataset)
        if not fetch and recipe.sources and not data.cached_file(recipe).exists():
            unchecked.append(f"{experiment.dataset} is not here yet, so nothing was tried on it")
            continue
        _named(source, check_limits, experiment)
        try:
            _try(experiment)
        except Exception as error:  # whatever a model and a defense together raise is what a person has to know
            why = f"defense = {experiment.defense!r} does not work with model = {experiment.model!r} on {experiment.dataset}"
            raise ConfigError(f"{source}: {why}: {told(error)}") from error
    for unit in plan.units if not unchecked else []:
        _named(source, check_limits, unit.experiment)
        if unit.attacking:
            _named(source, adversary.build(unit.attacking.attack).fits, data.load(unit.experiment.dataset).space)
    for cell in plan.cells if not unchecked else []:
        if any(unit.attacking and "repeats" in unit.attacking.grants for unit in cell.attacks):
            _named(f"{source}, cell {cell.name}", examples_repeat, assets_of(cell.attacked.experiment), -1)
    return list(dict.fromkeys(unchecked))


def _named(where: str, test: Callable[..., T], *what: object) -> T:
    """Make a test; its complaint comes with where it is about."""
    try:
        return test(*what)
    except (ValueError, RuntimeError) as error:
        raise ConfigError(f"{where}: {error}") from None


def _try(experiment: Experiment) -> None:
    """One protected gradient of a few examples."""
    dataset = data.load(experiment.dataset)
    defense = client_defenses.build(experiment.defense).within(dataset.space)
    normalize = (dataset.mean, dataset.std) if experiment.normalize else None
    model = models.build(
        experiment.model, dataset.input_shape, dataset.num_classes, normalize=normalize, front=experiment.front
    )
    experiment.craft.fits(model)
    if _waits(defense):
        return  # its evaluation network takes a minute to train
    step = Step(parameters_of(model), model, *dataset.train.at(slice(0, min(FEW, experiment.batch_size))))
    memory = Memory.fresh(0)
    defense.on_start(step, memory)
    defense.protect(step, memory)


def _waits(defense: Defense) -> bool:
    parts = defense.parts if isinstance(defense, Chain) else (defense,)
    return any(isinstance(part, Refiner) and not part.evaluator for part in parts)


def prepare(plan: Plan, say: Callable[[str], None]) -> None:
    """Fetch and train here, once, what every worker would else fetch and train for itself."""
    experiments, attacked = [unit.experiment for unit in plan.units], any(unit.attacking for unit in plan.units)
    for dataset, split in sorted({(one.dataset, one.split) for one in experiments}):
        data.load(dataset)
        if attacked and plan.sweep.noise_ratio:
            ensure(dataset, split=split, training=JUDGING)
    for defense, dataset, split, model in sorted({(one.defense, one.dataset, one.split, one.model) for one in experiments}):
        prepared(client_defenses.build(defense), dataset, split, model=model)
    for unit in plan.units:
        if unit.attacking:
            in_generator(adversary.build(unit.attacking.attack), unit.experiment)
    if attacked and plan.sweep.lpips:
        try:
            for net in BACKBONES:
                fetch_backbone(net)
        except Unavailable as reason:
            say(f"LPIPS is unavailable: {reason}")
