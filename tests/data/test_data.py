"""Sources, splits, partitions and batches."""

import gzip
import hashlib
import io
import os
import tarfile
import tempfile
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from fl_app import data
from fl_app.core.sources import Official, SourceError, download, unpack
from fl_app.data.base import DataError, Dataset, Examples, Recipe, statistics
from fl_app.data.batches import round_positions
from fl_app.data.mnist import read as read_mnist
from fl_app.data.partitions import partition
from fl_app.data.splits import split
from helpers.data_files import idx


def small_recipe(tmp_path, *sources, digest=None):
    return Recipe(key="small", read=read_mnist, num_classes=10, sources=sources, digest=digest)


def official(folder, md5=None):
    files = []
    for path in sorted(folder.iterdir()):
        files.append((path.as_uri(), md5 or hashlib.md5(path.read_bytes()).hexdigest()))
    return Official(tuple(files), name=f"site {folder.name}")


@pytest.fixture
def idx_site(tmp_path, monkeypatch):
    monkeypatch.setenv("THORNS_DATA", str(tmp_path / "cache"))
    site = tmp_path / "site"
    site.mkdir()
    for name in ("train", "t10k"):
        (site / f"{name}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(np.zeros((3, 4, 4), np.uint8))))
        (site / f"{name}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(np.arange(3, dtype=np.uint8))))
    return site


def test_sources_are_tried_in_turn_and_checked(tmp_path, idx_site):
    wrong = official(idx_site, md5="0" * 32)
    path = data.fetch(small_recipe(tmp_path, wrong, official(idx_site)))
    assert path.exists()
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]  # nothing half-done is left behind
    path.unlink()
    with pytest.raises(DataError) as caught:
        data.fetch(small_recipe(tmp_path, wrong, official(idx_site), digest="f" * 32))
    for hint in ("site site: ", "has the md5", "the content has the checksum", "raw/small"):
        assert hint in str(caught.value)
    assert list((tmp_path / "cache").iterdir()) == []


def test_files_put_by_hand_come_first(tmp_path, idx_site):
    by_hand = tmp_path / "cache" / "raw"
    by_hand.mkdir(parents=True)
    idx_site.rename(by_hand / "small")
    assert data.fetch(small_recipe(tmp_path, Official((("file:///nowhere", "0"),)))).exists()


def test_a_damaged_cache_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("THORNS_DATA", str(tmp_path))
    (tmp_path / "svhn.safetensors").write_bytes(b"not safetensors at all")
    with pytest.raises(DataError, match=r"svhn\.safetensors is damaged.*delete it"):
        data.load("svhn")


@contextmanager
def without_rights():
    """As a user who owns nothing: root may read everything."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)


def test_a_cache_that_may_not_be_read_is_not_called_damaged(monkeypatch):
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        monkeypatch.setenv("THORNS_DATA", folder)
        path = Path(folder) / "svhn.safetensors"
        save_file({"train_y": torch.zeros(1)}, path)
        path.chmod(0)
        with (
            without_rights(),
            pytest.raises(DataError, match=r"svhn\.safetensors cannot be read \(permission denied\)") as error,
        ):
            data.load("svhn")
        assert "THORNS_DATA" in str(error.value)
        assert "delete" not in str(error.value)
        path.unlink()
        path.mkdir()
        with pytest.raises(DataError, match=r"cannot be read \(is a directory\)"):
            data.load("svhn")


def test_what_is_published_is_kept_for_all_users_and_an_own_folder_for_its_owner(tmp_path, idx_site, pictures):
    published, own = data.fetch(small_recipe(tmp_path, official(idx_site))), data.recipe_of(f"imagefolder(path='{pictures}')")
    assert published.stat().st_mode & 0o777 == 0o644
    assert data.fetch(own).stat().st_mode & 0o077 == 0
    partition(torch.arange(9) % 3, "iid", 3, 0, tmp_path)
    assert [path.stat().st_mode & 0o777 for path in (tmp_path / "partitions").iterdir()] == [0o644]


def test_a_damaged_partition_is_named(tmp_path):
    partition(torch.arange(9) % 3, "iid", 3, 0, tmp_path)
    (path,) = (tmp_path / "partitions").iterdir()
    path.write_bytes(b"cut off")
    with pytest.raises(DataError, match=rf"{path.name} cannot be read: it is damaged"):
        partition(torch.arange(9) % 3, "iid", 3, 0, tmp_path)


def test_an_archive_cannot_write_outside(tmp_path):
    archive = tmp_path / "evil.tar"
    with tarfile.open(archive, "w") as tar:
        info = tarfile.TarInfo("../outside")
        info.size = 1
        tar.addfile(info, io.BytesIO(b"x"))
    into = tmp_path / "into"
    into.mkdir()
    with pytest.raises(tarfile.OutsideDestinationError):
        unpack(archive, into)
    assert not (tmp_path / "outside").exists()


def test_an_unreachable_address_is_a_reason(tmp_path):
    with pytest.raises(SourceError):
        download("http://127.0.0.1:9/x", tmp_path / "x")


def test_real_mnist_has_its_published_statistics():
    real = data.load("mnist")
    assert (len(real.train), len(real.test), real.input_shape) == (60000, 10000, (1, 28, 28))
    assert (real.mean, real.std) == ((0.1307,), (0.3081,))
    assert data.load("mnist") is real  # one copy a process


def test_statistics_are_exact():
    x = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (50, 3, 8, 8), dtype=np.uint8))
    mean, std = statistics(x)
    expected = torch.std_mean(x.double() / 255, dim=(0, 2, 3), correction=0)
    assert mean == pytest.approx(expected[1].tolist(), abs=1e-4)
    assert std == pytest.approx(expected[0].tolist(), abs=1e-4)


def toy(n=100, validation=0):
    def examples(n, start):
        return Examples(torch.arange(start, start + n).byte().view(n, 1, 1, 1), torch.arange(n) % 4)

    extra = examples(validation, 150) if validation else None
    return Dataset("toy", examples(n, 0), examples(20, 120), 4, (0.0,), (1.0,), extra)


def test_split_by_shares_is_a_partition_of_everything():
    parts = split(toy(), "70/15/15", seed=1)
    assert [len(part) for part in parts] == [84, 18, 18]
    assert len(torch.cat([part.x.flatten() for part in parts]).unique()) == 120
    again, other = split(toy(), "70/15/15", seed=1), split(toy(), "70/15/15", seed=2)
    assert torch.equal(parts.train.x, again.train.x)
    assert not torch.equal(parts.train.x, other.train.x)


def test_official_split_keeps_a_published_validation_part():
    assert [len(part) for part in split(toy(), "official", 0)] == [100, 0, 20]
    assert [len(part) for part in split(toy(validation=10), "official", 0)] == [100, 10, 20]


@pytest.mark.parametrize("text", ["iid", "dirichlet(alpha=0.5)", "shards(per_client=2)"])
def test_partitions_share_out_every_example_once(tmp_path, text):
    labels = torch.arange(400) % 10
    shares = partition(labels, text, 5, 3, tmp_path)
    assert torch.cat(shares).sort().values.tolist() == list(range(400))
    again = partition(labels, text, 5, 3, tmp_path / "elsewhere")
    assert all(torch.equal(a, b) for a, b in zip(shares, again, strict=True))
    other = partition(labels, text, 5, 4, tmp_path)
    assert not all(torch.equal(a, b) for a, b in zip(shares, other, strict=True))


def test_shards_and_small_alpha_are_far_from_iid(tmp_path):
    labels = torch.arange(1000) % 10
    classes = {
        text: [len(labels[share].unique()) for share in partition(labels, text, 5, 0, tmp_path)]
        for text in ("iid", "shards(per_client=2)")
    }
    assert min(classes["iid"]) == 10
    assert max(classes["shards(per_client=2)"]) <= 4
    skewed = partition(labels, "dirichlet(alpha=0.05)", 5, 0, tmp_path)
    top = [torch.bincount(labels[share], minlength=10).max().item() / len(share) for share in skewed]
    assert np.mean(top) > 0.3


def test_too_many_clients_are_refused(tmp_path):
    with pytest.raises(DataError, match="lower clients"):
        partition(torch.arange(3), "iid", 4, 0, tmp_path)


def test_batches_are_a_pure_function_and_cover_each_epoch():
    epoch = [round_positions(1, 2, r, 8, 35) for r in range(1, 5)]
    assert len(torch.cat(epoch).unique()) == 32
    assert torch.equal(epoch[2], round_positions(1, 2, 3, 8, 35))
    assert not torch.equal(epoch[0], round_positions(1, 2, 5, 8, 35))
    assert not torch.equal(epoch[0], round_positions(1, 3, 1, 8, 35))
    assert len(round_positions(1, 2, 9, 8, 5)) == 5
