"""The tables and the figure of `offline-rlvr lab`: right on other policies, able to be wrong."""

import json

import pytest

from offline_rlvr.lab import Bench, Statement, Tree, cases, compare, statements, tradeoffs
from offline_rlvr.objectives import names


def test_every_statement_holds_at_another_beta_group_size_and_seed():
    found = statements(Bench(Tree(), beta=0.8, size=3, seed=3))
    assert [f"{s.text}: {s.measured}" for s in found if not s.holds] == []
    assert len({(s.about, s.text) for s in found}) == len(found) > 25


@pytest.mark.parametrize(
    ("relation", "measured", "holds"),
    [("=", 1.0, True), ("=", 1.2, False), (">", 1.2, True), (">", 1.0, False)],
)
def test_a_statement_that_does_not_hold_says_so(relation, measured, holds):
    assert Statement("x", "y", relation, 1.0, measured, 0.1).holds is holds


@pytest.fixture(scope="module")
def curves():
    return list(compare(Bench(Tree()), steps=120))


def test_who_finds_the_gibbs_policy_is_who_declares_it(curves):
    assert {curve.objective for curve in curves} >= set(names())
    assert len(curves) == 3 * sum(1 for _ in cases(0.5))
    for curve in curves:
        assert (curve.distances[-1] < 0.03) == (curve.optimum == "gibbs"), curve
        if curve.behavior != "on policy":
            assert (curve.at_gibbs < 1e-12) == (curve.optimum == "gibbs")
        assert curve.times[0] == 0
        assert curve.times[-1] == 120


def test_stale_data_hurt_those_without_the_fixed_point(curves):
    """PG on a fixed pool ends far from the policy it would find on policy."""
    ends = {(curve.objective, curve.behavior): curve.distances[-1] for curve in curves}
    for name in ("pg", "cispo", "grpo"):
        assert ends[name, "stale"] > 2 * ends[name, "on policy"]


def test_bias_and_variance_trade_off():
    rows = {(row.horizon, row.cost_bound): row for row in tradeoffs(Bench(Tree()), steps=120)}
    full, short, bounded = rows[None, None], rows[1, None], rows[None, 0.2]
    assert 10 * full.bias < min(short.bias, bounded.bias)
    assert max(short.variance, bounded.variance) < 0.95 * full.variance


def test_the_command_writes_tables_figure_and_numbers(command, tmp_path):
    code, output = command("lab", "--quick", "-o", tmp_path / "lab")
    assert code == 0, output
    assert "| ggpo | loss at the Gibbs policy, stale behavior | 0 |" in output
    files = {path.name for path in (tmp_path / "lab").iterdir()}
    assert files == {"lab.json", "lab.md", "lab.png", "lab.svg"}
    facts = json.loads((tmp_path / "lab/lab.json").read_text())
    assert all(statement["holds"] for statement in facts["statements"])
    assert (tmp_path / "lab/lab.md").read_text() in output
    assert "<svg" in (tmp_path / "lab/lab.svg").read_text()[:1000]


def test_a_temperature_that_is_not_positive_is_refused(command, tmp_path):
    code, output = command("lab", "--beta", "0", cwd=tmp_path)
    assert (code, "Traceback" in output) == (2, False)
    assert not list(tmp_path.iterdir())
