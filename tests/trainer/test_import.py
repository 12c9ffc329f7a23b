"""Pools made of files: what this project exports, texts alone, and what is refused."""

import json
import re
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from offline_rlvr.config import load_config
from offline_rlvr.errors import ConfigError, DataError, IncompatibleError
from offline_rlvr.generation.pretrained import load_tokenizer
from offline_rlvr.generation.prompt import PromptFormat
from offline_rlvr.pool import Pool, PoolWriter
from offline_rlvr.pool.export import FORMATS, export
from offline_rlvr.pool.repair import repair
from offline_rlvr.trainer.import_pool import import_pool
from offline_rlvr.trainer.run import train

#: One float32 forward differs from another (other batch shape, KV cache) by about this, in nats.
KERNEL_NOISE = 1e-4


def job(small_job, *overrides):
    return load_config(small_job, overrides)


@pytest.fixture(scope="module")
def exported(small_pool, tmp_path_factory):
    """The small pool as one file per layout and suffix."""
    folder = tmp_path_factory.mktemp("dumps é")
    files = {}
    for layout in FORMATS:
        for suffix in (".jsonl", ".parquet"):
            files[layout + suffix] = folder / f"{layout}{suffix}"
            export(small_pool, files[layout + suffix], layout)
    return files


@pytest.fixture(scope="module")
def rows(exported):
    """The rows of the pool, `responses` layout."""
    return [json.loads(line) for line in exported["responses.jsonl"].read_text().splitlines()]


def write(file, rows):
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def without(rows, *columns):
    return [{k: v for k, v in row.items() if k not in columns} for row in rows]


def contents(pool):
    groups = pool.read(pool.index.group_ids)
    return [
        (
            g.group_id, g.prompt_token_ids.tolist(), [ids.tolist() for ids in g.response_token_ids],
            [values.tolist() for values in g.behavior_logprobs], g.texts, g.finish_reasons,
        )
        for g in groups
    ]  # fmt: skip


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
@pytest.mark.parametrize("layout", ["responses", "verl"])
def test_what_was_exported_comes_back(small_job, small_pool, exported, tmp_path, layout, suffix):
    old = Pool.open(small_pool)
    new = import_pool(job(small_job), exported[layout + suffix], tmp_path / "pool", layout)
    assert contents(new) == contents(old)
    assert np.array_equal(new.index.rewards, old.index.rewards)
    assert np.array_equal(new.index.statuses, old.index.statuses)
    assert new.verifier_id == old.verifier_id
    for mine, theirs in zip(*(p.read(p.index.group_ids) for p in (new, old)), strict=True):
        assert (mine.question, mine.answer) == (theirs.question, theirs.answer)
    assert new.identity["sampling"] == old.identity["sampling"]
    new.verify()


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_trl_rows_are_grouped_by_their_prompts(small_job, small_pool, exported, tmp_path, suffix):
    old = Pool.open(small_pool)
    file = exported["trl" + suffix]
    new = import_pool(job(small_job), file, tmp_path / "pool", "trl", rewards="given")
    assert new.index.group_ids.tolist() == list(range(len(old)))
    assert [group[1:] for group in contents(new)] == [group[1:] for group in contents(old)]
    assert np.array_equal(new.index.rewards, old.index.rewards)
    assert new.verifier_ids == ["imported"]
    with pytest.raises(ConfigError, match="no answers to verify") as caught:
        import_pool(job(small_job), file, tmp_path / "other", "trl")
    assert "--rewards given" in caught.value.hint


def test_texts_are_scored_again_and_train_visibly(
    small_job, small_pool, rows, tmp_path, command, capfd
):
    verl = [
        {"input": row["question"], "output": row["text"], "gts": row["answer"], "score": 0.0}
        for row in rows
    ]
    file = write(tmp_path / "texts.jsonl", verl)
    code, output = command(
        "pool", "import", file, tmp_path / "pool", "--config", small_job, "--format", "verl"
    )
    assert code == 0, output
    old, new = Pool.open(small_pool), Pool.open(tmp_path / "pool")
    assert new.identity["sampling"]["logprobs"] == "rescored"
    assert "have scored" not in output
    assert "afterwards" in (tmp_path / "pool/README.md").read_text()
    assert np.array_equal(new.index.rewards, old.index.rewards)
    same = compared = 0
    for mine, theirs in zip(*(p.read(p.index.group_ids) for p in (new, old)), strict=True):
        assert mine.prompt_token_ids.tolist() == theirs.prompt_token_ids.tolist()
        for k in range(4):
            compared += 1
            if mine.response_token_ids[k].tolist() != theirs.response_token_ids[k].tolist():
                continue  # the text of some ids is also that of others
            same += 1
            gap = np.abs(mine.behavior_logprobs[k] - theirs.behavior_logprobs[k])
            assert gap.max() < KERNEL_NOISE
    assert same > 0.9 * compared
    config = job(small_job, ("train.max_updates", "2"), ("evaluation.problems", "null"))
    run = train(config, tmp_path / "pool", tmp_path / "run")
    assert run.facts["behavior_logprobs"] == "rescored"
    assert "warning: the pool's log-probs were scored after the fact" in capfd.readouterr().out
    train(config, tmp_path / "pool", tmp_path / "run")


def test_a_whole_prompt_as_the_question(small_job, small_pool, rows, tmp_path):
    """verl writes the decoded prompt, template included."""
    config = job(small_job, ("prompt.user_suffix", "'='"))
    tokenizer = load_tokenizer("builtin")
    prompt = PromptFormat(user_suffix="=")
    made = [
        {**row, "question": tokenizer.decode(prompt.render(tokenizer, row["question"]),
                                             skip_special_tokens=True)}
        for row in without(rows[:8], "prompt_ids", "logprobs", "completion_ids")
    ]  # fmt: skip
    pool = import_pool(config, write(tmp_path / "a.jsonl", made), tmp_path / "pool")
    groups = pool.read(pool.index.group_ids)
    assert [g.question for g in groups] == [rows[0]["question"], rows[4]["question"]]
    assert groups[0].prompt_token_ids.tolist() == prompt.render(tokenizer, rows[0]["question"])


def test_scattered_rows_short_groups_and_surplus(small_job, rows, tmp_path):
    few, many = rows[0]["group_id"], rows[4]["group_id"]
    changed = [*rows[1:], {**rows[7], "text": "one more"}]
    order = np.random.default_rng(0).permutation(len(changed))
    shuffled = [changed[i] for i in order]
    pool = import_pool(job(small_job), write(tmp_path / "a.jsonl", shuffled), tmp_path / "pool")
    assert few not in pool.index.group_ids
    assert pool.drops == {"fewer_than_group_size": 1}
    found = pool.read([many])[0]
    expected = [row["completion_ids"] for row in shuffled if row["group_id"] == many][:4]
    assert [ids.tolist() for ids in found.response_token_ids] == expected


def test_given_rewards(small_job, rows, tmp_path):
    values = [2.5, -1.0, 0, None, 1, float("nan"), 0.25, 0]
    given = [{**row, "reward": value} for row, value in zip(rows, values, strict=False)]
    file = write(tmp_path / "a.jsonl", given)
    pool = import_pool(job(small_job), file, tmp_path / "pool", rewards="given")
    assert pool.verifier_id == "imported"
    expected = [[2.5, -1, 0, np.nan], [1, np.nan, 0.25, 0]]
    assert np.array_equal(pool.index.rewards, expected, equal_nan=True)
    statuses = [group.statuses for group in pool.read(pool.index.group_ids)]
    assert statuses == [
        ["correct", "incorrect", "incorrect", "error"],
        ["correct", "error", "correct", "incorrect"],
    ]


def test_columns_by_other_names(command, small_job, rows, tmp_path):
    names = {"prompt_ids": "prompt", "completion_ids": "tokens", "logprobs": "logp", "answer": "gt"}
    changed = [{names.get(key, key): value for key, value in row.items()} for row in rows[:8]]
    file = write(tmp_path / "a.jsonl", changed)
    options = ["--prompt-ids", "prompt", "--completion-ids", "tokens", "--answer", "gt"]
    target = tmp_path / "pool"
    code, output = command(
        "pool", "import", file, target, "--config", small_job, *options, "--logprobs", "logp"
    )
    assert code == 0, output
    assert Pool.open(target).identity["sampling"]["logprobs"] == "sampled_distribution"
    roles = {"prompt_ids": "prompt", "completion_ids": "tokens", "answer": "gt"}
    with pytest.raises(IncompatibleError, match=r"sampling\.logprobs: .* -> .rescored"):
        import_pool(job(small_job), file, target, columns=roles)
    with pytest.raises(ConfigError, match=r"no column 'lp' \(--logprobs\)"):
        import_pool(job(small_job), file, target, columns={**roles, "logprobs": "lp"})


def test_a_killed_import_goes_on_and_ends_the_same(start, small_job, rows, tmp_path):
    config = job(small_job, ("pool.chunk_groups", "2"))
    file, partial = write(tmp_path / "a.jsonl", rows), tmp_path / "partial"
    whole = import_pool(config, file, tmp_path / "whole")
    process = start(
        "pool", "import", file, partial, "--config", small_job, "--pool.chunk_groups", "2"
    )
    deadline = time.monotonic() + 120
    while not list(partial.glob("commits/0*.json")) and time.monotonic() < deadline:
        time.sleep(0.005)
    process.kill()
    process.wait()
    assert 0 < len(Pool.open(partial, check="size")) < len(whole)
    assert import_pool(config, file, partial).hash == whole.hash
    assert import_pool(config, file, partial).hash == whole.hash
    write(file, rows[:-1])
    with pytest.raises(IncompatibleError, match=r"problems\.sha256"):
        import_pool(config, file, partial)


def test_other_chunks_and_repairs_go_on_where_something_is_missing(
    small_job, rows, tmp_path, monkeypatch
):
    file, pool = write(tmp_path / "dump.jsonl", rows), tmp_path / "pool"
    small, append = job(small_job, ("pool.chunk_groups", "3")), PoolWriter.append

    def dies(writer, *args, **kwargs):
        if writer.commit == 2:
            raise KeyboardInterrupt
        return append(writer, *args, **kwargs)

    monkeypatch.setattr(PoolWriter, "append", dies)
    with pytest.raises(KeyboardInterrupt):
        import_pool(small, file, pool)
    monkeypatch.setattr(PoolWriter, "append", append)
    whole = contents(import_pool(small, file, tmp_path / "whole"))
    other = job(small_job, ("pool.chunk_groups", "4"))
    assert contents(import_pool(other, file, pool)) == whole
    damaged = next((pool / "samples").iterdir())
    damaged.write_bytes(damaged.read_bytes()[:-1])
    assert repair(pool).lost
    again = import_pool(other, file, pool)
    assert contents(again) == whole
    assert import_pool(other, file, pool).commit == again.commit, "nothing is left to do"


def test_a_text_as_long_as_the_limit_was_cut(small_job, rows, tmp_path):
    """The built-in model has a token for every character of these texts."""
    texts = ["1 + 1 = \\boxed{2}", "\\boxed{2}", "\\boxed{3}", "\\boxed{2}"]
    made = [{"question": "1 + 1 = ?", "answer": "2", "text": text} for text in texts]
    file = write(tmp_path / "a.jsonl", made)
    tokens = load_tokenizer("builtin").encode(texts[0], add_special_tokens=False)
    config = job(small_job, ("sampling.max_new_tokens", str(len(tokens))))
    (group,) = import_pool(config, file, tmp_path / "pool").read([0])
    assert group.finish_reasons == ["length", "stop", "stop", "stop"]
    assert group.response_token_ids[0].tolist() == tokens
    stops = Pool.open(tmp_path / "pool").identity["sampling"]["stop_token_ids"]
    assert all(ids[-1] in stops for ids in group.response_token_ids[1:])
    assert group.statuses == ["correct", "correct", "incorrect", "correct"]
    config = job(small_job, ("sampling.max_new_tokens", str(len(tokens) - 1)))
    with pytest.raises(DataError, match=r"line 1: .*should have") as caught:
        import_pool(config, file, tmp_path / "other")
    assert "as they were when the responses were sampled" in caught.value.hint


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"completion_ids": [1, 2.0]}, r"token 1 of 'completion_ids' is 2\.0"),
        ({"completion_ids": [True]}, "token 0 of 'completion_ids' is True"),
        ({"completion_ids": [10**6]}, "token 0 of 'completion_ids' is 1000000; expected an id"),
        ({"completion_ids": [-1]}, "token 0 of 'completion_ids' is -1"),
        ({"completion_ids": []}, "'completion_ids' is empty"),
        ({"completion_ids": "abc"}, "'completion_ids' is str; expected a list"),
        ({"completion_ids": None}, "'completion_ids' is missing"),
        ({"logprobs": [-0.5]}, r"\d+ response ids but 1 log-probs"),
        ({"logprobs": None}, "'logprobs' is missing"),
        ({"question": 5}, "'question' is int; expected text"),
        ({"question": "9 + 9 = ?"}, "question differs from .*line 1, its group's first"),
        ({"answer": "x"}, "answer differs"),
        ({"finish_reason": "abort"}, "'finish_reason' is 'abort'; allowed: stop, length"),
        ({"finish_reason": "length"}, "finish_reason is 'length', but the response ends as 'stop'"),
        ({"group_id": None}, "'group_id' is missing"),
    ],
)
def test_hostile_rows_are_named(small_job, rows, tmp_path, change, words):
    assert rows[1]["finish_reason"] == "stop"
    changed = [rows[0], {**rows[1], **change}, *rows[2:8]]
    file = write(tmp_path / "a.jsonl", changed)
    with pytest.raises(DataError, match=f"{re.escape(str(file))}, line 2: .*{words}"):
        import_pool(job(small_job), file, tmp_path / "pool")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.5, "x", None, 10**400])
def test_log_probs_that_are_none(small_job, rows, tmp_path, value):
    spoilt = {**rows[1], "logprobs": [*rows[1]["logprobs"][:-1], value]}
    file = write(tmp_path / "a.jsonl", [rows[0], spoilt, *rows[2:8]])
    with pytest.raises(DataError, match=r"line 2: .*token"):
        import_pool(job(small_job), file, tmp_path / "pool")


def test_a_trimmed_stop_token_is_said_to_be_missing(small_job, rows, tmp_path):
    trimmed = [
        {**row, "completion_ids": row["completion_ids"][:-1], "logprobs": row["logprobs"][:-1]}
        for row in rows[:4]
    ]
    file = write(tmp_path / "a.jsonl", trimmed)
    with pytest.raises(DataError, match="its stop token was cut off") as caught:
        import_pool(job(small_job), file, tmp_path / "pool")
    assert "dump the ids with the stop token" in caught.value.hint


def test_prompts_of_another_format_are_refused(small_job, exported, tmp_path):
    config = job(small_job, ("prompt.user_suffix", "'!'"))
    with pytest.raises(IncompatibleError, match="line 1: the prompt ids are not those"):
        import_pool(config, exported["responses.jsonl"], tmp_path / "pool")


def test_damaged_files(small_job, exported, tmp_path):
    config, target = job(small_job), tmp_path / "pool"
    whole = exported["responses.jsonl"].read_bytes()
    torn = tmp_path / "torn.jsonl"
    torn.write_bytes(whole[:-20])
    with pytest.raises(DataError, match="not JSON") as caught:
        import_pool(config, torn, target)
    assert "torn" in caught.value.hint
    torn.write_bytes(b'{"a": 1, "a": 2}\n')
    with pytest.raises(DataError, match="line 1: not JSON: a key stands twice"):
        import_pool(config, torn, target)
    torn.write_bytes(b"\n\n")
    with pytest.raises(DataError, match="has no rows"):
        import_pool(config, torn, target)
    cut = tmp_path / "cut.parquet"
    cut.write_bytes(exported["responses.parquet"].read_bytes()[:-10])
    with pytest.raises(DataError, match="no whole Parquet file"):
        import_pool(config, cut, target)
    with pytest.raises(ConfigError, match="no known suffix"):
        import_pool(config, exported["responses.jsonl"].rename(tmp_path / "a.txt"), target)
    (tmp_path / "a.txt").rename(exported["responses.jsonl"])
    with pytest.raises(ConfigError, match="unknown format 'rows'"):
        import_pool(config, exported["trl.jsonl"], target, "rows")


def test_tool_tokens_are_refused(small_job, exported, tmp_path):
    table = pq.read_table(exported["verl.parquet"])
    masks = table.column("response_mask").to_pylist()
    masks[2][0] = 0
    at = table.column_names.index("response_mask")
    changed = table.set_column(at, "response_mask", pa.array(masks, pa.list_(pa.int32())))
    pq.write_table(changed, tmp_path / "a.parquet")
    with pytest.raises(DataError, match="row 2: 'response_mask' is not 1 for each"):
        import_pool(job(small_job), tmp_path / "a.parquet", tmp_path / "pool", "verl")
