"""Attacks on captured updates.

They may import `fl_app.core`, `fl_app.models` and `fl_app.store` only, and so cannot reach any data.
"""

from collections.abc import Callable

from adversary.base import Attack, AttackError, Belief, Facts, Guess, Informed, Public
from adversary.coarse import ROG, CoarseToFine
from adversary.exact.cocktail import CocktailParty
from adversary.exact.fishing import FishingReadout
from adversary.exact.imprint import ImprintReadout
from adversary.exact.loki import LokiReadout
from adversary.exact.patches import Patches
from adversary.exact.peeling import Peeling
from adversary.exact.readout import ReadOut
from adversary.exact.spear import Spear
from adversary.exact.traps import TrapsReadout
from adversary.generative import GGL, GIAS, GIFD
from adversary.inference.alignment import Alignment
from adversary.inference.attribute import Attribute
from adversary.inference.labels import LabelDistribution
from adversary.inference.likelihood_ratio import LikelihoodRatio
from adversary.inference.lira import LiRA
from adversary.inference.loss import Loss
from adversary.inference.property import Property
from adversary.inference.series import Series
from adversary.learned.fgla import FGLA
from adversary.learned.lti import LTI
from adversary.learned.mjolnir import Mjolnir
from adversary.learned.ridge import Ridge
from adversary.local_steps import SME, Epochwise
from adversary.networks import CINet, CINetLBFGS
from adversary.presets import DLG, IDLG, CosineLBFGS, GaussNewton, GradInversion, InvertingGradients, RowSearch
from adversary.search.matching import Matching
from adversary.standard import Standard
from adversary.text.bag_of_words import BagOfWords
from adversary.text.closed_form import ClosedForm
from adversary.text.dager import Dager
from adversary.text.lamp import TAG, LampCos, LampL1L2
from adversary.text.tiger import Tiger
from fl_app.core import spec

ATTACKS: dict[str, Callable[..., Attack]] = {
    "alignment": Alignment,
    "attribute": Attribute,
    "bag_of_words": BagOfWords,
    "ci_net": CINet,
    "ci_net_lbfgs": CINetLBFGS,
    "closed_form": ClosedForm,
    "cocktail_party": CocktailParty,
    "coarse_to_fine": CoarseToFine,
    "cosine_lbfgs": CosineLBFGS,
    "dager": Dager,
    "dlg": DLG,
    "epochwise": Epochwise,
    "fgla": FGLA,
    "fishing": FishingReadout,
    "gauss_newton": GaussNewton,
    "ggl": GGL,
    "gias": GIAS,
    "gifd": GIFD,
    "grad_inversion": GradInversion,
    "idlg": IDLG,
    "imprint": ImprintReadout,
    "inverting_gradients": InvertingGradients,
    "label_distribution": LabelDistribution,
    "lamp_cos": LampCos,
    "lamp_l1l2": LampL1L2,
    "likelihood_ratio": LikelihoodRatio,
    "lira": LiRA,
    "loki": LokiReadout,
    "loss": Loss,
    "lti": LTI,
    "matching": Matching,
    "mjolnir": Mjolnir,
    "patches": Patches,
    "peeling": Peeling,
    "property": Property,
    "readout": ReadOut,
    "ridge": Ridge,
    "rog": ROG,
    "rows": RowSearch,
    "series": Series,
    "sme": SME,
    "spear": Spear,
    "standard": Standard,
    "tag": TAG,
    "tiger": Tiger,
    "traps": TrapsReadout,
}
DEFAULT = "standard"
"""What is run where nobody names an attack."""


def build(text: str) -> Attack:
    """`"inverting_gradients(tv=1e-3, iterations=1000)"` -> an attack."""
    built = spec.build_one("attack", text, ATTACKS)
    if not isinstance(built, Attack):
        raise spec.SpecError(f"{text} is a {type(built).__name__}, not an attack: it must be a subclass of adversary.Attack")
    return built


def text_of(attack: Attack) -> str:
    """The spec of an attack, from which `build` makes it again."""
    return spec.text_of(attack, ATTACKS)


__all__ = [
    "ATTACKS",
    "DEFAULT",
    "Attack",
    "AttackError",
    "Belief",
    "Facts",
    "Guess",
    "Informed",
    "Matching",
    "Public",
    "build",
    "text_of",
]
