"""Every function of a malicious server's craft and of its read-out gives what it gave.

After a change that is meant: scripts/keep_traces.py, and the difference of tests/golden/traces says what changed.
"""

import pytest

import adversary
from fl_app.core.local import LocalRule
from helpers import crafted_scenes as crafted
from helpers.traces import check, traced

DELTA = LocalRule(kind="delta", batch_size=2, steps=2, lr=0.01)
CRAFTED = {
    "imprint": ("imprint", lambda: crafted.seen_by("imprint", [crafted.images()], bins=12)),
    "imprint-sparse": ("imprint", lambda: crafted.seen_by("imprint", [crafted.images()], bins=12, sparse=True, views=1)),
    "imprint-steps": ("imprint", lambda: crafted.seen_by("imprint", [crafted.images()], DELTA, bins=12, sparse=True)),
    "loki": ("loki", lambda: crafted.seen_by("loki", [crafted.images(), crafted.images(seed=7)], bins=12)),
    "loki-steps": ("loki", lambda: crafted.seen_by("loki", [crafted.images(), crafted.images(seed=7)], DELTA, bins=12)),
    "traps": ("traps", lambda: crafted.seen_by("traps", [crafted.images()], text="mlp(hidden=[60])", rate=0.3)),
    "fishing": ("fishing(attack=readout(labels=given))", lambda: crafted.by_feature(crafted.images())),
    "fishing-class": (
        "fishing(attack=idlg(iterations=2, labels=given))",
        lambda: crafted.seen_by("fishing", [crafted.images()] * 2, kind="class", label=1),
    ),
}


@pytest.mark.parametrize("name", CRAFTED)
def test_every_function_of_a_crafted_round_gives_what_it_gave(name):
    text, seen_by = CRAFTED[name]
    check(f"crafted-{name}", traced(lambda: adversary.build(text)(*seen_by(), 5), "adversary/exact/", "strategies/crafts/"))
