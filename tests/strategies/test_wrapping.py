"""Strategies around strategies: what is asked of the outer one is asked of the inner one, with the same words."""

import pytest
from flwr.serverapp.strategy import Strategy

from strategies.wrapping import Wrapping, innermost


class Echo(Strategy):
    """Answers with its own name and what it was given."""

    def configure_train(self, *given):
        return "configure_train", *given

    def aggregate_train(self, *given):
        return "aggregate_train", *given

    def configure_evaluate(self, *given):
        return "configure_evaluate", *given

    def aggregate_evaluate(self, *given):
        return "aggregate_evaluate", *given

    def summary(self):
        raise InterruptedError("summed up")


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("configure_train", ("round", "arrays", "config", "grid")),
        ("aggregate_train", ("round", "replies")),
        ("configure_evaluate", ("round", "arrays", "config", "grid")),
        ("aggregate_evaluate", ("round", "replies")),
    ],
)
def test_what_is_asked_is_handed_on(name, given):
    assert getattr(Wrapping(Wrapping(Echo())), name)(*given) == (name, *given)


def test_the_summary_is_that_of_the_inner_strategy():
    with pytest.raises(InterruptedError, match="summed up"):
        Wrapping(Echo()).summary()


def test_the_innermost_strategy_is_found_behind_all_wrappers():
    inner = Echo()
    assert innermost(Wrapping(Wrapping(inner))) is inner
    assert innermost(inner) is inner
