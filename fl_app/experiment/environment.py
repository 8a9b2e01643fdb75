"""What a run was made with: versions, machine, command; kept beside its results."""

import os
import platform
import shlex
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

PACKAGES = ("thorns", "flwr", "torch", "torchvision", "ray", "lpips", "scikit-image")


def version_of(package: str) -> str:
    """The installed version of a package, or that there is none."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def environment() -> dict[str, str]:
    """Plain facts, no host or user names: a report is shown to others."""
    import torch

    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": str(os.cpu_count() or 1),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        **{package: version_of(package) for package in PACKAGES},
    }
