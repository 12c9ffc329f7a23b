"""A build that is refused, starved or let down: its exit code, its message, and what is left.

What a kill or a power cut leaves is enumerated in `tests/pool/test_pool_crash.py`, kills at random
in `tests/pool/test_pool_build.py`. Here the builder runs as people start it. After every fault the
same command ends in the pool that an undisturbed build makes.
"""

import errno
import json
import os
import resource
import socket
import sys
from functools import wraps
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from transformers import GenerationMixin

from offline_rlvr import generation
from offline_rlvr.errors import DataError, ResourceError
from offline_rlvr.generation import hf
from offline_rlvr.lock import OWNER_NAME, WriterLock
from offline_rlvr.pool import Pool
from offline_rlvr.records import Response

CHUNK = 16


def names(pool):
    return sorted(p.relative_to(pool).as_posix() for p in pool.rglob("*") if p.is_file())


def whole(pool, commits):
    """Exactly so many commits, all readable, and nothing half-made beside them."""
    opened = Pool.open(pool)
    opened.verify()
    assert opened.commit == commits
    assert not [name for name in names(pool) if "tmp" in name]


class Flaky:
    """The real back-end behind an engine that lets the builder down from its second chunk on."""

    def __init__(self, inner, fault):
        self.inner, self.fault, self.calls = inner, fault, 0
        self.sampling = inner.sampling

    def submit(self, prompts, seeds):
        self.calls += 1
        pending, faulty = self.inner.submit(prompts, seeds), self.calls > 1
        return lambda: self.fault(pending()) if faulty else pending()

    def close(self):
        self.inner.close()


def last_response(change):
    """The fault of an engine that answers all but one response of a chunk well."""

    def fault(chunk):
        last = chunk[-1][-1]
        fields = {name: getattr(last, name) for name in Response.__dataclass_fields__}
        chunk[-1][-1] = Response(**(fields | change(last)))
        return chunk

    return fault


def engine_gone(chunk):
    raise ResourceError("the engine is gone", hint="look at its log")


@pytest.fixture
def flaky(monkeypatch):
    """Makes `generation.name: flaky` a back-end, with the fault it has."""

    def set_fault(fault):
        module = ModuleType("offline_rlvr.generation.flaky")
        module.load = wraps(hf.load)(lambda **params: Flaky(hf.load(**params), fault))
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setattr(generation, "BACKENDS", ("hf", "flaky"))
        return "--generation", "{name: flaky}"

    return set_fault


def all_but(count, entry):
    """The fault of an engine whose last answers of a chunk are something else."""
    return lambda chunk: [*chunk[:-count], *[entry] * count]


NAN = DataError("prompt 15: token 2 of a response (id 7) has log-prob nan")
FAULTS = {
    "gone": (engine_gone, 5, "the engine is gone"),
    "no prompt": (lambda chunk: chunk[:-1], 3, "15 of 16"),
    "mostly nan": (all_but(9, NAN), 3, "log-prob nan"),
    # What no back-end of ours lets through stops at the pool's own checks.
    "null": (last_response(lambda r: {"behavior_logprobs": (None,) * len(r.token_ids)}), 3, "None"),
    "nan": (
        last_response(lambda r: {"behavior_logprobs": (float("nan"),) * len(r.token_ids)}),
        3,
        "nan",
    ),
    "short": (last_response(lambda r: {"behavior_logprobs": r.behavior_logprobs[1:]}), 3, "but"),
    "empty": (last_response(lambda r: {"token_ids": (), "behavior_logprobs": ()}), 3, "no tokens"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_an_engine_that_fails_loses_only_its_chunk(build, contents, flaky, pool, small_pool, name):
    fault, code, words = FAULTS[name]
    got, output = build(*flaky(fault))
    assert (got, "Traceback" in output) == (code, False), output
    assert words in output
    whole(pool, commits=1)
    assert len(Pool.open(pool)) == CHUNK
    got, output = build(*flaky(lambda chunk: chunk))
    assert got == 0, output
    assert contents(pool) == contents(small_pool)


@pytest.mark.parametrize("answer", [NAN, []], ids=["nan", "no response"])
def test_an_unusable_answer_costs_its_group_alone(build, flaky, pool, small_pool, answer):
    got, output = build(*flaky(all_but(1, answer)))
    assert got == 0, output
    words = "log-prob nan" if isinstance(answer, DataError) else "0 responses of 4"
    assert f"group {2 * CHUNK - 1} (problem " in output
    assert words in output
    built, undisturbed = Pool.open(pool), Pool.open(small_pool)
    chunks = -(-len(built) // CHUNK)
    assert built.drops["unusable_answer"] == chunks - 1, "the first chunk had none"
    assert 2 * CHUNK - 1 not in built.index.group_ids
    shared = np.intersect1d(built.index.group_ids, undisturbed.index.group_ids)
    for ours, theirs in zip(built.read(shared), undisturbed.read(shared), strict=True):
        assert ours.texts == theirs.texts


def test_out_of_memory_in_the_engine(build, contents, pool, monkeypatch, small_pool):
    calls = []

    def generate(self, *args, **kwargs):
        calls.append(1)
        if len(calls) > 2:  # the first chunk's prompts, then its responses
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")
        return real(self, *args, **kwargs)

    real = GenerationMixin.generate
    monkeypatch.setattr(GenerationMixin, "generate", generate)
    code, output = build("--generation.batch_size", "64")
    assert (code, "Traceback" in output) == (5, False), output
    assert "out of memory with 64 responses at once; going on with 32" in output
    assert "out of memory with a single response" in output
    whole(pool, commits=1)
    monkeypatch.undo()
    assert build("--generation.batch_size", "32")[0] == 0
    assert contents(pool) == contents(small_pool)


def fails_for(name, part, code):
    """An `os` function that fails where a path or a file descriptor is of this part of a pool."""
    real = getattr(os, name)

    def call(*args, **kwargs):
        what = args[-1] if isinstance(args[-1], (str, Path)) else args[0]
        if isinstance(what, int):
            what = os.readlink(f"/proc/self/fd/{what}")
        if part in str(what):
            raise OSError(code, os.strerror(code))
        return real(*args, **kwargs)

    return call


@pytest.mark.parametrize(
    ("name", "part", "code"),
    [
        ("write", "samples/", errno.ENOSPC),
        ("write", "grades/", errno.EDQUOT),
        ("write", "commits/", errno.ENOSPC),
        ("write", "README", errno.EIO),
        ("fsync", "samples/", errno.EIO),
        ("fsync", "commits/", errno.EIO),
        ("link", "commits/", errno.ENOSPC),
        ("mkdir", "grades", errno.ENOSPC),
        ("write", "timing.jsonl", errno.ENOSPC),
    ],
)
def test_a_disk_that_refuses(build, pool, monkeypatch, small_pool, name, part, code):
    monkeypatch.setattr(os, name, fails_for(name, part, code))
    got, output = build()
    assert (got, "Traceback" in output) == (5, False), output
    assert "no space left while writing" in output or "failed (Input/output error)" in output
    assert part.rstrip("/") in output
    assert "then type the same command again; everything committed so far is kept" in output
    monkeypatch.undo()
    Pool.open(pool).verify()
    assert build()[0] == 0
    assert Pool.open(pool).hash == Pool.open(small_pool).hash


def test_a_limit_of_the_file_size(start, build, pool, small_job, small_pool):
    """A real refusal by the system, in the middle of a part."""
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000))  # noqa: E731
    process = start("pool", "build", small_job, "-o", pool, preexec_fn=limit)
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 5, output
    assert f"no space left while writing {pool / 'samples/part-00000001.parquet'}" in output
    whole(pool, commits=0)
    assert build()[0] == 0
    assert Pool.open(pool).hash == Pool.open(small_pool).hash


def test_a_disk_that_is_full_wherever_it_gets_full(build, mount, tmp_path, small_pool):
    """A file system of 256 KiB, of which ever less is taken by something else."""
    disk, filler = tmp_path / "disk", tmp_path / "disk/filler"
    disk.mkdir()
    mount(disk, "-t", "tmpfs", "-o", "size=256k", "none")
    full = set()
    filler.write_bytes(bytes(256 << 10))
    for room in range(4, 256, 12):
        os.truncate(filler, (256 - room) << 10)
        code, output = build(pool=disk / "pool")
        if code == 0:
            break
        assert (code, "Traceback" in output) == (5, False), output
        assert f"no space left while writing {disk / 'pool'}" in output
        full.add(output.split(f"{disk / 'pool'}/")[-1].split(" ")[0])
        if (disk / "pool/pool.json").exists():
            whole(disk / "pool", commits=Pool.open(disk / "pool").commit)
    assert code == 0
    assert len(full) > 2, full
    assert Pool.open(disk / "pool").hash == Pool.open(small_pool).hash


def test_a_folder_that_may_not_be_written(start, small_job, tmp_path, obey_permissions):
    for path in (tmp_path / "locked" / "pool", tmp_path / "locked"):
        (tmp_path / "locked").mkdir(exist_ok=True)
        (tmp_path / "locked").chmod(0o555)
        process = start("pool", "build", small_job, "-o", path, preexec_fn=obey_permissions)
        output, _ = process.communicate(timeout=240)
        assert process.returncode == 5, output
        assert f"cannot write {path} (Permission denied)" in output
        assert "make the folder writable or choose another one" in output
        assert not list((tmp_path / "locked").iterdir())


def test_two_builders(build, pool, tmp_path):
    build("--pool.max_sampled_groups", "16")
    before = names(pool)
    lock = WriterLock(pool)
    try:
        code, output = build()
        assert code == 7, output
        assert "error[busy]: " in output
        assert f"{pool} is being written by process {os.getpid()} on host " in output
        assert socket.gethostname() in output
        assert "wait for it to end, or end it, then type the same command again" in output
        # A file system shared by several machines: the owner's host is what its file says.
        (pool / OWNER_NAME).write_text(json.dumps({"pid": 4711, "host": "node-7"}))
        code, output = build()
        assert (code, "process 4711 on host node-7" in output) == (7, True), output
        (pool / OWNER_NAME).write_text("{")
        code, output = build()
        assert (code, "another process" in output) == (7, True), output
    finally:
        lock.release()
    assert names(pool) == before
    (pool / OWNER_NAME).write_text(json.dumps({"pid": 4711, "host": "node-7"}))
    assert build()[0] == 0, "what a dead owner left blocks nobody"
