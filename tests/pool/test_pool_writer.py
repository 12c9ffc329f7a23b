"""What the writer refuses, and that refusing leaves nothing behind."""

import os

import pytest

from offline_rlvr.errors import ConfigError, DataError, IncompatibleError
from offline_rlvr.pool import Pool, PoolWriter
from offline_rlvr.records import Problem, Response, Verdict


def response(**changes):
    fields = {
        "token_ids": (1, 2),
        "behavior_logprobs": (-0.5, -0.1),
        "text": "x",
        "finish_reason": "stop",
    }
    return Response(**(fields | changes))


@pytest.fixture
def writer(tmp_path, identity):
    with PoolWriter.create_or_open(tmp_path / "p", identity()) as opened:
        yield opened


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"token_ids": (1, 151_936)}, "token 1: id 151936 is outside the vocabulary of 151936"),
        ({"token_ids": (-1, 2)}, "token 0: id -1"),
        ({"token_ids": (1.5, 2)}, "not integers"),
        ({"behavior_logprobs": ("a", -0.5)}, "not numbers"),
        ({"behavior_logprobs": (-0.5, float("nan"))}, "token 1: behavior log-prob nan"),
        ({"behavior_logprobs": (0.1, -0.5)}, "token 0: behavior log-prob 0.1"),
        ({"behavior_logprobs": (float("-inf"), -0.5)}, "token 0: behavior log-prob -inf"),
        ({"behavior_logprobs": (None, -0.5)}, "token 0: behavior log-prob None"),
        ({"behavior_logprobs": (-1e39, -0.5)}, "token 0: behavior log-prob -1e"),
        ({"behavior_logprobs": (-0.5,)}, "has 2 tokens but 1 behavior log-probs"),
        ({"token_ids": (), "behavior_logprobs": ()}, "has no tokens"),
        ({"finish_reason": "abort"}, "finish_reason 'abort'; allowed: stop, length"),
        ({"seed": 1 << 63}, "does not fit 64 bits"),
        ({"text": "\ud800"}, "not valid Unicode"),
    ],
)
def test_bad_response(writer, group, changes, message):
    responses = (response(), response(), response(**changes), response())
    with pytest.raises(DataError, match=message) as caught:
        writer.append([group(0), group(1, responses=responses)], "exact-1")
    assert "group 1 (problem 'p-1'), response 2" in caught.value.message
    assert writer.committed_group_ids.tolist() == []
    assert writer.append([group(0)], "exact-1") == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"responses": (response(),) * 3}, "has 3 responses; every group of this pool has 4"),
        ({"verdicts": (Verdict("correct"),) * 5}, "has 5 verdicts for 4 responses"),
        ({"verdicts": (Verdict("right"),) * 4}, "response 0: status 'right'; allowed: correct"),
        ({"verdicts": (Verdict("correct", score=float("nan")),) * 4}, "reward nan is not finite"),
        ({"prompt_token_ids": ()}, "empty prompt"),
        ({"prompt_token_ids": (1, 151_936)}, "prompt, token 1: id 151936"),
        ({"problem": Problem("x", "\ud800", "7")}, "not valid Unicode"),
    ],
)
def test_bad_group(writer, group, changes, message):
    with pytest.raises(DataError, match=message):
        writer.append([group(3, **changes)], "exact-1")
    assert writer.commit == 0


def test_negative_group_id(writer, group):
    with pytest.raises(DataError, match="a group id is an integer >= 0"):
        writer.append([group(-1, seed=1)], "exact-1")


def test_rounding_above_zero_is_allowed(writer, group):
    ok = response(behavior_logprobs=(1e-6, 0.0))
    writer.append([group(0, responses=(ok,) * 4)], "exact-1")
    stored = Pool.open(writer.path).read([0])[0]
    assert stored.behavior_logprobs[0].tolist() == pytest.approx([1e-6, 0.0])


def test_rounding_to_float32_never_makes_a_stored_value_unreadable(writer, group):
    """The limit of 1e-6 is met in the precision that is stored."""
    responses = (response(behavior_logprobs=(9.99999999e-7, -1e-46)),) * 4
    writer.append([group(0, responses=responses)], "exact-1")
    Pool.open(writer.path).verify()


def test_repeated_groups(writer, group):
    with pytest.raises(DataError, match="group 3 is in"):
        writer.append([group(3), group(3)], "exact-1")
    writer.append([group(3)], "exact-1")
    with pytest.raises(DataError, match="group 3 is in"):
        writer.append([group(4), group(3)], "exact-1")
    writer.close()
    identity = Pool.open(writer.path).identity
    with PoolWriter.create_or_open(writer.path, identity) as again:
        with pytest.raises(DataError, match="group 3 is in"):
            again.append([group(3)], "exact-1")
        assert again.append([group(4)], "exact-1") == 2


@pytest.mark.parametrize("verifier_id", ["", "..", "a/b", ".hidden", "a b", "x" * 129, "é"])
def test_verifier_id_that_cannot_name_a_folder(writer, group, verifier_id):
    with pytest.raises(DataError, match="verifier id"):
        writer.append([group(0)], verifier_id)
    with pytest.raises(DataError, match="verifier id"):
        writer.append_grades(verifier_id, {0: []})


def test_bad_drops_and_cursor(writer, group):
    with pytest.raises(DataError, match="negative"):
        writer.append([group(0)], "exact-1", {"x": -1})
    with pytest.raises(DataError, match="must be at least 6"):
        writer.append([group(5)], "exact-1", next_group_id=5)
    assert writer.append([group(5)], "exact-1", next_group_id=8) == 1
    assert writer.next_group_id == 8


def test_bad_regrades(pool_path, identity):
    four = [Verdict("correct")] * 4
    with PoolWriter.create_or_open(pool_path, identity()) as writer:
        with pytest.raises(DataError, match="group 10 is not in"):
            writer.append_grades("other", {10: four})
        with pytest.raises(DataError, match="graded by 'exact-1' already"):
            writer.append_grades("exact-1", {1: four})
        with pytest.raises(DataError, match="group 1 has 3 verdicts"):
            writer.append_grades("other", {1: four[:3]})
        with pytest.raises(DataError, match="no verdicts"):
            writer.append_grades("other", {})
        writer.append_grades("other", {1: four})
        with pytest.raises(DataError, match="graded by 'other' already"):
            writer.append_grades("other", {1: four})
        assert writer.commit == 3


def test_another_identity_lists_every_difference(pool_path, identity):
    other = identity(
        model={"name": "tiny", "revision": "def"}, sampling={"temperature": 0.9, "top_p": 1}
    )
    other["prompt"] = {"suffix": "x"}
    with pytest.raises(IncompatibleError) as caught:
        PoolWriter.create_or_open(pool_path, other)
    lines = caught.value.message.splitlines()[1:]
    assert lines == [
        '  model.revision: "abc" -> "def"',
        '  prompt.suffix: (absent) -> "x"',
        "  sampling.temperature: 1 -> 0.9",
    ]
    assert caught.value.exit_code == 4
    PoolWriter.create_or_open(pool_path, identity()).close()


@pytest.mark.parametrize(
    "changes",
    [
        {"group_size": 1},
        {"group_size": True},
        {"vocab_size": None},
        {"x": {1, 2}},
        {"x": float("nan")},
    ],
)
def test_unusable_identity(tmp_path, identity, changes):
    with pytest.raises(DataError, match="identity"):
        PoolWriter.create_or_open(tmp_path / "p", identity(**changes))
    assert not (tmp_path / "p").exists()


def test_closed_writer(writer, group):
    writer.close()
    writer.close()
    for work in (
        lambda: writer.append([group(0)], "exact-1"),
        lambda: writer.append_grades("exact-1", {0: []}),
        lambda: writer.use_grades("exact-1"),
        writer.finish,
    ):
        with pytest.raises(ConfigError, match="closed"):
            work()


def test_names_left_unsynced_by_a_kill_are_synced_before_the_next_commit(
    pool_path, identity, monkeypatch
):
    synced, real = set(), os.fsync

    def record(descriptor):
        synced.add(os.readlink(f"/proc/self/fd/{descriptor}"))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    PoolWriter.create_or_open(pool_path, identity()).close()
    folders = {"", "/samples", "/commits", "/grades", "/grades/exact-1"}
    assert {f"{pool_path}{name}" for name in folders} | {str(pool_path.parent)} <= synced
