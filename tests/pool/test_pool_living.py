"""Grade again, verify, export, show: a pool as people live with it, by the real parts."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from offline_rlvr import verifier
from offline_rlvr.cli.options import read_part
from offline_rlvr.durable import TMP_PREFIX
from offline_rlvr.errors import ConfigError, DataError, IncompatibleError
from offline_rlvr.pool import Pool, PoolWriter
from offline_rlvr.pool.commits import seal, sha256
from offline_rlvr.pool.export import FORMATS, export
from offline_rlvr.pool.grade import compare, grade, preview
from offline_rlvr.pool.show import matching
from offline_rlvr.pool.show_change import format_change, format_examples
from offline_rlvr.records import Problem, Response, Verdict

#: Wrong becomes right and the other way round; an empty text is not scored.
REVERSED = """
from offline_rlvr.verifier import load

def reverse(completions, answer, **kwargs):
    right = completions[0].endswith("boxed{%s}" % answer[0])
    return [0.0 if right else 1.0]

def lengths(completions, answer, **kwargs):
    size = len(completions[0])
    return [None if size % 5 == 0 else 1.0 if size % 2 else 0.25]
"""


@pytest.fixture
def judge(tmp_path):
    """Loads a verifier that runs a function of REVERSED."""
    source = tmp_path / "rewards.py"
    source.write_text(REVERSED)
    started = []

    def load(function):
        made = verifier.load("function", path=f"{source}:{function}", workers=1)
        started.append(made)
        return made

    yield load
    for one in started:
        one.close()


def grades(pool):
    return pool.index.rewards, pool.index.statuses


def expected(text):
    """What `lengths` says, by hand."""
    return None if len(text) % 5 == 0 else 1.0 if len(text) % 2 else 0.25


def test_grade_stores_new_rewards_beside_the_old_ones(own_pool, judge):
    before = Pool.open(own_pool)
    change = grade(own_pool, judge("lengths"), chunk_groups=10)
    after = Pool.open(own_pool)
    assert after.verifier_ids == [before.verifier_id, judge("lengths").id]
    assert after.verifier_id == change.new.verifier_id, "training uses the grades completed last"
    for group in after.read(after.index.group_ids):
        wanted = [np.nan if expected(t) is None else expected(t) for t in group.texts]
        assert np.array_equal(group.rewards, wanted, equal_nan=True)
    old = Pool.open(own_pool, before.verifier_id)
    for stored, kept in zip(grades(old), grades(before), strict=True):
        assert np.array_equal(stored, kept, equal_nan=True)
    kinds = {name: int(where.sum()) for name, where in change.kinds.items()}
    by_hand = dict.fromkeys(kinds, 0)
    for group in old.read(old.index.group_ids):
        for text, status, reward in zip(group.texts, group.statuses, group.rewards, strict=True):
            new = expected(text)
            if new is None:
                by_hand["newly_unscored"] += 1
            elif (status == "correct") != (new >= 0.5):
                by_hand["right_to_wrong" if status == "correct" else "wrong_to_right"] += 1
            elif new != reward:
                by_hand["other_reward"] += 1
    assert kinds == by_hand
    assert min(kinds["right_to_wrong"], kinds["wrong_to_right"], kinds["newly_unscored"]) > 0
    text = format_change(change)
    assert f"{int(old.index.mixed.sum())} -> {int(after.index.mixed.sum())}" in text
    assert judge("lengths").id in (own_pool / "README.md").read_text()


class Stopping:
    """A verifier whose process is stopped after some calls; everything else is the real one."""

    def __init__(self, inner, calls):
        self.inner, self.calls, self.scored = inner, calls, 0
        self.id = inner.id

    def score(self, items):
        if not self.calls:
            raise KeyboardInterrupt
        self.calls -= 1
        self.scored += len(items)
        return self.inner.score(items)


def test_an_interrupted_grading_changes_no_reward_and_continues(own_pool, judge):
    before = Pool.open(own_pool)
    with pytest.raises(KeyboardInterrupt):
        grade(own_pool, Stopping(judge("reverse"), 2), chunk_groups=8)
    halfway = Pool.open(own_pool)
    assert halfway.commit == before.commit + 2
    assert halfway.verifier_id == before.verifier_id, "half of the new grades are not used"
    assert np.array_equal(grades(halfway)[0], grades(before)[0])
    rest = Stopping(judge("reverse"), 99)
    change = grade(own_pool, rest, chunk_groups=8)
    assert rest.scored == (len(before) - 16) * before.group_size, "graded groups are skipped"
    assert Pool.open(own_pool).verifier_id == rest.id
    assert len(change.group_ids) == len(before)
    flipped = change.kinds["right_to_wrong"] | change.kinds["wrong_to_right"]
    assert flipped.sum() == change.old.scored.sum()
    assert change.old.mixed.tolist() == change.new.mixed.tolist(), "reversed groups stay mixed"
    # Once more: nothing to do, nothing written, the same answer.
    again = grade(own_pool, rest)
    assert again.kinds["right_to_wrong"].sum() == change.kinds["right_to_wrong"].sum()
    assert Pool.open(own_pool).commit == halfway.commit + -(-(len(before) - 16) // 8)


def test_grades_in_use_are_the_last_whole_ones(pool_path, identity, group):
    right = {i: [Verdict("correct")] * 4 for i in range(10)}
    with PoolWriter.reopen(pool_path) as writer:
        writer.append_grades("second", {i: right[i] for i in range(9)})
        assert Pool.open(pool_path).verifier_id == "exact-1"
        writer.append_grades("third", right)
        assert Pool.open(pool_path).verifier_id == "third"
        writer.append_grades("second", {9: right[9]})
        assert Pool.open(pool_path).verifier_id == "second"
        assert compare(pool_path, "second").old.verifier_id == "third"
        # The builder goes on with its own verifier: the only one with grades of all groups.
        writer.append([group(10)], "exact-1")
    assert Pool.open(pool_path).verifier_id == "exact-1"


def test_an_earlier_verifier_is_in_use_again_without_scoring(own_pool, judge):
    first = Pool.open(own_pool)
    grade(own_pool, judge("reverse"))
    forward = Stopping(judge("reverse"), 0)
    grade(own_pool, judge("lengths"))
    before = Pool.open(own_pool)
    change = grade(own_pool, forward)
    after = Pool.open(own_pool)
    assert after.verifier_id == forward.id == change.new.verifier_id
    assert change.old.verifier_id == before.verifier_id
    assert after.commit == before.commit + 1
    assert after.hash != before.hash, "a run on other rewards does not continue"
    assert f"| verifier | {forward.id} |" in (own_pool / "README.md").read_text()
    assert after.verifier_ids == [first.verifier_id, forward.id, before.verifier_id]
    grade(own_pool, forward)
    assert Pool.open(own_pool).hash == after.hash, "nothing to say, nothing written"


def test_only_whole_grades_can_be_put_in_use(pool_path, group):
    with PoolWriter.reopen(pool_path) as writer:
        writer.append_grades("half", {i: [Verdict("correct")] * 4 for i in range(5)})
        for name in ("half", "nobody"):
            with pytest.raises(DataError, match="has not graded"):
                writer.use_grades(name)
        # Growing afterwards: the builder's own grades are the only whole ones.
        writer.append_grades("half", {i: [Verdict("correct")] * 4 for i in range(5, 10)})
        writer.use_grades("exact-1")
        assert Pool.open(pool_path).verifier_id == "exact-1"
        writer.use_grades("half")
        assert Pool.open(pool_path).verifier_id == "half"
        writer.append([group(10)], "exact-1")
    assert Pool.open(pool_path).verifier_id == "exact-1"


def test_where_no_grades_are_whole_the_last_ones_count(pool_path, group):
    with PoolWriter.reopen(pool_path) as writer:
        writer.append([group(10)], "newer-version")
    assert Pool.open(pool_path).verifier_id == "newer-version"


def test_reopen_makes_no_pool(tmp_path):
    with pytest.raises(ConfigError, match="no pool at"):
        PoolWriter.reopen(tmp_path / "none")
    assert not list(tmp_path.iterdir())


def test_preview_stores_nothing(small_pool, judge):
    before = Pool.open(small_pool)
    change = preview(small_pool, judge("reverse"), 5)
    assert change.group_ids.tolist() == before.index.group_ids[:5].tolist()
    assert change.kinds["right_to_wrong"].sum() == before.index.correct[:5].sum()
    assert Pool.open(small_pool).hash == before.hash
    with pytest.raises(ConfigError, match="at least 1"):
        preview(small_pool, judge("reverse"), 0)


def test_examples_are_safe_to_show(tmp_path, group, build_pool):
    evil = Response((5, 6), (-0.25, -0.5), "x\x1b[2J\u202e\r", "stop")
    rows = group(0, problem=Problem("p", "q\x1b", "7\x9b"), responses=(evil,) * 4)
    path = build_pool(tmp_path / "p", [rows])
    verdicts = [Verdict(s) for s in ("incorrect", "correct", "timeout", "incorrect")]
    with PoolWriter.reopen(path) as writer:
        writer.append_grades("other", {0: verdicts})
    change = compare(path, "other")
    text = format_examples(Pool.open(path), change) + format_change(change)
    assert not [c for c in text if not c.isprintable() and c != "\n"]
    assert "--- right_to_wrong: group 0, response 0: correct (reward 1) -> incorrect" in text
    assert "--- newly_unscored: group 0, response 2: incorrect (reward 0) -> timeout (not" in text


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_export_holds_every_response_exactly(own_pool, tmp_path, suffix):
    with PoolWriter.reopen(own_pool) as writer:
        ids = writer.committed_group_ids.tolist()
        graded = Pool.open(own_pool)
        late = [Verdict("timeout"), Verdict("correct", score=0.5), *[Verdict("incorrect")] * 2]
        writer.append_grades("other", dict.fromkeys(ids, late))
    pool = Pool.open(own_pool)
    for layout in ("responses", "trl", "verl"):
        file = tmp_path / f"new folder/{layout}{suffix}"
        assert export(own_pool, file, layout) == pool.index.rewards.size
        if suffix == ".jsonl":
            rows = [json.loads(line) for line in file.read_bytes().decode("ascii").splitlines()]
        else:
            rows = pq.read_table(file).to_pylist()
        assert all(list(row) == list(FORMATS[layout]) for row in rows)
        wanted = [(g, i) for g in pool.read(ids) for i in range(pool.group_size)]
        names = {
            "responses": ("prompt_ids", "completion_ids", "logprobs", "reward"),
            "trl": ("prompt_ids", "completion_ids", "logprobs", "reward"),
            "verl": ("prompt_ids", "response_ids", "response_logprobs", "score"),
        }[layout]
        for row, (stored, i) in zip(rows, wanted, strict=True):
            prompt, tokens, logprobs, reward = (row[name] for name in names)
            assert prompt == stored.prompt_token_ids.tolist()
            assert tokens == stored.response_token_ids[i].tolist()
            assert np.array_equal(np.float32(logprobs), stored.behavior_logprobs[i])
            assert reward == [None, 0.5, 0.0, 0.0][i]
    (stored, i), verl = wanted[5], rows[5]
    assert verl["response_mask"] == [1] * len(stored.response_token_ids[i])
    assert (verl["uid"], verl["input"]) == (str(stored.group_id), stored.question)
    assert (verl["output"], verl["gts"], verl["step"]) == (stored.texts[i], stored.answer, 0)
    assert graded.verifier_id != pool.verifier_id


def test_export_of_responses_names_where_each_comes_from(small_pool, tmp_path):
    export(small_pool, tmp_path / "all.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "all.jsonl").read_text().splitlines()]
    pool = Pool.open(small_pool)
    group = pool.read([rows[6]["group_id"]])[0]
    assert (rows[6]["response"], rows[6]["text"]) == (2, group.texts[2])
    assert (rows[6]["status"], rows[6]["question"]) == (group.statuses[2], group.question)
    assert (rows[6]["problem_id"], rows[6]["answer"]) == (group.problem_id, group.answer)


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_export_of_problems_has_their_pass_rates(own_pool, tmp_path, suffix):
    with PoolWriter.reopen(own_pool) as writer:
        ids = writer.committed_group_ids.tolist()
        kinds = [
            [Verdict(s) for s in ("correct", "timeout", "incorrect", "correct")],
            [Verdict("timeout")] * 4,
            [Verdict("no_answer")] * 4,
        ]
        writer.append_grades("other", {i: kinds[i % 3] for i in ids})
    file = tmp_path / f"problems{suffix}"
    assert export(own_pool, file, "problems") == len(ids)
    if suffix == ".parquet":
        rows = pq.read_table(file).to_pylist()
    else:
        rows = [json.loads(line) for line in file.read_text().splitlines()]
    for row, group in zip(rows, Pool.open(own_pool).read(ids), strict=True):
        scored, correct, rate = [(3, 2, 2 / 3), (0, 0, None), (4, 0, 0.0)][group.group_id % 3]
        assert row == {
            "group_id": group.group_id,
            "problem_id": group.problem_id,
            "question": group.question,
            "answer": group.answer,
            "scored": scored,
            "correct": correct,
            "pass_rate": rate,
            "mean_response_length": sum(map(len, group.response_token_ids)) / 4,
            "truncated": sum(reason == "length" for reason in group.finish_reasons),
        }


def test_export_is_whole_or_not_at_all(own_pool, tmp_path):
    file = tmp_path / "out.jsonl"
    file.write_text("mine")
    with pytest.raises(ConfigError, match="exists already"):
        export(own_pool, file)
    damage(own_pool)  # row 3 of the pool: found after rows were written
    with pytest.raises(DataError, match="row 3, response 1, token 0"):
        export(own_pool, file, replace=True)
    assert file.read_text() == "mine"
    assert not list(tmp_path.glob(f"{TMP_PREFIX}*"))


@pytest.mark.parametrize(
    ("name", "layout", "words"),
    [("x.csv", "trl", "suffix"), ("x.jsonl", "hf", "unknown format"), ("p/x.jsonl", "trl", "ins")],
)
def test_export_refuses(small_pool, tmp_path, name, layout, words):
    file = small_pool / "x.jsonl" if name.startswith("p/") else tmp_path / name
    with pytest.raises(ConfigError, match=words):
        export(small_pool, file, layout)
    assert not file.exists()


def test_export_replaces_when_told(small_pool, tmp_path):
    file = tmp_path / "out.jsonl"
    file.write_text("old")
    export(small_pool, file, "trl", replace=True)
    assert json.loads(file.read_text().splitlines()[0]).keys() == FORMATS["trl"].keys()


def damage(root):
    """A positive log-prob in row 3, response 1, sealed so that every hash fits."""
    part = root / "samples/part-00000001.parquet"
    table = pq.read_table(part)
    name = "behavior_logprobs"
    values = table.column(name).to_pylist()
    values[3][1][0] = 0.5
    at = table.column_names.index(name)
    field = table.schema.field(name)
    pq.write_table(table.set_column(at, field, pa.array(values, type=field.type)), part)
    previous = sha256((root / "pool.json").read_bytes())
    for path in sorted((root / "commits").glob("*.json")):
        body = json.loads(path.read_text())
        body.pop("checksum")
        body["previous"] = previous
        for entry in body["files"]:
            content = (root / entry["path"]).read_bytes()
            entry.update(bytes=len(content), sha256=sha256(content))
        path.write_bytes(seal(body))
        previous = sha256(path.read_bytes())


def test_verify_reads_the_grades_of_every_verifier(pool_path):
    with PoolWriter.reopen(pool_path) as writer:
        writer.append_grades("other", {i: [Verdict("correct")] * 4 for i in range(10)})
    Pool.open(pool_path).verify()
    Pool.open(pool_path, "exact-1").verify()
    part = pool_path / "grades/exact-1/part-00000002.parquet"
    opened = Pool.open(pool_path)
    part.write_bytes(b"PAR1" + part.read_bytes()[4:-40] + bytes(36) + b"PAR1")
    with pytest.raises(DataError, match=r"grades/exact-1/part-00000002\.parquet is damaged"):
        opened.verify()


def test_matching(pool_path):
    """Correct counts 0 1 2 3 4 0 1 2 3 4 of 4."""

    def shown(*args, **kwargs):
        found = matching(pool_path, *args, **kwargs)
        return {g.group_id: picked for g, picked in found.groups}, found.matches

    assert shown(mixed=True) == ({1: [0, 1, 2, 3]}, 6)
    assert shown(wrong=True, limit=2) == ({0: [0, 1, 2, 3], 1: [1, 2, 3]}, 8)
    assert shown(right=True, limit=3) == ({1: [0], 2: [0, 1], 3: [0, 1, 2]}, 8)
    assert shown(mixed=True, wrong=True, limit=9)[0].keys() == {1, 2, 3, 6, 7, 8}
    assert shown(4) == ({4: [0, 1, 2, 3]}, 1)
    assert shown(8, wrong=True) == ({8: [3]}, 1)
    with pytest.raises(DataError, match="no matching group 4"):
        shown(4, wrong=True)
    with pytest.raises(DataError, match="group 77 is not in"):
        shown(77)
    with pytest.raises(ConfigError, match="at least 1"):
        shown(limit=0)


def test_unscored_is_neither_right_nor_wrong(pool_path):
    with PoolWriter.reopen(pool_path) as writer:
        late = [Verdict("timeout"), Verdict("correct"), Verdict("no_answer"), Verdict("crash")]
        writer.append_grades("other", dict.fromkeys(range(10), late))
    assert matching(pool_path, wrong=True).groups[0][1] == [2]
    assert matching(pool_path, right=True, wrong=True).groups[0][1] == [1, 2]


def test_recheck_finds_another_policys_logprobs(small_pool, own_pool):
    from offline_rlvr.trainer.recheck import recheck

    noise = recheck(Pool.open(small_pool), 4, 0.1, device="cpu")
    assert noise.groups == 4
    assert 0 <= noise.mean <= noise.worst_mean <= noise.largest < 1e-3
    with pytest.raises(IncompatibleError, match=f"group {noise.worst_group} differ"):
        recheck(Pool.open(small_pool), 4, noise.worst_mean / 2, device="cpu")
    with pytest.raises(ConfigError):
        recheck(Pool.open(small_pool), 0, 0.1)
    identity = Pool.open(own_pool).identity
    for change, words in (
        (lambda i: i["sampling"].update(top_p=0.9), "renormalized"),
        (lambda i: i["model"]["fingerprint"].update(tokenizer="x"), "differs in: tokenizer"),
    ):
        other = json.loads(json.dumps(identity))
        change(other)
        pool = Pool.open(own_pool)
        pool.identity.clear()
        pool.identity.update(other)
        with pytest.raises(IncompatibleError, match=words):
            recheck(pool, 1, 0.1)


def test_settings_of_a_verifier_on_the_command_line():
    tokens = ["--verifier.path=a.py:f", "--verifier.name", "function", "--verifier.kwargs.x", "2"]
    assert read_part("verifier", tokens) == ("function", {"path": "a.py:f", "kwargs": {"x": 2}})
    with pytest.raises(ConfigError, match="no verifier is named"):
        read_part("verifier", ["--verifier.workers", "2"])
    for key in ("--train.seed", "--verifier", "--verifier.", "--verifier..name"):
        with pytest.raises(ConfigError, match="unknown option"):
            read_part("verifier", [key, "1"])


def test_the_verbs(command, own_pool, tmp_path):
    (tmp_path / "mine.py").write_text(REVERSED)
    settings = ["--verifier.name", "function", f"--verifier.path={tmp_path}/mine.py:reverse"]
    code, output = command("pool", "grade", own_pool, *settings, "--dry-run", "4")
    assert code == 0, output
    assert "what training uses was and stays math_verify-" in output
    code, output = command("pool", "grade", own_pool, *settings)
    assert code == 0, output
    assert "what training uses is now function-" in output
    code, output = command("pool", "show", own_pool, "--mixed", "--wrong", "--limit", "2")
    assert code == 0, output
    assert output.count("question: ") == 2
    assert "--- response" in output
    assert "reward 1" not in output
    code, output = command("pool", "export", own_pool, tmp_path / "x.parquet", "--format", "trl")
    assert code == 0, output
    code, output = command("pool", "verify", own_pool, "--deep", "3")
    assert code == 0, output
    assert "are whole" in output
    assert "mean |difference|" in output
    damage(own_pool)
    code, output = command("pool", "verify", own_pool)
    assert (code, "row 3, response 1" in output) == (3, True), output
