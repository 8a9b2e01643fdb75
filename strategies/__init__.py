"""Server strategies: what the server does with the updates it gets."""

from strategies.curious import Curious
from strategies.feddelta import FedDelta
from strategies.fedsgd import FedSGD
from strategies.malicious import Malicious
from strategies.resumed import Resumed

__all__ = ["Curious", "FedDelta", "FedSGD", "Malicious", "Resumed"]
