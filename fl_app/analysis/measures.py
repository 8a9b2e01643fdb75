"""How leakage is measured in a report, and from where on the Refiner paper calls a reconstruction a leak."""

from typing import NamedTuple

from fl_app.analysis import limits
from fl_app.scoring.score import Summary


class Measure(NamedTuple):
    """A metric of scores.jsonl as it is shown."""

    key: str
    title: str
    unit: str
    digits: int
    higher_leaks: bool
    threshold: float | None
    """Beyond this value an attack counts as a leak; None: the paper names no value."""

    def leak(self, value: float) -> float:
        """The value with its sign turned where lower means more leaked: larger is always worse for the client."""
        return value if self.higher_leaks else -value

    def leaked(self, found: Summary) -> bool:
        """Whether the mean lies beyond the threshold."""
        return found.mean is not None and self.threshold is not None and self.leak(found.mean) > self.leak(self.threshold)

    def text(self, value: float | None) -> str:
        """The number as shown."""
        return "-" if value is None else f"{round(value, self.digits) + 0.0:.{self.digits}f}"  # no minus zero

    def half(self, found: Summary) -> str:
        """Half of the 95 % interval as shown; empty if there is none."""
        return "" if found.low is None or found.high is None else f"{(found.high - found.low) / 2:.{self.digits}f}"


PSNR = Measure("psnr", "PSNR", "dB", 1, True, limits.PSNR)
SSIM = Measure("ssim", "SSIM", "", 2, True, limits.SSIM)
LPIPS = Measure("lpips_alex", "LPIPS", "", 3, False, limits.LPIPS)
LPIPS_VGG = Measure("lpips_vgg", "LPIPS (VGG)", "", 3, False, limits.LPIPS)
NOISE_RATIO = Measure("noise_ratio", "noise ratio", "", 2, False, None)
SHOWN = (PSNR, SSIM, LPIPS)
"""The columns of tables."""
DRAWN = (*SHOWN, NOISE_RATIO)
JUDGED = (*SHOWN, LPIPS_VGG)
"""Those with a threshold, the same as in `thorns gate`."""
LIMITS = f"PSNR {PSNR.threshold:g} dB, SSIM {SSIM.threshold:g}, LPIPS {LPIPS.threshold:g}"
