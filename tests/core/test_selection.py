"""Which rounds and clients are captured: how it is written, and what is refused."""

import pytest

from fl_app.core.selection import select
from fl_app.experiment.toml import ConfigError


@pytest.mark.parametrize(
    ("text", "chosen"),
    [("all", range(1, 10)), ("none", []), ("1", [1]), (" 1, 3 ", [1, 3]), ("1-3,7", [1, 2, 3, 7]), ("ALL", range(1, 10))],
)
def test_selections(text, chosen):
    selection = select(text, 1, "rounds")
    assert [number for number in range(1, 10) if number in selection] == list(chosen)


@pytest.mark.parametrize(
    ("settings", "hint"),
    [
        ({"capture": "sometimes"}, "does not select rounds"),
        ({"capture": "0"}, "numbers from 1 on"),
        ({"capture": "5-1"}, "does not select"),
        ({"capture": "1,,2"}, "does not select"),
        ({"capture": ""}, "does not select"),
        ({"capture": "1-999999999"}, "names round 7, but rounds=6"),
        ({"capture_clients": "0,3"}, "names client 3, the last is 2"),
        ({"capture_clients": "none"}, "capture='none'"),
        ({"capture": "all", "visibility": "aggregate", "capture_clients": "0"}, "shows no single clients"),
        ({"capture": "all", "visibility": "aggregate", "weighting": "equal"}, "weighting='examples'"),
        ({"visibility": "partial"}, "individual"),
        ({"visibility": "secagg", "capture_clients": "0"}, "shows no single clients"),
        ({"visibility": "encrypted", "weighting": "equal"}, "weighting='examples'"),
        ({"visibility": "secagg", "clients": 2}, "needs 3 in a round, not 2"),
        ({"visibility": "encrypted", "clients": 10, "fraction": 0.2}, "needs 3 in a round, not 2"),
        ({"visibility": "secagg", "clients": 2000}, "1024 clients in a round at most"),
    ],
    ids=str,
)
def test_nonsense_is_refused_before_anything_runs(small, settings, hint):
    with pytest.raises(ConfigError, match=hint):
        small.changed(**settings)


def test_a_number_on_the_command_line_selects(small):
    assert small.changed(capture=2, capture_clients=0).capture == "2"


def test_a_selection_says_where_it_goes_beyond():
    assert select("2-4,9", 1, "rounds").beyond(4) == [9]
    assert select("2-4,9", 1, "rounds").beyond(3) == [4, 9]
    assert select("all", 1, "rounds").beyond(3) == []
    assert not select("none", 1, "rounds")
    assert 0 not in select("all", 1, "rounds")
