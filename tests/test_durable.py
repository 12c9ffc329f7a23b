"""Files and folders that are whole or absent whenever the power is cut, and what is refused."""

import errno
import os

import pytest

from offline_rlvr import durable
from offline_rlvr.errors import DataError, ResourceError


def refuse(monkeypatch, name, code):
    def call(*args, **kwargs):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, name, call)


def write_in_pieces(path):
    with durable.published_file(path) as temporary:
        temporary.write_bytes(b"new")


def publish(path):
    durable.publish_folder(path, lambda folder: (folder / "x").touch())


WAYS = {
    "a file": lambda path: durable.write_file(path, b"new"),
    "in pieces": write_in_pieces,
    "a folder": publish,
}


@pytest.mark.parametrize("way", WAYS)
def test_what_is_made_leaves_nothing_beside_it_and_is_made_once(tmp_path, way):
    for _ in range(2):
        if (tmp_path / "made").exists():
            with pytest.raises(DataError, match="exists already"):
                WAYS[way](tmp_path / "made")
        else:
            WAYS[way](tmp_path / "made")
        assert [path.name for path in tmp_path.iterdir()] == ["made"]


@pytest.mark.parametrize("way", WAYS)
def test_what_cannot_be_synced_is_not_made(tmp_path, monkeypatch, way):
    refuse(monkeypatch, "fsync", errno.EIO)
    with pytest.raises(ResourceError, match="Input/output error"):
        WAYS[way](tmp_path / "made")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("way", ["a file", "in pieces"])
@pytest.mark.parametrize(("code", "made"), [(errno.EPERM, True), (errno.EIO, False)])
def test_only_a_file_system_that_has_no_hard_links_goes_without(
    tmp_path, monkeypatch, way, code, made
):
    refuse(monkeypatch, "link", code)
    if made:
        WAYS[way](tmp_path / "made")
        with pytest.raises(DataError, match="exists already"):
            WAYS[way](tmp_path / "made")
    else:
        with pytest.raises(ResourceError, match="Input/output error"):
            WAYS[way](tmp_path / "made")
    assert [path.name for path in tmp_path.iterdir()] == ["made"] * made


@pytest.mark.parametrize("way", ["a file", "in pieces"])
def test_a_link_under_the_temporary_name_is_not_followed(tmp_path, way):
    (tmp_path / "other").write_text("mine")
    (tmp_path / f"{durable.TMP_PREFIX}made").symlink_to(tmp_path / "other")
    try:
        WAYS[way](tmp_path / "made")
    except ResourceError:
        assert not (tmp_path / "made").exists()
    assert (tmp_path / "other").read_text() == "mine"


def test_a_folder_that_fails_while_it_is_filled_is_kept_only_to_be_resumed(tmp_path):
    seen = []

    def fill(folder):
        seen.append(sorted(path.name for path in folder.iterdir()))
        (folder / str(len(seen))).touch()
        raise KeyboardInterrupt

    for resume in (False, True, True, False):
        with pytest.raises(KeyboardInterrupt):
            durable.publish_folder(tmp_path / "made", fill, resume=resume)
    assert seen == [[], [], ["2"], []]
    assert not list(tmp_path.iterdir())


def test_a_file_where_a_folder_is_needed_is_told(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ResourceError, match="File exists"):
        durable.make_folder(tmp_path / "file")


def test_a_removed_folder_is_gone(tmp_path):
    (tmp_path / "old/deeper").mkdir(parents=True)
    durable.remove_folder(tmp_path / "old")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("mode", ["kill", "image"])
def test_a_kill_or_power_cut_before_every_call(drive, tmp_path, mode):
    assert sum(drive("files", mode, tmp_path).values()) > 15
