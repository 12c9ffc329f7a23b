"""What is kept for other runs: whole, told apart by its facts, and never in the way."""

import os
from concurrent.futures import ThreadPoolExecutor

from offline_rlvr.cache import Cache


def test_writers_and_readers_at_once_see_whole_data(tmp_path):
    said = []

    def write_and_read(number):
        cache = Cache(tmp_path, "tables", said.append)
        for _ in range(15):
            found = cache.get({"same": True})
            if found is not None:
                assert len(set(found)) == 1
                assert len(found) == 100_000
            cache.keep({"same": True}, bytes([number]) * 100_000)
            if not number:
                for path in tmp_path.glob("*.kept"):
                    path.unlink(missing_ok=True)

    with ThreadPoolExecutor() as pool:
        list(pool.map(write_and_read, range(3)))
    assert {line.split(":")[0] for line in said} <= {"tables"}


def test_data_used_longest_ago_make_room(tmp_path, monkeypatch):
    monkeypatch.setattr("offline_rlvr.cache.MAX_BYTES", 250)
    cache = Cache(tmp_path, "tables", lambda line: None)
    for number in range(3):
        cache.keep({"n": number}, b"x" * 68)
        for age, path in enumerate(sorted(tmp_path.iterdir(), key=os.path.getmtime)):
            os.utime(path, (1000 + age, 1000 + age))
    assert [cache.get({"n": number}) is None for number in range(3)] == [True, False, False]


def test_what_a_killed_writer_left_is_removed(tmp_path):
    cache = Cache(tmp_path, "tables", lambda line: None)
    cache.keep({"n": 0}, b"old")
    (kept,) = tmp_path.iterdir()
    left, fresh = (tmp_path / f"{kept.name}-{name}" for name in ("left", "fresh"))
    for path in (left, fresh):
        path.write_bytes(b"half")
    os.utime(left, (1000, 1000))
    cache.keep({"n": 1}, b"new")
    assert not left.exists()
    assert fresh.exists()
    assert kept.exists()
