"""FedAvg on weight changes (McMahan et al. 2017; Reddi et al. 2021): the multi-step sibling of FedSGD."""

from torch import Tensor

from strategies.fedsgd import FedSGD


class FedDelta(FedSGD):
    """Clients send weights after minus weights before; with sgd(lr=1) the server adds their mean, which is FedAvg."""

    def direction(self, mean: Tensor) -> Tensor:
        """A weight change points down the loss, a gradient up."""
        return -mean
