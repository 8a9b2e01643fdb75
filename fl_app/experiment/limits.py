"""Bounds of settings that follow from the data and from this machine's memory, checked before anything large is made."""

from functools import lru_cache

from fl_app import data, models
from fl_app.core.machine import gigabytes, memory
from fl_app.data.partitions import check_partition
from fl_app.data.splits import training_examples
from fl_app.experiment.config import Experiment
from fl_app.experiment.toml import ConfigError
from strategies.ckks import MOST_BYTES, ciphertexts, tenseal

FLOAT = 4
"""Bytes of a float32."""
COPIES = 6
"""How often a server holds a model at least: weights, what is published of them, mean, its gradient, two moments."""

MESSAGE = 2**31 - 2**20
"""Bytes of weights that a message of gRPC can hold, beside what else is in it: Protobuf counts its length in 31 bits."""


_size_of = lru_cache(maxsize=64)(models.size_of)  # a sweep asks for the same few models again and again


def check_limits(experiment: Experiment) -> None:
    """Refuse settings beyond what the data set has or this machine can hold; loads the data set and makes nothing else."""
    dataset = data.load(experiment.dataset)
    examples = training_examples(dataset, experiment.split)
    for name in ("clients", "client_examples", "batch_size", "local_examples"):
        value = getattr(experiment, name)
        if value > examples:
            told = name.replace("_", "-")
            raise ConfigError(
                f"{told}={value} is more than the {examples} training examples of {experiment.dataset}: lower {told}"
            )
    check_partition(experiment.partition, experiment.clients, examples)
    pixels = FLOAT * dataset.train.x[0].numel()
    _fits("the examples of a client's round", min(experiment.rule.num_examples, examples) * pixels, "lower batch-size")
    parameters = _size_of(experiment.model, dataset.input_shape, dataset.num_classes, experiment.front)
    size = f"model={experiment.model} with its {parameters:,} parameters"
    _fits(size, COPIES * FLOAT * parameters, "take a smaller model")
    asked = max(experiment.min_clients, round(experiment.fraction * experiment.clients))
    _fits(f"the {asked} replies of a round", (COPIES + asked) * FLOAT * parameters, "lower clients or fraction")
    if experiment.protocol == "encrypted":
        tenseal()  # says now if it is missing
        sealed = (asked + 2) * ciphertexts(parameters) * MOST_BYTES
        _fits(f"the {asked} encrypted replies of a round", sealed, "lower clients or fraction, or take a smaller model")


def check_message(experiment: Experiment) -> None:
    """Refuse a model whose weights do not fit into one message over the network."""
    shape, classes = data.load(experiment.dataset).input_shape, data.load(experiment.dataset).num_classes
    size = FLOAT * _size_of(experiment.model, shape, classes, experiment.front)
    if size > MESSAGE:
        raise ConfigError(
            f"the weights of model={experiment.model} take {gigabytes(size)}, and a message over gRPC holds 2 GB: "
            "take a smaller model, or simulate with thorns run"
        )


def _fits(what: str, size: int, advice: str) -> None:
    if size > memory():
        raise ConfigError(f"{what} would take {gigabytes(size)}, and this machine has {gigabytes(memory())}: {advice}")
