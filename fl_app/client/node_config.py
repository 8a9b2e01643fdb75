"""A client's node config: what `--node-config` says in a line or a TOML file, and a file to begin with."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fl_app.experiment.toml import ConfigError, Value, load_toml, parse_assignment

WORD = re.compile(r"""([A-Za-z][A-Za-z0-9_-]*=(?:'[^']*'|"[^"]*"|[^\s'"]+))(?:\s+|$)""")
TEMPLATE = """# What client {client} decides itself; the server can neither read nor change it (docs/security.md):
# thorns deploy client --superlink HOST:9092 --root-certificates ca.crt --key client-{client} --node-config client-{client}.toml
partition-id = {client}
num-partitions = {clients}
# Its own images, a folder for each class of the run's data set; without this, a share of the run's data set.
# dataset = "imagefolder(path='/srv/images', size=28, grey=True)"
# What is applied to every update, whatever the run says ...
# defense = "dp_sgd(clip=1.0, noise=1.0)"
# ... or the least that a run must apply.
# demand = "dp_sgd(clip=1.0, noise=1.0)"
# No update of fewer examples leaves.
# min-examples = 16
# What to do about weights that look crafted: "warn" (as without this line), "refuse" or "off", with limits by name ...
# guard = "refuse(solo=0.4)"
# ... architectures that may be sent, by semicolons; and whether the server is told which check refused.
# models = "lenet5; resnet18(norm='group')"
# guard-says-why = true
# Made at first use; without it, draws come from the operating system and cannot be repeated.
# secret-seed-file = "secret-seed-{client}"
# The clients' common key (thorns deploy encryption-key, by one of them); with it, only encrypted runs are answered.
# encryption-key-file = "encryption.key"
"""


def read_node_config(text: str) -> dict[str, Value]:
    """The settings in `key=value key="a text"`, or in the TOML file of that name; ConfigError if a part is neither."""
    if text.strip().endswith(".toml"):
        found = load_toml(Path(text.strip()).expanduser())
    else:
        left, found = text.strip(), dict[str, Any]()
        while left:
            word = WORD.match(left)
            if word is None:
                raise ConfigError(f"--node-config: {left!r} is not of the form key=value; a value with spaces is in quotes")
            key, value = parse_assignment(word[1])
            found[key], left = value, left[word.end() :]
    for key, value in found.items():
        if not isinstance(value, bool | int | float | str):
            raise ConfigError(f"--node-config: {key} is not a single value")
    return found


def check_place(node_config: Mapping[str, Value]) -> None:
    """Refuse a node config that does not say which client of how many this is."""
    client, clients = (node_config.get(key) for key in ("partition-id", "num-partitions"))
    if type(client) is not int or type(clients) is not int or not 0 <= client < clients:
        raise ConfigError(
            "the node config says which client this is: partition-id=N and num-partitions=M, N from 0 to M - 1, not "
            f"partition-id={client!r} and num-partitions={clients!r}"
        )
