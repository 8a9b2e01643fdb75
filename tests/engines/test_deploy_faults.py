"""The quick ones of the faults of a deployment, against real processes; `scripts/deploy_faults.py` runs all."""

import logging
import sys

import pytest

from helpers.paths import ROOT

sys.path.insert(0, str(ROOT / "scripts"))

from faults import doors, nodes, replies


@pytest.fixture(autouse=True)
def quiet():
    logging.getLogger("flwr").setLevel(logging.ERROR)


@pytest.fixture
def remembering(small):
    return small.changed(defense="prune(ratio=0.5, memory=True)")


def as_expected(rows):
    assert [(row.fault, row.seen, row.line) for row in rows if not row.ok] == []


def test_killed_and_restarted_clients_remember(remembering, tmp_path):
    as_expected(nodes.restarted_nodes(remembering, tmp_path))


def test_what_a_hostile_client_sends_costs_its_own_reply(remembering, tmp_path):
    as_expected(replies.hostile_replies(remembering, tmp_path, ("nan", "garbage", "no message", "forged", "twice")))


def test_who_is_not_let_in_is_told_why(small, tmp_path, monkeypatch):
    monkeypatch.setenv("THORNS_CLIENT_TRIES", "4")  # the last one: no key will be registered in a moment
    as_expected(doors.closed_doors(small, tmp_path))
