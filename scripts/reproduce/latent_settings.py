"""What scripts/reproduce/latent_perturbation.py runs: scales, rows, and the figures of the paper's Tables III to V."""

from typing import NamedTuple


class Scale(NamedTuple):
    """How much is run; `width` is that of latent_net (64 in Table I), `points` how many values of each grid, evenly spread."""

    width: int
    points: int
    targets: int
    iterations: int
    examples: int
    epochs: int
    seeds: int
    datasets: tuple[str, ...]
    words: str


SCALES = {
    "smoke": Scale(2, 1, 2, 10, 256, 2, 1, ("cifar10",), "shows that the script works; its figures mean nothing"),
    "cpu": Scale(
        4, 2, 2, 60, 5000, 10, 1, ("cifar10",), "a network of a sixteenth of the width, a tenth of the data, 10 epochs"
    ),
    "paper": Scale(64, 6, 8, 4000, 0, 400, 3, ("cifar10", "blood"), "the paper's settings, where it prints them"),
}
SPECS = {"cifar10": "cifar10", "blood": "medmnist(kind='blood')"}
# (rate of the clients, of the attacker, of DP-SGD for the accuracy): Section IV-A4 and Table II.
RATES = {"cifar10": (1e-4, 1.0, 1e-2), "blood": (1e-3, 1e-2, 1e-1)}
ATTACK = "inverting_gradients(labels='given', tv=1e-06, lr={lr}, iterations={iterations})"
GENTLE_RATE = 0.1
GENTLE = f"naive, rate {GENTLE_RATE}"
"""A second attacker at every scale: signed steps of 1, as we read the paper's rate, leave [0, 1] at once."""
NOISES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
BIDO = {
    "cifar10": ((2.0, 10.0), (1.0, 10.0), (0.5, 10.0), (0.1, 3.0), (0.5, 20.0), (0.1, 5.0)),
    "blood": ((1.0, 5.0), (0.5, 5.0), (0.1, 2.0), (0.1, 3.0), (0.1, 4.0), (0.1, 5.0)),
}
# PSNR of Tables III (DP-SGD), IV (BiDO) and V (the method), in the order of the grids above.
PAPER = {
    "cifar10": {
        "DP-SGD": (16.35, 13.28, 8.05, 6.94, 6.95, 6.86),
        "BiDO": (9.18, 8.5, 8.64, 8.48, 9.33, 8.82),
        "latent": (6.72, 6.65, 6.43, 6.72, 6.32, 7.79),
    },
    "blood": {
        "DP-SGD": (10.43, 7.68, 6.78, 6.71, 6.84, 6.63),
        "BiDO": (9.29, 7.73, 11.17, 7.26, 7.31, 7.0),
        "latent": (6.02, 6.21, 6.05, 6.26, 6.55, 6.37),
    },
}
ATTACKED = ("psnr", "mse", "ssim", "judged_accuracy")
USED = ("accuracy", "accuracy at the mean", "accuracy under noise", "macro_f1")
COLUMNS = ("method", "attacker", "PSNR", "MSE / std²", "SSIM", "seen by a clean classifier", *USED)
NOTES = """\
- Attacked are updates of the first round, from random weights: the paper does not say how far its network was trained. Eight
  images, five Adam steps (DP-SGD: SGD) on all of them; the attacker unrolls the same steps and is given the labels (ours).
- Its MSE of CIFAR-10 and PSNR differ by about 1 / std², so ours is divided by std² too. PSNR and SSIM are of images in [0, 1].
- Accuracies: one client, batch 128; the paper prints neither the number of clients nor a table, only Figure 3 ("around 90 %").
  It does not say whether it tests with noise: our server tests without, a client could at the mean of its noise or under it.
  F1 is under noise where there is some.
- Its text and its Table IV have the BiDO grids of the data sets the other way round; the table is used here.
- Table I has the kernels of the decoder's last layer the other way round: 4 fits CIFAR-10 and 2 BloodMNIST, as used here.
- Not printed, and ours: the total variation's weight, the attack's iterations, DP-SGD's clipping norm (1), epochs of Algorithm
  1 (10), r over all elements of a batch. The paper has no PSNR for learned noise ("comparable").
- Adam's first step is the sign of the gradient: its slope is zero nearly everywhere, so that matching through the unrolled
  steps tells the attacker little, with or without a defense. Hold every row against "none" before crediting a defense.
- The floors guess without any update. Hold the paper's PSNRs against them too: what is below them says little by itself.
- "knows" is the attacker of `adversary/adaptive.py` who was told the defense; no row if this changes nothing.
- Brackets are 95 % intervals (t) over all targets of all seeds; for accuracies over seeds."""


class Method(NamedTuple):
    """A row: its name, its defense, and the paper's PSNR."""

    name: str
    defense: str
    paper: float | None


def methods_of(dataset: str, points: int) -> list[Method]:
    """The rows of a scale; a single point of a grid is its fifth: noise 1, (0.5, 20) for BiDO on CIFAR-10."""
    places = {1: [4], 2: [0, 4]}.get(points, list(range(6)))
    paper, rate = PAPER[dataset], RATES[dataset][0]
    rows = [Method("none", "none", None)]
    rows += [Method(f"DP-SGD {NOISES[i]:g}", f"dp_sgd(noise={NOISES[i]})", paper["DP-SGD"][i]) for i in places]
    for i in places:
        x, y = BIDO[dataset][i]
        rows.append(Method(f"BiDO ({x:g}, {y:g})", f"bido(lambda_x={x}, lambda_y={y})", paper["BiDO"][i]))
    ours = "latent_perturbation(mu={}, layer='encoder', decoder_lr={})"
    rows += [Method(f"latent {NOISES[i]:g}", ours.format(NOISES[i], rate), paper["latent"][i]) for i in places]
    learned = f"latent_perturbation(noise='learned', layer='encoder', decoder_lr={rate}, pretrain_lr={rate})"
    return [*rows, Method("latent, learned", learned, None)]
