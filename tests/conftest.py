import os
import signal

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
# Test processes share the cores: threads that spin while they wait slow each other down by large factors.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("GOMP_SPINCOUNT", "0")

import numpy as np
import pytest
import torch
from PIL import Image

from fl_app.config import Experiment

# In the background of a shell Ctrl-C is ignored, and children inherit that: tests that send it would wait in vain.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def rng():
    return torch.Generator().manual_seed(7)


@pytest.fixture(scope="session")
def pictures(tmp_path_factory):
    """A folder of small class folders: a data set that any test can afford."""
    root = tmp_path_factory.mktemp("pictures")
    draw = np.random.default_rng(0)
    for label, name in enumerate(("apple", "berry", "cherry")):
        for split, number in (("train", 40), ("test", 10)):
            folder = root / split / name
            folder.mkdir(parents=True)
            for i in range(number):
                pixels = draw.integers(0, 100, (12, 12, 3), dtype=np.uint8)
                pixels[..., label] += 120
                Image.fromarray(pixels).save(folder / f"{i:02d}.png")
    return root


@pytest.fixture
def small(pictures, tmp_path):
    """A tiny experiment on the pictures."""
    return Experiment(
        dataset=f"imagefolder(path='{pictures}', size=12)",
        model="lenet",
        clients=3,
        batch_size=4,
        rounds=6,
        eval_every=3,
        run_dir=str(tmp_path / "run"),
    )
