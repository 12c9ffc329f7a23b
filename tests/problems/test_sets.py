"""Named sets: what is in each, and how all of them are evaluated and averaged."""

from pathlib import Path

import pytest

from offline_rlvr.config import load_config
from offline_rlvr.errors import ConfigError
from offline_rlvr.evaluation import problem_weighted, read_evaluations
from offline_rlvr.problems import load, load_sets
from offline_rlvr.report import plain_summary
from offline_rlvr.trainer.evaluate import evaluate_run
from offline_rlvr.trainer.run import train
from offline_rlvr.trainer.status import RunStatus

DATA = Path(__file__).parents[3] / "shared" / "data"
BENCHMARKS = Path(__file__).parents[2] / "configs/paper/benchmarks.yaml"
SUMS = {"name": "arithmetic", "split": "heldout", "count": 5, "seed": 1}
MORE = {"name": "arithmetic", "split": "heldout", "count": 3, "seed": 2}


def test_sets_by_name_and_joined():
    sets = load_sets("sets", sums=SUMS, more=MORE)
    assert {name: len(problems) for name, problems in sets.items()} == {"sums": 5, "more": 3}
    assert sets["sums"] == load(**SUMS)
    joined = load("sets", sums=SUMS, more=MORE)
    assert [p.question for p in joined] == [p.question for part in sets.values() for p in part]
    assert joined[0].id == f"sums/{sets['sums'][0].id}"
    assert load_sets(**SUMS) == {"arithmetic": load(**SUMS)}


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        ({}, "there is none"),
        ({"aime/24": SUMS}, "'aime/24' is not a name"),
        ({"aime24": "aime"}, "aime24 is 'aime'"),
        ({"aime24": {"count": 3}}, "expected {name: SOURCE"),
        ({"aime24": {"name": "arithmetic", "counts": 3}}, "aime24: unknown parameter"),
    ],
)
def test_refusals(sets, message):
    with pytest.raises(ConfigError, match=message):
        load("sets", **sets)


def test_every_set_is_evaluated_stored_and_weighted_by_its_problems(
    small_job, small_pool, tmp_path, capsys
):
    text = f"{{name: sets, sums: {SUMS}, more: {MORE}}}".replace("'", "")
    config = load_config(small_job, [("evaluation.problems", text)])
    train(config, small_pool, tmp_path / "run")
    results = read_evaluations(tmp_path / "run")
    found = [(e.name, e.update, len(e.problem_ids)) for e in results]
    assert found == [("more", 0, 3), ("more", 6, 3), ("sums", 0, 5), ("sums", 6, 5)]
    after = [e for e in results if e.update == 6]
    weighted = problem_weighted(after)["value"]
    total = sum(float(e.rewards.sum()) for e in after)
    assert weighted == pytest.approx(total / (8 * 4))
    assert RunStatus.of(tmp_path / "run").row[-1] == f"{weighted:.1%}"
    assert "(more + sums, 8 problems)" in " ".join(plain_summary(tmp_path / "run"))
    contents = {p.name: p.read_bytes() for p in (tmp_path / "run/evaluations").iterdir()}
    (tmp_path / "run/evaluations/more-update-000006.parquet").unlink()
    evaluate_run(tmp_path / "run")
    assert {p.name: p.read_bytes() for p in (tmp_path / "run/evaluations").iterdir()} == contents


def test_the_benchmarks_are_named_and_pinned():
    sets = load_config(BENCHMARKS).evaluation.problems.params
    assert list(sets) == ["math500", "aime24", "aime25", "olympiadbench", "minerva"]
    for name in ("math500", "aime24", "aime25"):
        assert len(sets[name]["revision"]) == 40


@pytest.mark.skipif(not DATA.is_dir(), reason=f"no {DATA}")
def test_local_copies_of_the_benchmarks():
    sources = {
        n: {"name": "files", "path": str(DATA / f"{n}.jsonl")} for n in ("math500", "aime24")
    }
    sets = load_sets("sets", **sources)
    assert {name: len(problems) for name, problems in sets.items()} == {
        "math500": 500,
        "aime24": 30,
    }
