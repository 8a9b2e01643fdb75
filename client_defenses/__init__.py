"""Defenses: one file each, all of them listed here."""

from collections.abc import Callable

from client_defenses.base import Chain, Defense, Memory
from client_defenses.bido import BiDO
from client_defenses.dp_gaussian import DPGaussian
from client_defenses.dp_laplace import DPLaplace
from client_defenses.dp_sgd import DPSGD
from client_defenses.drop_fedsgd import DropFedSGD
from client_defenses.fedem import FedEM
from client_defenses.gradient_dropout import GradientDropout
from client_defenses.instahide import InstaHide
from client_defenses.latent_perturbation import LatentPerturbation
from client_defenses.ldpm import LDPM
from client_defenses.mask import Mask
from client_defenses.mixup import MixUp
from client_defenses.mods import defense_mod
from client_defenses.none import NoDefense
from client_defenses.ppfa import PPFA
from client_defenses.prune import Prune
from client_defenses.quantize import Quantize
from client_defenses.recup import RecUP
from client_defenses.refiner import Refiner
from client_defenses.sign import Sign
from client_defenses.soteria import Soteria
from fl_app.core import spec

DEFENSES: dict[str, Callable[..., Defense]] = {
    "bido": BiDO,
    "dp_gaussian": DPGaussian,
    "dp_laplace": DPLaplace,
    "dp_sgd": DPSGD,
    "drop_fedsgd": DropFedSGD,
    "fedem": FedEM,
    "gradient_dropout": GradientDropout,
    "instahide": InstaHide,
    "latent_perturbation": LatentPerturbation,
    "ldpm": LDPM,
    "mask": Mask,
    "mixup": MixUp,
    "none": NoDefense,
    "ppfa": PPFA,
    "prune": Prune,
    "quantize": Quantize,
    "recup": RecUP,
    "refiner": Refiner,
    "sign": Sign,
    "soteria": Soteria,
}


def build(text: str) -> Defense:
    """`"a(x=1) + b"` -> one defense, or a chain in that order."""
    parts = [spec.build_part("defense", part, DEFENSES, base=Defense) for part in spec.parse(text)]
    return parts[0] if len(parts) == 1 else Chain(parts=tuple(parts))


__all__ = ["DEFENSES", "Chain", "Defense", "Memory", "build", "defense_mod"]
