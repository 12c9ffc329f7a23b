"""Who holds a folder: told by a file beside the lock that no recycled number and no link fools."""

import json
import os
import socket
import subprocess
import sys

import pytest

from offline_rlvr.errors import BusyError, ResourceError
from offline_rlvr.lock import OWNER_NAME, WriterLock, writer_of


def test_a_released_lock_lets_the_next_writer_in(tmp_path):
    first = WriterLock(tmp_path)
    with pytest.raises(BusyError, match=f"process {os.getpid()} on host"):
        WriterLock(tmp_path)
    assert writer_of(tmp_path) == f"process {os.getpid()} on host {socket.gethostname()}"
    first.release()
    assert writer_of(tmp_path) is None
    second = WriterLock(tmp_path)
    first.release()  # once more: not the second one's
    assert writer_of(tmp_path) is not None
    second.release()


@pytest.mark.parametrize("name", [".lock", OWNER_NAME])
def test_a_link_in_place_of_either_file_is_not_followed(tmp_path, name):
    (tmp_path / "folder").mkdir()
    (tmp_path / "other").write_text("mine")
    (tmp_path / "folder" / name).symlink_to(tmp_path / "other")
    if name == OWNER_NAME:  # it is made anew
        WriterLock(tmp_path / "folder").release()
    else:
        with pytest.raises(ResourceError, match="symbolic links"):
            WriterLock(tmp_path / "folder")
    assert (tmp_path / "other").read_text() == "mine"


def owned_by(folder, pid, host=None):
    owner = {"pid": pid, "host": host or socket.gethostname()}
    (folder / OWNER_NAME).write_text(json.dumps(owner))


def test_a_process_younger_than_the_file_is_another_program(tmp_path):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        owned_by(tmp_path, process.pid)
        assert writer_of(tmp_path) == f"process {process.pid} on host {socket.gethostname()}"
        os.utime(tmp_path / OWNER_NAME, (1e9, 1e9))
        assert writer_of(tmp_path) is None
        process.communicate(b"\n")
    owned_by(tmp_path, process.pid)
    assert writer_of(tmp_path) is None


@pytest.mark.parametrize("pid", [-1, 10**30, float("inf"), None, "x", []])
def test_an_owner_that_is_no_process_is_none(tmp_path, pid):
    owned_by(tmp_path, pid)
    assert writer_of(tmp_path) is None


def test_of_another_host_nothing_can_be_known(tmp_path):
    owned_by(tmp_path, 4194305, "elsewhere")
    assert writer_of(tmp_path) == "process 4194305 on host elsewhere"


def test_a_pipe_in_place_of_the_owner_is_not_read(tmp_path):
    os.mkfifo(tmp_path / OWNER_NAME)
    assert writer_of(tmp_path) is None
    WriterLock(tmp_path).release()
