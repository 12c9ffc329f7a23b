"""The GGPO paper's problem set: its config reads local folders laid out like the hub's."""

from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq

from offline_rlvr.config import load_config
from offline_rlvr.problems import dedupe, load

CONFIG = Path(__file__).parents[2] / "configs" / "paper" / "ggpo_offline.yaml"


def write(file, rows):
    file.parent.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows), file)


def guru(question, answer):
    return {
        "prompt": [{"content": question, "role": "user"}],
        "reward_model": {"ground_truth": answer, "style": "rule"},
    }


def openr1(question, answer, scores):
    return {"prompt": question, "answer": answer, "scores": scores}


def test_both_sources_in_order_filtered_and_deduplicated(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    # `datasets` prefers a folder of that name to the hub.
    monkeypatch.chdir(tmp_path)
    hub = Path("LLM360/guru-RL-92k")
    write(
        hub / "train/math__combined_54.4k.parquet",
        [guru("1 + 1", "2"), guru("1 + 2", "3"), guru("1 + 1", "2")],
    )
    write(hub / "train_other/other.parquet", [guru("code", "0")])
    write(
        Path("weqweasdas/from_default_filtered_openr1_with_scores/data/train-0.parquet"),
        [
            openr1("1 + 2", "three", [0.0, 1.0]),
            openr1("never", "0", [1.0, 0.0, 0.0, 0.0, 0.0]),
            openr1("always", "0", [0.0, 1.0, 1.0, 1.0, 1.0]),
            openr1("1 + 3", "4", [1.0, 0.0, 0.0]),
        ],
    )
    config = load_config(CONFIG)
    problems, dropped = dedupe(config.build("problems", load))
    assert [(p.question, p.answer) for p in problems] == [
        ("1 + 1", "2"),
        ("1 + 2", "3"),
        ("1 + 3", "4"),
    ]
    assert dropped == 2


def test_the_revisions_are_pinned():
    sources = load_config(CONFIG).problems.params["sources"]
    assert [(source["path"], source["revision"]) for source in sources] == [
        ("LLM360/guru-RL-92k", "2e2790a962a3c099bfb5ea61389cbf98a5ea439b"),
        (
            "weqweasdas/from_default_filtered_openr1_with_scores",
            "da327b36b4dc077240aa8efd7f25c4017cd74ef4",
        ),
    ]
