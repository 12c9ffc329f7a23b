"""Selection, the probe, the funnel, the card and the terminal, against a pool counted by hand."""

import json
from dataclasses import replace

import numpy as np
import pytest
import yaml

from offline_rlvr.errors import ConfigError
from offline_rlvr.pool import Pool, PoolWriter, funnel
from offline_rlvr.pool.card import render
from offline_rlvr.pool.selection import Filters, mixed, probe, select, training
from offline_rlvr.pool.show import format_group, format_stats, printable
from offline_rlvr.records import Problem, Response, Verdict

RIGHT, WRONG, EMPTY, LATE = (
    Verdict(status) for status in ("correct", "incorrect", "no_answer", "timeout")
)


def responses(*lengths, truncated=0):
    """Responses of the given lengths, all different; the last `truncated` are cut."""
    return tuple(
        Response(
            tuple([i] + [7] * (length - 1)),
            (-0.5,) * length,
            f"r{i}",
            "length" if i >= len(lengths) - truncated else "stop",
        )
        for i, length in enumerate(lengths)
    )


@pytest.fixture
def counted(tmp_path, group, identity):
    """Six groups: all right, all wrong, three mixed (1, 2 and 3 right), one with a timeout."""
    rows = [
        ((RIGHT,) * 4, responses(1, 2, 3, 4)),
        ((WRONG, EMPTY, WRONG, WRONG), responses(9, 9, 9, 9, truncated=2)),
        ((RIGHT, WRONG, WRONG, WRONG), responses(5, 6, 6, 6)),
        ((RIGHT, RIGHT, EMPTY, WRONG), responses(5, 5, 6, 6)),
        ((RIGHT, RIGHT, RIGHT, WRONG), responses(5, 5, 5, 6)),
        ((RIGHT, LATE, WRONG, WRONG), responses(5, 6, 6, 6, truncated=1)),
    ]
    # Three equal responses are two duplicates.
    rows[2] = (rows[2][0], (*rows[2][1][:1], *rows[2][1][3:] * 3))
    groups = [group(i, responses=r, verdicts=v) for i, (v, r) in enumerate(rows)]
    with PoolWriter.create_or_open(tmp_path / "counted", identity()) as writer:
        writer.append(groups[:3], "exact-1", {"prompt_too_long": 2})
        writer.append(groups[3:], "exact-1", {"prompt_too_long": 1, "duplicate": 4})
    return Pool.open(tmp_path / "counted")


def test_mixed(counted):
    assert mixed(counted).tolist() == [2, 3, 4]
    assert mixed(counted, exclude=[3]).tolist() == [2, 4]
    assert mixed(counted).dtype == np.int64


def test_graded_rewards_are_mixed_when_they_differ(tmp_path, group, build_pool):
    half = tuple(Verdict("incorrect", score=score) for score in (0.5, 0.5, 0.5, 0.25))
    same = tuple(Verdict("incorrect", score=0.5) for _ in range(4))
    groups = [group(0, verdicts=half), group(1, verdicts=same)]
    pool = Pool.open(build_pool(tmp_path / "p", groups))
    assert mixed(pool).tolist() == [0]
    assert pool.index.rewards.tolist() == [[0.5, 0.5, 0.5, 0.25], [0.5] * 4]
    assert funnel(pool)["all_wrong"] == 1


def test_probe_is_fixed_unfiltered_and_held_out(counted):
    everything = probe(counted, 5)
    # All scored groups, mixed or not; never the one with a timeout.
    assert everything.tolist() == [0, 1, 2, 3, 4]
    assert probe(counted, 3).tolist() == probe(counted, 3).tolist()
    assert set(probe(counted, 2)) < set(probe(counted, 3)) < set(everything)
    assert {tuple(probe(counted, 2, salt=str(i))) for i in range(20)} != {tuple(probe(counted, 2))}
    train, held_out = training(counted, probe_groups=3)
    assert not set(train) & set(held_out)
    assert set(train) == {2, 3, 4} - set(held_out)


@pytest.mark.parametrize(
    ("filters", "left", "removed"),
    [
        ({}, [2, 3, 4], {}),
        ({"min_correct": 2}, [3, 4], {"min_correct": 1}),
        ({"max_correct": 2}, [2, 3], {"max_correct": 1}),
        ({"min_correct": 2, "max_correct": 2}, [3], {"min_correct": 1, "max_correct": 1}),
        ({"min_correct": 2, "max_correct": 3}, [3, 4], {"min_correct": 1, "max_correct": 0}),
    ],
)
def test_selection_by_difficulty(counted, filters, left, removed):
    found = select(counted, 0, Filters(**filters))
    assert found.training_ids.tolist() == left
    assert found.removed == {"probe": 0, **removed}
    assert found.mixed == 3


def test_selection_by_length_and_truncation(tmp_path, group, build_pool):
    pool = Pool.open(build_pool(tmp_path / "p", [group(i) for i in range(6)]))
    index = pool.index
    longest = index.response_lengths.max(1)
    assert len(set(longest.tolist())) > 1
    limit = int(np.median(longest))
    found = select(pool, 0, Filters(max_response_tokens=limit))
    assert found.training_ids.tolist() == index.group_ids[index.mixed & (longest <= limit)].tolist()
    prompt = int(index.prompt_lengths.max())
    assert select(pool, 0, Filters(max_prompt_tokens=prompt)).removed["max_prompt_tokens"] == 0
    # Each group counts for the first filter that takes it.
    with pytest.raises(ConfigError, match="is left to train on: 6 mixed groups, probe takes 0"):
        select(pool, 0, Filters(max_prompt_tokens=1, max_response_tokens=1))


def test_selection_without_truncated_responses(tmp_path, group, build_pool):
    whole = group(1)
    last = replace(whole.responses[-1], finish_reason="length")
    groups = [group(0), group(1, responses=(*whole.responses[:-1], last)), group(2)]
    pool = Pool.open(build_pool(tmp_path / "p", groups))
    found = select(pool, 0, Filters(drop_truncated=True))
    assert found.training_ids.tolist() == [0, 2]
    assert found.removed == {"probe": 0, "drop_truncated": 1}


def test_the_probe_does_not_depend_on_the_filters(counted):
    plain, filtered = (select(counted, 2, f) for f in (Filters(), Filters(max_correct=3)))
    assert plain.probe_ids.tolist() == filtered.probe_ids.tolist()


def test_probe_golden_value(tmp_path, group, build_pool):
    """The four smallest sha256 of "probe:ID"; a change moves groups between probe and training."""
    pool = Pool.open(build_pool(tmp_path / "p", [group(i) for i in range(20)]))
    assert probe(pool, 4).tolist() == [0, 8, 17, 18]


@pytest.mark.parametrize("size", [6, -1])
def test_probe_of_an_impossible_size(counted, size):
    with pytest.raises(ConfigError, match="has 5 fully scored groups") as caught:
        training(counted, size)
    assert "0 to 5" in caught.value.hint


def test_funnel_by_hand(counted):
    stats = funnel(counted)
    json.dumps(stats, allow_nan=False)
    right = [1, 2, 3, 4, 5, 5, 5, 5, 5, 5, 5]
    assert stats["sampled_groups"] == 6
    assert stats["sampled_responses"] == 24
    assert (stats["mixed"], stats["all_right"], stats["all_wrong"]) == (3, 1, 1)
    assert (stats["unscored_groups"], stats["unscored_responses"]) == (1, 1)
    assert stats["truncated_responses"] == 3
    assert stats["duplicate_responses"] == 2
    assert stats["drops"] == {"prompt_too_long": 3, "duplicate": 4}
    assert stats["statuses"] == {"correct": 11, "incorrect": 10, "no_answer": 2, "timeout": 1}
    assert stats["mean_accuracy"] == pytest.approx(11 / 23)
    assert stats["mean_at_k"] == pytest.approx((4 + 0 + 1 + 2 + 3) / 20)
    assert stats["pass_at_k"] == pytest.approx(4 / 5)
    # Of the 6 pairs of 4 responses, none, 3, 5 and 6 hold one of 0, 1, 2 and 3 right ones.
    assert stats["pass_at"] == pytest.approx(
        {"1": 1 / 2, "2": (1 + 3 / 6 + 5 / 6 + 1) / 5, "4": 4 / 5}
    )
    assert stats["correct_per_group"] == [1, 1, 1, 1, 1]
    assert stats["response_tokens"] == 10 + 36 + 23 + 22 + 21 + 23
    assert stats["right_lengths"]["p50"] == np.median(right)
    assert stats["right_lengths"]["max"] == 5
    assert stats["wrong_lengths"]["max"] == 9


def test_funnel_of_an_empty_pool(tmp_path, identity):
    PoolWriter.create_or_open(tmp_path / "p", identity()).close()
    stats = funnel(Pool.open(tmp_path / "p"))
    assert stats["sampled_groups"] == stats["mixed"] == stats["duplicate_responses"] == 0
    assert stats["mean_accuracy"] is None
    assert stats["right_lengths"] is None
    assert "0 groups of 4 responses" in format_stats(stats)


def test_card(counted):
    extra = {"title": "A <b>pool</b>", "notes": ["top_p = 0.9 was allowed"], "problems": "a|b"}
    text = render(counted, funnel(counted), extra)
    front = yaml.safe_load(text.split("---\n")[1])
    assert front["configs"] == [
        {"config_name": "samples", "data_files": "samples/part-*.parquet", "default": True},
        {"config_name": "grades-exact-1", "data_files": "grades/exact-1/part-*.parquet"},
    ]
    assert "# A &lt;b&gt;pool&lt;/b&gt;" in text
    assert "- top_p = 0.9 was allowed" in text
    assert "| problems | a\\|b |" in text
    assert "| model.name | tiny |" in text
    assert counted.hash in text
    assert "prompt_too_long: 3" in text


@pytest.mark.parametrize(
    ("sampling", "there", "absent"),
    [
        (
            {"top_p": 1.0, "top_k": 0, "min_p": 0.0},
            ["they were drawn from"],
            ["truncated (", "rescored"],
        ),
        ({"top_p": 0.9, "top_k": 20}, ["truncated (top_p 0.9, top_k 20): "], ["min_p"]),
        ({"min_p": 0.1, "logprobs": "sampled_distribution"}, ["truncated (min_p 0.1)"], ["scored"]),
        (
            {"logprobs": "rescored"},
            ["that the model gave them afterwards", "Log-probs are rescored"],
            ["they were drawn from", "truncated ("],
        ),
        ("unknown", ["they were drawn from"], ["truncated ("]),
    ],
)
def test_card_says_what_the_logprobs_are(tmp_path, group, identity, sampling, there, absent):
    path = tmp_path / "p"
    with PoolWriter.create_or_open(
        path, identity(sampling=sampling, overlap={"aime": 2})
    ) as writer:
        writer.append([group(0)], "exact-1")
        text = writer.finish().read_text()
    text = text.split("## Funnel")[0], text
    assert all(words in text[0] for words in there)
    assert not [words for words in absent if words in text[0]]
    assert "| overlap.aime | 2 |" in text[1]


def test_card_is_replaced_and_is_not_part_of_the_pool(pool_path, identity, group):
    before = Pool.open(pool_path).hash
    with PoolWriter.create_or_open(pool_path, identity()) as writer:
        card = writer.finish({"title": "one"})
        assert "# one" in card.read_text()
        assert Pool.open(pool_path).hash == before
        writer.append([group(10)], "exact-1")
        writer.finish()
    assert "11 groups of 4 responses" in card.read_text()
    assert "# a pool é" in card.read_text()


HOSTILE = "\x1b[2J\x1b]0;owned\x07 \r\x9b31m \u202e \x00 <script> é 漢字 👍\n\tend"


def test_printable():
    shown = printable(HOSTILE)
    assert shown == (
        "\\x1b[2J\\x1b]0;owned\\x07 \\r\\x9b31m \\u202e \\x00 <script> é 漢字 👍\n\tend"
    )
    assert printable("\ud800") == "\\ud800"
    assert printable(shown) == shown


def test_format_group(tmp_path, group, build_pool):
    evil = Response((5, 6), (-0.25, -0.5), HOSTILE, "length")
    verdicts = (RIGHT, LATE, WRONG, EMPTY)
    problem = Problem("p\x1b", "what\x1b[1m?", "7\x1b")
    rows = group(3, problem=problem, responses=(evil,) * 4, verdicts=verdicts)
    stored = Pool.open(build_pool(tmp_path / "p", [rows])).read([3])[0]
    text = format_group(stored)
    assert not [c for c in text if not c.isprintable() and c not in "\n\t"]
    assert (
        "--- response 0: correct, reward 1, 2 tokens, "
        "sum of behavior log-probs -0.7500 nats, finish: length"
    ) in text
    assert "response 1: timeout, reward not scored" in text
    assert "question: what\\x1b[1m?" in text
    one = format_group(stored, responses=[2], logprobs=True)
    assert one.count("--- response") == 1
    assert "      0  id       5  -0.25\n      1  id       6  -0.5" in one


def test_format_stats(counted):
    lines = format_stats(funnel(counted)).splitlines()
    assert lines[0] == "6 groups of 4 responses (24 responses)"
    assert "mixed                         3    50.0 %" in lines
    assert "truncated_responses           3    12.5 %" in lines
    assert "  dropped: duplicate: 4" in lines
    assert "mean@4                   0.5000" in lines
    assert "pass@2                   0.6667" in lines
    assert "pass@4                   0.8000" in lines
