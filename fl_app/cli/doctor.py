"""`thorns doctor`: what this machine has, what is missing, and what to do about it."""

import importlib
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Literal, NamedTuple

import typer
from rich.console import Console
from rich.markup import escape

from fl_app.core import flower, halfprecision
from fl_app.core.places import cache_dir

IMPORTED = {"torch": "torch", "torchvision": "fl_app.core.vision", "flwr": "flwr", "ray": "ray"}
"""Package -> what of it a run imports."""
FLAGS = ("avx2", "avx512f", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16", "amx_fp16")
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
GIGABYTE = 2**30
STYLES = {"ok": "green", "note": "yellow", "broken": "bold red"}


class Finding(NamedTuple):
    """One line: `broken` is what a normal run cannot do without."""

    what: str
    state: Literal["ok", "note", "broken"]
    found: str
    advice: str = ""


def doctor() -> None:
    """Show versions, CPU, GPU, memory, caches and data at hand, each with what to do; exit 1 if runs cannot work here."""
    console = Console()
    broken = False
    for check in CHECKS:
        for one in check():
            broken |= one.state == "broken"
            words = f"[{STYLES[one.state]}]{one.state:6}[/] {one.what}: {escape(one.found)}"
            advice = f" -> {escape(one.advice)}" if one.advice else ""
            console.print(words + advice, highlight=False, soft_wrap=True)
    if broken:
        raise typer.Exit(1)


def versions() -> Iterator[Finding]:
    """Python, and the packages that a run imports: there, and able to be imported."""
    fits = (3, 11) <= sys.version_info[:2] < (3, 13)
    advice = "" if fits else "make the environment with Python 3.11 or 3.12"
    yield Finding("python", "ok" if fits else "broken", platform.python_version(), advice)
    again = "install again: scripts/setup, or pip install -e ."
    for package in ("thorns", *IMPORTED):
        try:
            found = metadata.version(package)
            if package in IMPORTED:
                importlib.import_module(IMPORTED[package])
        except metadata.PackageNotFoundError:
            yield Finding(package, "broken", "not installed", again)
        except Exception as error:  # an extension that does not fit this system may raise anything
            yield Finding(package, "broken", f"{found} cannot be imported: {' '.join(str(error).split())[:200]}", again)
        else:
            no_deploy = package == "flwr" and not flower.speaks_grpc()
            advice = f"thorns deploy needs {flower.GRPC_SERIES}: pip install 'thorns[deploy]'" if no_deploy else ""
            yield Finding(package, "note" if no_deploy else "ok", found, advice)


def processor() -> Iterator[Finding]:
    """The CPU, and whether half precision works on it."""
    about = halfprecision.cpu()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    flags = [flag for flag in FLAGS if flag in about.get("flags", "").split()]
    name = about.get("model name") or platform.processor() or platform.machine()
    yield Finding("cpu", "ok", f"{name}, {cores} cores, {' '.join(flags) or 'no wide vectors'}")
    what, cap = "half precision on the CPU", f"{halfprecision.CAP}={halfprecision.VALUE}"
    if halfprecision.CAP in os.environ:
        yield Finding(what, "ok", f"{halfprecision.CAP}={os.environ[halfprecision.CAP]} is set")
    elif not halfprecision.announces_amx():
        yield Finding(what, "ok", "nothing stands against it: no AMX is announced")
    elif (answer := halfprecision.answer()) == "works":
        yield Finding(what, "ok", "works, tried in a child process")
    elif answer == "capped":
        advice = f"`thorns` sets {cap} by itself; your own programs need it in their environment"
        yield Finding(what, "note", "AMX is announced but cannot be used", advice)
    else:
        yield Finding(
            what, "note", f"fails, also with {cap}", "use float32, as every run does unless a model of yours says otherwise"
        )


def accelerator() -> Iterator[Finding]:
    """The GPU."""
    try:
        import torch
    except Exception:  # said above
        return
    names = [torch.cuda.get_device_name(place) for place in range(torch.cuda.device_count())]
    if names:
        yield Finding("gpu", "ok", f"{', '.join(names)}; used with -c device=cuda or auto")
    else:
        yield Finding("gpu", "ok", "none; runs use the CPU")


def memory() -> Iterator[Finding]:
    """Main memory."""
    page, total = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_PHYS_PAGES")
    free = _available() or page * os.sysconf("SC_AVPHYS_PAGES")
    words = f"{free / GIGABYTE:.1f} of {page * total / GIGABYTE:.1f} GB are free"
    little = free < 2 * GIGABYTE
    yield Finding("memory", "note" if little else "ok", words, "use few --workers, and -c clients below 100" if little else "")


def _available() -> int:
    """What can be had without swapping, in bytes; 0 if the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), 0)


def caches() -> Iterator[Finding]:
    """The cache of data sets and networks: where it is, how large, and whether it can be written."""
    folder = cache_dir()
    there = next(place for place in (folder, *folder.resolve().parents) if place.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        yield Finding("cache", "broken", f"{there} cannot be written", "set THORNS_DATA to a folder that can")
        return
    free = shutil.disk_usage(there).free
    words = f"{folder} holds {_size(folder) / 2**20:.0f} MB; {free / GIGABYTE:.1f} GB of its disk are free"
    yield Finding(
        "cache", "ok" if free > GIGABYTE else "note", words, "" if free > GIGABYTE else "make room, or set THORNS_DATA"
    )


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def data_at_hand() -> Iterator[Finding]:
    """Data sets and networks that need not be fetched."""
    names = sorted(path.stem for path in cache_dir().glob("*.safetensors"))
    own = {"imagefolder-": "folders of images", "csv-": "tables"}
    sets = [name for name in names if not name.startswith(("lpips-", *own))]
    found = {kind: sum(name.startswith(prefix) for name in names) for prefix, kind in own.items()}
    words = [*sets, *(f"{number} {kind}" for kind, number in found.items() if number)]
    yield Finding(
        "data sets", "ok" if words else "note", ", ".join(words) or "none yet", "" if words else "thorns data get mnist"
    )
    missing = [net for net in ("alex", "vgg") if f"lpips-{net}" not in names]
    if missing:
        yield Finding(
            "LPIPS", "note", f"no weights of {' and '.join(missing)} yet", "fetched when first scored; without: --no-lpips"
        )
    else:
        yield Finding("LPIPS", "ok", "weights are here")


def browser() -> Iterator[Finding]:
    """What the tests of the report need, and nothing else."""
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    driver = shutil.which("chromedriver")
    if found and driver:
        yield Finding("browser", "ok", f"{found}, {driver}")
    else:
        lacking = " and ".join(name for name, path in (("a Chromium", found), ("chromedriver", driver)) if not path)
        yield Finding(
            "browser", "note", f"{lacking} is missing", "only the tests of the report need it: chromium, chromium-driver"
        )


CHECKS: tuple[Callable[[], Iterator[Finding]], ...] = (
    versions,
    processor,
    accelerator,
    memory,
    caches,
    data_at_hand,
    browser,
)
