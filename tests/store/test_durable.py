"""A file that has to outlive a power cut is on the disk, with its name, before anybody is told of it."""

import os

import torch

from fl_app.client.policy import OwnConfig
from fl_app.client.state import ClientState, Kept
from fl_app.experiment.config import Experiment
from fl_app.store.files import load_tensors, save_tensors


def flushed(monkeypatch):
    """What is flushed from now on: the paths, as they were called then."""
    found, real = [], os.fsync

    def watch(number):
        found.append(os.readlink(f"/proc/self/fd/{number}"))
        real(number)

    monkeypatch.setattr(os, "fsync", watch)
    return found


def test_the_file_is_flushed_before_it_gets_its_name_and_the_folder_after(tmp_path, monkeypatch):
    found = flushed(monkeypatch)
    path = tmp_path / "x.safetensors"
    save_tensors(path, {"a": torch.ones(3)}, {})
    assert found == []
    save_tensors(path, {"a": torch.zeros(3)}, {}, durable=True)
    assert found == [str(tmp_path / f".x.safetensors.{os.getpid()}"), str(tmp_path)]
    assert torch.equal(load_tensors(path)[0]["a"], torch.zeros(3))


def test_what_a_client_keeps_is_on_the_disk_before_it_answers(tmp_path, monkeypatch):
    found = flushed(monkeypatch)
    state = ClientState(tmp_path, Experiment(), OwnConfig(), 0, 7)
    state.write(Kept(7, 1, 1, {"kept": torch.ones(2)}))
    assert str(state.folder) in found
