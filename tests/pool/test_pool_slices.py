"""Slices, pilots and dry runs of a build: the same groups, drawn by several hands or in parts."""

import json

import numpy as np
import pytest

from offline_rlvr.config import load_config
from offline_rlvr.errors import ConfigError, IncompatibleError, QualityGateError
from offline_rlvr.pool import Pool
from offline_rlvr.pool.build import Slice, build_pool, dry_run, pilot
from offline_rlvr.pool.build.tally import wilson


def job(small_job, *overrides):
    return load_config(small_job, overrides)


def test_slices_are_disjoint_and_cover_everything():
    parts = [Slice(i, 3).positions(10).tolist() for i in (1, 2, 3)]
    assert parts == [[0, 3, 6, 9], [1, 4, 7], [2, 5, 8]]
    assert sum(Slice(i, 3).share(10) for i in (1, 2, 3)) >= 10


@pytest.mark.parametrize("text", ["0/3", "4/3", "3", "a/b", "1/0", "-1/2", "1/2/3", ""])
def test_a_slice_that_is_none(text):
    with pytest.raises(ConfigError, match="looks like 3/8"):
        Slice.parse(text)


def test_two_slices_sample_what_one_builder_does(small_job, small_pool, tmp_path):
    whole = Pool.open(small_pool)
    for part in (Slice(1, 2), Slice(2, 2)):
        pool = build_pool(job(small_job), tmp_path / f"part-{part.index}", part)
        assert set(pool.index.group_ids % 2) == {part.index - 1}
        assert pool.index.mixed.sum() >= 14, "half of 24, and half of the probe's 3"
        shared = np.intersect1d(pool.index.group_ids, whole.index.group_ids)
        for ours, theirs in zip(pool.read(shared), whole.read(shared), strict=True):
            assert ours.texts == theirs.texts
            assert ours.problem_id == theirs.problem_id
        assert pool.identity["slice"] == [part.index, 2]
        assert bool(pool.drops) == (part.index == 1 and bool(whole.drops)), "counted once"


def test_a_slice_may_sample_every_problem_of_its_own(small_job, tmp_path):
    few = [("problems.count", "8"), ("pool.chunk_groups", "2"), ("pool.mixed_groups", "1000")]
    path = tmp_path / "p"
    most = "\n".join(dry_run(job(small_job, *few), path, Slice(2, 2)))
    assert "of at most 4 sampled" in most
    with pytest.raises(QualityGateError, match=r"4 groups .of 4 problems.; there are no more"):
        build_pool(job(small_job, *few), path, Slice(2, 2))
    assert Pool.open(path).index.group_ids.tolist() == [1, 3, 5, 7]
    budget = job(small_job, *few, ("pool.max_sampled_groups", "3"))
    with pytest.raises(QualityGateError, match=r"pool.max_sampled_groups is used up"):
        build_pool(budget, tmp_path / "q", Slice(2, 2))
    assert len(Pool.open(tmp_path / "q")) == 2


def test_a_slice_is_not_continued_as_another(small_job, tmp_path):
    config = job(small_job, ("pool.mixed_groups", "2"), ("pool.probe_groups", "0"))
    build_pool(config, tmp_path / "p", Slice(1, 2))
    with pytest.raises(IncompatibleError, match="slice"):
        build_pool(config, tmp_path / "p", Slice(2, 2))


def test_a_pilot_is_the_beginning_of_the_pool(small_job, small_pool, tmp_path):
    path = tmp_path / "pool"
    lines = "\n".join(pilot(job(small_job), path, 10))
    whole, begun = Pool.open(small_pool), Pool.open(path)
    assert begun.index.group_ids.tolist() == list(range(10))
    mixed = int(whole.index.mixed[:10].sum())
    assert f"10 groups, {mixed} mixed: {mixed / 10:.0%}" in lines
    assert "tokens/s: about " in lines
    assert "disk" in lines
    assert "measures it" in "\n".join(pilot(job(small_job), path, 10)), "nothing left to sample"
    build_pool(job(small_job), path)
    n = min(len(whole), len(Pool.open(path)))
    for ours, theirs in zip(Pool.open(path).read(range(n)), whole.read(range(n)), strict=True):
        assert ours.texts == theirs.texts


def test_a_dry_run_writes_nothing_and_tells_what_it_can(small_job, small_pool, tmp_path):
    lines = "\n".join(dry_run(job(small_job), tmp_path / "none"))
    assert not (tmp_path / "none").exists()
    assert "200 to draw from" in lines
    assert "at most" in lines
    assert "0 are also in the evaluation set 'arithmetic'" in lines
    before = Pool.open(small_pool)
    again = "\n".join(dry_run(job(small_job), small_pool))
    assert f"{len(before)} groups" in again
    assert Pool.open(small_pool).hash == before.hash
    with pytest.raises(IncompatibleError, match="seed"):
        dry_run(job(small_job, ("pool.seed", "5")), small_pool)


def test_problems_of_the_evaluation_set_are_counted(small_job, tmp_path):
    held_out = tmp_path / "q.jsonl"
    rows = [("12 +  5", "17"), ("3 + 4", "7"), ("1 + 1", "2")]
    lines = [json.dumps({"question": q, "answer": a}) for q, a in rows]
    held_out.write_text("\n".join(lines))
    source = f"{{name: files, path: {held_out}}}"
    seen = tmp_path / "seen.jsonl"
    seen.write_text(lines[0].replace("+  5", "+ 5") + "\n" + lines[2])
    config = job(
        small_job, ("problems", source), ("evaluation.problems", source.replace("q.", "seen."))
    )
    assert "2 are also in the evaluation set 'files'" in "\n".join(dry_run(config, tmp_path / "p"))
    pilot(config, tmp_path / "p", 1)
    assert Pool.open(tmp_path / "p").identity["overlap"] == {"files": 2}
    assert "| overlap.files | 2 |" in (tmp_path / "p" / "README.md").read_text()


def test_wilson_interval():
    """Values of Newcombe (1998), table I: 81/263 and 0/20."""
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert wilson(0, 20) == pytest.approx((0.0, 0.1611), abs=5e-5)


def test_the_command_line(small_job, command, tmp_path):
    pool = tmp_path / "pool"
    code, output = command("pool", "build", small_job, "-o", pool, "--dry-run")
    assert code == 0, output
    assert "to draw from" in output
    code, output = command("pool", "build", small_job, "-o", pool, "--slice", "2/4", "--pilot", "3")
    assert code == 0, output
    assert Pool.open(pool).index.group_ids.tolist() == [1, 5, 9]
    code, output = command("pool", "build", small_job, "-o", pool, "--max-unscored", "many")
    assert code == 2
    assert "write 1% or 0.01" in output
