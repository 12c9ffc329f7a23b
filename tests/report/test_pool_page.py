"""The page of a pool: whole, self-contained, deaf to what models and files say; `pool stats`."""

import json
import re
from html.parser import HTMLParser

import pytest

from offline_rlvr.pool import Pool, PoolWriter, funnel
from offline_rlvr.records import Group, Problem, Response, Verdict
from offline_rlvr.report import render_pool

VOID = {"meta", "img"}
HOSTILE = "<script>alert(1)</script> \x1b[31mred\x1b[0m \u202egnp.exe </pre></div>"


class Checker(HTMLParser):
    """Fails on an unbalanced tag; keeps tags, attributes and text."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.sources, self.text = [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.sources += [v for name, v in attrs if name in ("src", "href", "srcset", "action")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, self.getpos()

    def handle_data(self, data):
        self.text.append(data)


def parsed(pool, path):
    render_pool(pool, funnel(pool), path)
    checker = Checker()
    checker.feed(path.read_text("utf-8"))
    checker.close()
    assert checker.open == []
    return checker, " ".join(" ".join(checker.text).split())


@pytest.fixture
def hostile_pool(tmp_path):
    """Two mixed groups whose every text attacks."""

    def group(i):
        responses = tuple(Response((5, i, j), (-0.5,) * 3, HOSTILE, "length") for j in range(4))
        verdicts = tuple(Verdict(s) for s in ("correct", "incorrect", "incorrect", "no_answer"))
        return Group(i, Problem(HOSTILE, HOSTILE, HOSTILE), (1, 2), responses, verdicts)

    identity = {"group_size": 4, "vocab_size": 100, "model": {HOSTILE: HOSTILE}}
    with PoolWriter.create_or_open(tmp_path / "<b>pool\x1b", identity) as writer:
        writer.append([group(0), group(1)], "exact-1", {HOSTILE: 3})
    return Pool.open(tmp_path / "<b>pool\x1b")


def test_the_whole_page(small_pool, tmp_path):
    pool = Pool.open(small_pool)
    page, text = parsed(pool, tmp_path / "new folder/pool.html")
    assert page.tags.count("img") == 3
    assert page.tags.count("details") == 8
    assert all(source.startswith("data:image/svg+xml;base64,") for source in page.sources)
    assert not {"script", "link", "iframe", "object"} & set(page.tags)
    stats = funnel(pool)
    for words in (
        f"{len(pool)} groups of 4 responses",
        f"mean@4 {100 * stats['mean_at_k']:.1f} %",
        f"pass@2 {100 * stats['pass_at']['2']:.1f} %",
        f"correct {stats['statuses']['correct']}",
        "right responses",
        "Right responses per sampled group",
        "sampling.temperature 1",
        pool.verifier_id,
    ):
        assert words in text, words
    first = (tmp_path / "new folder/pool.html").read_bytes()
    parsed(pool, tmp_path / "new folder/pool.html")
    assert (tmp_path / "new folder/pool.html").read_bytes() == first


def test_hostile_text_is_inert(hostile_pool, tmp_path):
    page, text = parsed(hostile_pool, tmp_path / "x.html")
    assert "script" not in page.tags
    assert "<script>alert(1)</script>" in text
    raw = (tmp_path / "x.html").read_text("utf-8")
    assert "<script" not in raw
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", raw)
    assert "<b>pool␛" in text


def test_an_empty_and_an_ungraded_pool(tmp_path):
    identity = {"group_size": 4, "vocab_size": 100}
    PoolWriter.create_or_open(tmp_path / "p", identity).close()
    _, text = parsed(Pool.open(tmp_path / "p"), tmp_path / "x.html")
    assert "no groups yet" in text
    assert "mean@4 not measured" in text
    late = tuple(Verdict("timeout") for _ in range(4))
    rows = tuple(Response((i,), (-1.0,), "", "stop") for i in range(4))
    with PoolWriter.reopen(tmp_path / "p") as writer:
        writer.append([Group(0, Problem("a", "b", "c"), (1,), rows, late)], "exact-1")
    page, text = parsed(Pool.open(tmp_path / "p"), tmp_path / "x.html")
    assert page.tags.count("img") == 3
    assert "timeout 4 100.0 %" in text


def test_stats_verb(command, own_pool, tmp_path):
    first = Pool.open(own_pool).verifier_id
    with PoolWriter.reopen(own_pool) as writer:
        ids = writer.committed_group_ids.tolist()
        writer.append_grades("all-right", {i: [Verdict("correct")] * 4 for i in ids})
    code, output = command("pool", "stats", own_pool, "--html", tmp_path / "p.html", "--json")
    assert code == 0, output
    assert json.loads(output) == funnel(Pool.open(own_pool))
    assert json.loads(output)["mean_at_k"] == 1
    assert "all-right" in (tmp_path / "p.html").read_text("utf-8")
    code, output = command("pool", "stats", own_pool, "--json", "--verifier", first)
    assert json.loads(output) == funnel(Pool.open(own_pool, first))
    code, output = command("pool", "show", own_pool, "--verifier", first, "--wrong")
    assert (code, "reward 0" in output) == (0, True), output
    code, output = command("pool", "stats", own_pool, "--verifier", "nobody")
    assert (code, "has no grades of verifier 'nobody'" in output) == (2, True), output
