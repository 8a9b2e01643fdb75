"""Half precision on CPUs that announce AMX but may not use it.

Where a hypervisor keeps AMX from its guests, a bfloat16 layer dies with SIGILL, and a half-precision convolution raises
"could not create a primitive". A cap on oneDNN's instruction set avoids both, if it is in the environment before torch is
imported. Nothing here imports torch, so that an entry point can set the cap in time.
"""

import contextlib
import hashlib
import os
import subprocess
import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from fl_app.core.places import cache_dir

if TYPE_CHECKING:
    from torch import Tensor

Answer = Literal["works", "capped", "broken"]
"""Half precision works as it is, with the cap alone, or not at all."""
CAP, VALUE = "ONEDNN_MAX_CPU_ISA", "AVX512_CORE"
CPUINFO = Path("/proc/cpuinfo")
LAYERS = """
import torch
from torch import nn
for kind in (torch.bfloat16, torch.float16):
    nn.Linear(64, 64).to(kind)(torch.ones(32, 64, dtype=kind)).sum().backward()
    nn.Conv2d(8, 8, 3).to(kind)(torch.ones(4, 8, 16, 16, dtype=kind)).sum().backward()
"""
COMMAND = (sys.executable, "-c", LAYERS)
SECONDS = 120


def cpu() -> dict[str, str]:
    """The first processor of /proc/cpuinfo, by key; empty where there is no such file."""
    found: dict[str, str] = {}
    with contextlib.suppress(OSError), CPUINFO.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if not line.strip():
                break
            key, _, value = line.partition(":")
            found[key.strip()] = value.strip()
    return found


def announces_amx() -> bool:
    """Whether this CPU announces AMX; one that does not has nothing to probe."""
    return any(flag.startswith("amx") for flag in cpu().get("flags", "").split())


def probe() -> Answer:
    """Try half-precision layers in a child process, as it is and then with the cap."""
    if _survives({}):
        return "works"
    return "capped" if _survives({CAP: VALUE}) else "broken"


def _survives(more: dict[str, str]) -> bool:
    environment = {key: value for key, value in os.environ.items() if key != CAP}
    try:
        done = subprocess.run(
            COMMAND, env={**environment, **more}, stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _kept() -> Path:
    """Where the answer for this CPU, kernel and torch is kept."""
    facts = cpu().get("model name", ""), os.uname().release, metadata.version("torch")
    return cache_dir() / f"half-precision-{hashlib.sha256(repr(facts).encode()).hexdigest()[:12]}"


def known() -> Answer | None:
    """The answer of an earlier probe."""
    with contextlib.suppress(OSError, UnicodeDecodeError, metadata.PackageNotFoundError):
        text = _kept().read_text(encoding="utf-8").strip()
        return next((answer for answer in get_args(Answer) if answer == text), None)
    return None


def answer() -> Answer:
    """Whether half precision works here: at once without AMX, from an earlier probe, or from one that is made now."""
    if not announces_amx():
        return "works"
    found = known()
    if found is None:
        found = probe()
        with contextlib.suppress(OSError):  # a cache that cannot be written costs another probe
            cache_dir().mkdir(parents=True, exist_ok=True)
            part = _kept().with_suffix(f".{os.getpid()}")
            part.write_text(found, encoding="utf-8")
            part.replace(_kept())
    return found


def cap_if_known() -> None:
    """Set the cap, for this process and its children, if a probe found it needed; call this before torch is imported."""
    if CAP not in os.environ and announces_amx() and known() == "capped":
        os.environ[CAP] = VALUE


def require(tensors: "Iterable[Tensor]") -> None:
    """Say in one line what to do if any of these is in half precision on a CPU that cannot compute with it."""
    if not any(one.element_size() == 2 and one.is_floating_point() and one.device.type == "cpu" for one in tensors):
        return
    if CAP in os.environ:  # whoever set it has decided
        return
    found = answer()
    if found == "capped":
        raise RuntimeError(
            f"half precision does not work on this CPU as it is, for it announces AMX but may not use it: set {CAP}={VALUE} "
            "before Python starts (from now on the command `thorns` does so by itself), or use float32"
        )
    if found == "broken":
        raise RuntimeError("half precision does not work on this CPU, as `thorns doctor` shows: use float32")
