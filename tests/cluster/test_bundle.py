"""Files that travel: they arrive as they were sent, or not at all, and nowhere but in their folder."""

import hashlib
import shutil

import numpy as np
import pytest

from fl_app.cluster.bundle import Bundle, Entry, digest_of, files_in, is_name, pack, unpack
from fl_app.store.files import RunError


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "sent"
    (root / "a" / "b").mkdir(parents=True)
    (root / "a" / "b" / "big").write_bytes(bytes(range(256)) * 999)
    (root / "a" / "empty").write_bytes(b"")
    (root / "last").write_bytes(b"x")
    for hidden in (root / ".lock", root / "a" / ".part"):
        hidden.write_bytes(b"nobody's")
    (root / "link").symlink_to("/etc/passwd")
    return root


def bundle_of(**files):
    entries = [Entry(name, len(text), hashlib.sha256(text).hexdigest()) for name, text in files.items()]
    return Bundle(tuple(entries), np.frombuffer(b"".join(files.values()), np.uint8))


def test_files_arrive_as_they_were_sent_without_links_and_hidden_ones(folder, tmp_path):
    sent = pack(folder, files_in(folder))
    assert [entry.name for entry in sent.entries] == ["a/b/big", "a/empty", "last"]
    unpack(sent, tmp_path / "there")
    assert files_in(tmp_path / "there") == files_in(folder)
    for entry in sent.entries:
        assert digest_of(tmp_path / "there" / entry.name) == entry.digest == digest_of(folder / entry.name)
        assert (tmp_path / "there" / entry.name).stat().st_size == entry.size
    (tmp_path / "there" / "last").write_bytes(b"own")
    shutil.rmtree(tmp_path / "there" / "a")
    unpack(sent, tmp_path / "there", keep=True)
    assert (tmp_path / "there" / "last").read_bytes() == b"own"
    assert files_in(tmp_path / "there") == files_in(folder)


def test_nothing_is_written_if_one_file_is_not_what_was_sent(folder, tmp_path):
    sent = pack(folder, files_in(folder))
    damaged = sent.content.copy()
    damaged[-1] ^= 1
    for wrong in (
        sent._replace(content=damaged),
        sent._replace(content=sent.content[:-1]),
        sent._replace(content=np.append(sent.content, np.uint8(0))),
        sent._replace(entries=(*sent.entries[:-1], sent.entries[-1]._replace(digest="0" * 64))),
    ):
        with pytest.raises(RunError, match=r"checksum is wrong|more bytes"):
            unpack(wrong, tmp_path / "there")
        assert not (tmp_path / "there").exists()


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "/x", "a/../../x", "a//b", "./a", "a/", "new\nline", "nul\0"])
def test_a_name_that_leads_elsewhere_is_refused(name, tmp_path):
    assert not is_name(name)
    with pytest.raises(RunError, match="no name of a file"):
        unpack(bundle_of(**{"good": b"1", name: b"2"}), tmp_path / "there")
    assert not (tmp_path / "there").exists()


def test_a_link_that_lies_in_the_folder_leads_nobody_out(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "out").symlink_to(tmp_path)
    with pytest.raises(RunError, match="no name of a file"):
        unpack(bundle_of(**{"out/x": b"2"}), tmp_path / "there")
    assert not (tmp_path / "x").exists()


def test_a_file_that_is_gone_is_named(folder):
    with pytest.raises(RunError, match="gone cannot be read"):
        pack(folder, ["gone"])
