"""What stands between clients and the strategy: nothing, Flower's SecAgg+, or encrypted aggregation."""

from flwr.serverapp.strategy import Strategy

from fl_app.experiment.config import Experiment


def hidden(strategy: Strategy, experiment: Experiment) -> Strategy:
    """The strategy behind the protocol that the experiment's visibility names; itself if it names none."""
    most, timeout = experiment.rule.num_examples, experiment.round_timeout
    if experiment.protocol == "secagg":
        from strategies.secagg import SecAgg

        return SecAgg(strategy, max_examples=most, timeout=timeout)
    if experiment.protocol == "encrypted":
        from strategies.encrypted import Encrypted

        return Encrypted(strategy, max_examples=most, timeout=timeout)
    return strategy
