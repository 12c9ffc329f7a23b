"""Push and pull through the hub's own client and real HTTP, to a hub in this process."""

import os
import subprocess
import sys

import pytest

from offline_rlvr.errors import ConfigError, DataError, ResourceError
from offline_rlvr.pool import Pool, PoolWriter
from offline_rlvr.pool.hub import pull, push
from offline_rlvr.pool.repair import repair


def test_there_and_back(pool_path, tmp_path, hub, api):
    with PoolWriter.reopen(pool_path) as writer:
        writer.finish()
    (pool_path / "notes.txt").write_text("not ours")
    (pool_path / "samples/part-00000009.parquet").write_bytes(b"no commit names it")
    commit = push(pool_path, "lab/pool", api=api)
    assert hub.repositories["lab/pool"]["private"] is True
    pushed = hub.files("lab/pool")
    names = {"README.md", "pool.json", "commits/00000001.json", "commits/00000002.json"}
    names |= {f"{d}/part-0000000{i}.parquet" for d in ("samples", "grades/exact-1") for i in (1, 2)}
    assert pushed.keys() - {".gitattributes"} == names
    assert all(pushed[name] == (pool_path / name).read_bytes() for name in names)
    target = tmp_path / "new folder/pulled é"
    assert pull("lab/pool", target, api=api) == commit
    there = {p.relative_to(target).as_posix() for p in target.rglob("*") if p.is_file()}
    assert there == names
    assert [p.name for p in target.parent.iterdir()] == [target.name]
    assert Pool.open(target).hash == Pool.open(pool_path).hash
    with PoolWriter.reopen(target) as writer:
        assert writer.commit == 2


def test_a_push_again_makes_the_repository_the_pool_as_it_is(pool_path, tmp_path, hub, api):
    first = push(pool_path, "lab/pool", private=False, api=api)
    assert hub.repositories["lab/pool"]["private"] is False
    old = Pool.open(pool_path).hash
    (pool_path / "samples/part-00000001.parquet").write_bytes(b"")
    with pytest.raises(DataError, match="part-00000001"):
        push(pool_path, "lab/pool", api=api)
    repair(pool_path)
    push(pool_path, "lab/pool", api=api)
    assert "samples/part-00000001.parquet" not in hub.files("lab/pool")
    pull("lab/pool", tmp_path / "new", api=api)
    assert Pool.open(tmp_path / "new").hash == Pool.open(pool_path).hash != old
    pull("lab/pool", tmp_path / "old", revision=first, api=api)
    assert Pool.open(tmp_path / "old").hash == old


def test_branches(pool_path, tmp_path, hub, api):
    push(pool_path, "lab/pool", revision="draft/1", api=api)
    assert "pool.json" not in hub.files("lab/pool")
    pull("lab/pool", tmp_path / "draft", revision="draft/1", api=api)
    assert len(Pool.open(tmp_path / "draft")) == 10
    with pytest.raises(ConfigError, match="is not a pool"):
        pull("lab/pool", tmp_path / "main", api=api)
    with pytest.raises(ConfigError, match="has no revision 'final'"):
        pull("lab/pool", tmp_path / "x", revision="final", api=api)


@pytest.mark.parametrize(
    "name", ["pool.json", "commits/00000002.json", "grades/exact-1/part-00000001.parquet"]
)
def test_what_arrives_damaged_is_not_kept(pool_path, tmp_path, hub, api, name):
    push(pool_path, "lab/pool", api=api)
    hub.broken.add(name)
    with pytest.raises(DataError, match="damaged"):
        pull("lab/pool", tmp_path / "pulled", api=api)
    assert not list(tmp_path.glob("*pulled*"))
    hub.broken.clear()
    pull("lab/pool", tmp_path / "pulled", api=api)


def test_an_interrupted_pull_goes_on_where_it_was(pool_path, tmp_path, hub, api):
    push(pool_path, "lab/pool", api=api)
    late = "samples/part-00000002.parquet"
    hub.forbidden.add(late)
    with pytest.raises(ResourceError, match="type the same command again"):
        pull("lab/pool", tmp_path / "pulled", api=api)
    assert not (tmp_path / "pulled").exists()
    hub.forbidden.clear()
    hub.requests.clear()
    pull("lab/pool", tmp_path / "pulled", api=api)
    fetched = {path.split("/", 6)[6] for path in hub.requests if "/resolve/" in path}
    assert late in fetched
    assert "samples/part-00000001.parquet" not in fetched
    assert Pool.open(tmp_path / "pulled").hash == Pool.open(pool_path).hash


def test_a_hostile_repository(pool_path, tmp_path, hub, api):
    """Files that are not a pool's are not downloaded; nothing of them runs."""
    push(pool_path, "lab/pool", api=api)
    more = {"evil.py": b"1/0", "samples/x.pkl": b"\x80\x04.", "samples/part-x.parquet": b"x"}
    hub.commit("lab/pool", "main", hub.files("lab/pool") | more)
    pull("lab/pool", tmp_path / "pulled", api=api)
    found = {p.name for p in (tmp_path / "pulled").rglob("*")}
    assert found & {"evil.py", "x.pkl"} == set()
    assert Pool.open(tmp_path / "pulled").hash == Pool.open(pool_path).hash


def test_refusals(pool_path, tmp_path, hub, api):
    from huggingface_hub import HfApi

    with pytest.raises(ConfigError, match="exists already"):
        pull("lab/pool", pool_path, api=api)
    with pytest.raises(ConfigError, match="no pool at"):
        push(tmp_path / "none", "lab/pool", api=api)
    with pytest.raises(ConfigError, match="no repository lab/none") as caught:
        pull("lab/none", tmp_path / "x", api=api)
    assert "hf auth login" in caught.value.hint
    with pytest.raises(ConfigError, match="cannot name a repository"):
        pull("a/b/c", tmp_path / "x", api=api)
    stranger = HfApi(endpoint=hub.url, token=False)
    with pytest.raises(ConfigError, match="refuses lab/pool") as caught:
        push(pool_path, "lab/pool", api=stranger)
    assert "hf auth login" in caught.value.hint
    push(pool_path, "lab/pool", api=api)
    with pytest.raises(ConfigError, match="no repository lab/pool that this login may see"):
        pull("lab/pool", tmp_path / "x", api=stranger)
    nobody = HfApi(endpoint="http://127.0.0.1:9", token=hub.token)
    for work in (
        lambda: push(pool_path, "lab/pool", api=nobody),
        lambda: pull("lab/pool", tmp_path / "x", api=nobody),
    ):
        with pytest.raises(ResourceError, match="the hub cannot be used") as caught:
            work()
        assert "network" in caught.value.hint
    assert not (tmp_path / "x").exists()


def test_the_verbs(pool_path, tmp_path, hub):
    environment = {
        **os.environ,
        "HF_ENDPOINT": hub.url,
        "HF_TOKEN": hub.token,
        "HF_HOME": str(tmp_path / "home"),
        "HF_HUB_OFFLINE": "0",
    }

    def run(*arguments, **changes):
        code = "from offline_rlvr.cli.main import main; main()"
        done = subprocess.run(
            [sys.executable, "-c", code, "pool", *map(str, arguments)],
            env=environment | changes,
            capture_output=True,
            text=True,
            timeout=120,
        )
        return done.returncode, done.stdout + done.stderr

    code, output = run("push", pool_path, "lab/pool", "--public")
    assert code == 0, output
    assert hub.repositories["lab/pool"]["private"] is False
    command = output.strip().splitlines()[-1].split("offline-rlvr pool ")[1].split()
    command[2] = str(tmp_path / "pulled")
    code, output = run(*command)
    assert code == 0, output
    assert Pool.open(tmp_path / "pulled").hash == Pool.open(pool_path).hash
    code, output = run("pull", "lab/pool", tmp_path / "x", HF_HUB_OFFLINE="1")
    assert (code, "HF_HUB_OFFLINE" in output) == (5, True), output
