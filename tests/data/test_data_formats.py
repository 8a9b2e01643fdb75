"""Loaders on small files in the real formats."""

import gzip
import json

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import savemat

from fl_app import data
from fl_app.data import cifar, folders
from fl_app.data.medmnist import read as read_medmnist
from fl_app.data.mnist import read as read_mnist
from fl_app.data.mnist import read_idx
from fl_app.data.svhn import read as read_svhn
from helpers.data_files import idx

draw = np.random.default_rng(0)


def test_mnist_idx(tmp_path):
    x, y = draw.integers(0, 256, (5, 28, 28), dtype=np.uint8), np.arange(5, dtype=np.uint8)
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "train-images-idx3-ubyte").write_bytes(idx(x))
    (tmp_path / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(y)))
    (tmp_path / "t10k-images.idx3-ubyte").write_bytes(idx(x[:2]))
    (tmp_path / "t10k-labels.idx1-ubyte").write_bytes(idx(y[:2]))
    arrays = read_mnist(tmp_path)
    assert torch.equal(arrays["train_x"], torch.from_numpy(x)[:, None])
    assert arrays["train_y"].tolist() == [0, 1, 2, 3, 4]
    assert arrays["test_x"].shape == (2, 1, 28, 28)


@pytest.mark.parametrize("damage", [lambda raw: raw[:-1], lambda raw: b"\x00\x00\x0d" + raw[3:], lambda raw: b""])
def test_a_damaged_idx_file_is_refused_by_name(tmp_path, damage):
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(damage(idx(np.zeros((2, 4, 4), np.uint8))))
    with pytest.raises(ValueError, match="train-images-idx3-ubyte"):
        read_idx(path)


def rows(n, labels):
    return np.concatenate([labels, draw.integers(0, 256, (n, 3072), dtype=np.uint8)], axis=1)


def test_cifar10_binary_and_png_sheets_agree(tmp_path):
    binary, sheets = tmp_path / "binary", tmp_path / "sheets"
    binary.mkdir(), sheets.mkdir()
    labels = []
    for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]:
        batch = rows(3, draw.integers(0, 10, (3, 1), dtype=np.uint8))
        labels.append(batch[:, 0].tolist())
        (binary / f"{name}.bin").write_bytes(batch.tobytes())
        Image.fromarray(batch[:, 1:].reshape(3, 3, 1024).transpose(0, 2, 1)).save(sheets / f"{name}.png")
    (sheets / "train_lables.json").write_text(json.dumps([label for batch in labels[:5] for label in batch]))
    (sheets / "test_lables.json").write_text(json.dumps(labels[5]))
    one, other = cifar.read_cifar10(binary), cifar.read_cifar10(sheets)
    assert one["train_x"].shape == (15, 3, 32, 32)
    assert all(torch.equal(one[key], other[key]) for key in one)
    assert data.digest_of(one) == data.digest_of(other)


def test_cifar100_takes_the_fine_label(tmp_path):
    labels = np.array([[3, 77], [1, 5]], dtype=np.uint8)
    for name in ("train", "test"):
        (tmp_path / f"{name}.bin").write_bytes(rows(2, labels).tobytes())
    assert cifar.read_cifar100(tmp_path)["train_y"].tolist() == [77, 5]
    (tmp_path / "test.bin").write_bytes(b"x" * 3073)
    with pytest.raises(ValueError, match=r"test\.bin"):
        cifar.read_cifar100(tmp_path)


def test_svhn_calls_the_digit_zero_ten(tmp_path):
    x = draw.integers(0, 256, (32, 32, 3, 4), dtype=np.uint8)
    for name in ("train", "test"):
        savemat(tmp_path / f"{name}_32x32.mat", {"X": x, "y": np.array([[10], [1], [9], [10]], dtype=np.uint8)})
    arrays = read_svhn(tmp_path)
    assert arrays["train_y"].tolist() == [0, 1, 9, 0]
    assert torch.equal(arrays["test_x"][2], torch.from_numpy(x[..., 2]).permute(2, 0, 1))


@pytest.mark.parametrize("kind", ["blood", "path", "derma", "chest"])
def test_medmnist(tmp_path, kind):
    shape = (4, 28, 28) if kind == "chest" else (4, 28, 28, 3)
    labels = np.array([[0] * 14, [0, 1] + [0] * 12, [1] * 14, [0] * 14]) if kind == "chest" else np.array([[0], [3], [2], [6]])
    content = {}
    for part in ("train", "val", "test"):
        content |= {f"{part}_images": draw.integers(0, 256, shape, dtype=np.uint8), f"{part}_labels": labels}
    np.savez(tmp_path / f"{kind}mnist.npz", **content)
    arrays = read_medmnist(tmp_path, kind)
    assert arrays["val_x"].shape == (4, 1 if kind == "chest" else 3, 28, 28)
    assert arrays["train_y"].tolist() == ([0, 1, 1, 0] if kind == "chest" else [0, 3, 2, 6])


def test_medmnist_never_unpickles(tmp_path):
    np.savez(tmp_path / "bloodmnist.npz", train_images=np.array([{"a": 1}], dtype=object))
    with pytest.raises(ValueError, match="pickle"):
        read_medmnist(tmp_path, "blood")


def picture(path, size=(20, 14), value=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = (
        draw.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
        if value is None
        else np.full((size[1], size[0], 3), value, np.uint8)
    )
    Image.fromarray(pixels).save(path)


def test_tiny_imagenet(tmp_path):
    root = tmp_path / "tiny-imagenet-200"
    for name, value in (("n01", 10), ("n02", 200)):
        for i in range(2):
            picture(root / "train" / name / "images" / f"{name}_{i}.JPEG", (64, 64), value)
    for i in range(3):
        picture(root / "val" / "images" / f"val_{i}.JPEG", (64, 64))
    (root / "val" / "val_annotations.txt").write_text("".join(f"val_{i}.JPEG\tn0{1 + i % 2}\t0\t0\t9\t9\n" for i in range(3)))
    arrays = folders.read_tiny_imagenet(tmp_path)
    assert arrays["train_x"].shape == (4, 3, 64, 64)
    assert arrays["train_x"].float().mean((1, 2, 3)).round().tolist() == [10, 10, 200, 200]
    assert arrays["test_y"].tolist() == [0, 1, 0]


def test_lfw_leaves_out_people_with_few_photos(tmp_path):
    for person, number in (("Ann_A", 5), ("Bob_B", 4), ("Cyd_C", 1)):
        for i in range(number):
            picture(tmp_path / "lfw_funneled" / person / f"{person}_{i:04d}.jpg", (25, 25))
    arrays = folders.read_lfw(tmp_path, size=16, min_images=3, test_share=0.25)
    assert arrays["train_x"].shape[1:] == (3, 16, 16)
    assert len(arrays["train_y"]) + len(arrays["test_y"]) == 9
    assert set(arrays["train_y"].tolist()) == {0, 1}


def test_any_imagefolder_and_its_cache_follows_the_files(tmp_path, monkeypatch):
    monkeypatch.setenv("THORNS_DATA", str(tmp_path / "cache"))
    root = tmp_path / "xray"
    for name, value in (("normal", 0), ("pneumonia", 255)):
        for i in range(5):
            picture(root / name / f"{i}.png", (30, 22), value)
    text = f"imagefolder(path='{root}', size=16, grey=True)"
    loaded = data.load(text)
    assert loaded.input_shape == (1, 16, 16)
    assert (len(loaded.train), len(loaded.test), loaded.num_classes) == (8, 2, 2)
    assert all(x.float().mean() == 255 * y for x, y in zip(loaded.train.x, loaded.train.y, strict=True))
    key = data.recipe_of(text).key
    picture(root / "normal" / "new.png")
    assert data.recipe_of(text).key != key


@pytest.mark.parametrize(("text", "hint"), [("imagefolder(path='/nowhere')", "two classes"), ("imagefolder", "needs path")])
def test_a_missing_folder_is_explained(text, hint):
    with pytest.raises(ValueError, match=hint):
        data.recipe_of(text)


@pytest.mark.parametrize("content", [b"", b"no image", "cut"])
def test_a_broken_image_is_named_and_the_cache_is_not_blamed(tmp_path, monkeypatch, content):
    monkeypatch.setenv("THORNS_DATA", str(tmp_path / "cache"))
    for name in ("cat", "dog"):
        (tmp_path / "images" / name).mkdir(parents=True)
        for number in range(3):
            Image.new("RGB", (9, 9)).save(tmp_path / "images" / name / f"{number}.png")
    broken = tmp_path / "images" / "cat" / "1.png"
    broken.write_bytes(broken.read_bytes()[:45] if content == "cut" else content)
    with pytest.raises(data.DataError, match=r"the image .*cat/1\.png cannot be read .*: mend or remove it$") as error:
        data.load(f"imagefolder(path='{tmp_path / 'images'}', size=8)")
    assert "cache" not in str(error.value)
