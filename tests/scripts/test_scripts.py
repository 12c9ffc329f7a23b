"""The scripts that look at all objectives at once."""

import importlib.util
import os
import pathlib
import subprocess
import sys

import pytest

from offline_rlvr.objectives import names

REPOSITORY = pathlib.Path(__file__).parents[2]
TINY = REPOSITORY / "pools/tiny"


@pytest.fixture(scope="module")
def mutate():
    spec = importlib.util.spec_from_file_location(
        "mutate_objectives", REPOSITORY / "scripts/mutate_objectives.py"
    )
    module = sys.modules["mutate_objectives"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_mutant_changes_one_place_and_is_python(mutate):
    source = (
        'def f(batch):\n    "a - b"\n    return (logprobs(batch, "policy") - 1).detach().sum(-1)\n'
    )
    found = {(m.line, m.name) for m in mutate.mutants("f", source)}
    assert found == {
        (3, 'logprobs(batch, "policy") - 1 -> (logprobs(batch, "policy") + 1)'),
        (3, 'logprobs(batch, "policy") - 1 -> (logprobs(batch, "policy"))'),
        (3, "logprobs(batch, \"policy\") -> logprobs(batch, 'behavior')"),
        (3, 'logprobs(batch, "policy") -> batch.policy_logprobs.double()'),
        (3, "1 -> 2"),
        (3, '(logprobs(batch, "policy") - 1).detach() -> (logprobs(batch, "policy") - 1)'),
        (3, '(logprobs(batch, "policy") - 1).detach().sum -> '
            '(logprobs(batch, "policy") - 1).detach().mean'),
    }  # fmt: skip


@pytest.mark.parametrize("name", names())
def test_every_objective_is_mutated_in_sign_and_factor(mutate, name):
    source = (REPOSITORY / f"offline_rlvr/objectives/{name}.py").read_text()
    changes = [(m.before, m.after) for m in mutate.mutants(name, source)]
    assert len(changes) >= 10
    assert any(" - " in b and " + " in a for b, a in changes) or name in ("maxrl", "pg", "cispo")
    known = {before for module, before in mutate.EQUIVALENT if module == name}
    assert known <= {f"{before} -> {after}" for before, after in changes}, "moved or gone"


def compare(folder, *arguments):
    script = REPOSITORY / "scripts/compare_objectives.py"
    small = ["--train.groups_per_update=4", "--pool.probe_groups=8"]
    small += ["--evaluation.problems.count=3", "--evaluation.k=2"]
    run = ["--pool", TINY, "--runs", folder / "runs", "--updates", "2", "--seeds", "0"]
    process = subprocess.run(
        [sys.executable, script, *arguments, *run, *small],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


def test_a_comparison_is_one_table_and_typed_again_trains_nothing(tmp_path):
    output = compare(tmp_path, "pg", "grpo_tis")
    rows = [line for line in output.splitlines() if line.startswith(("| pg", "| grpo_tis"))]
    assert len(rows) == 2
    assert output.count("plan ") == 1
    files = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    assert compare(tmp_path, "pg", "grpo_tis") == output
    assert rows[0] not in compare(tmp_path, "--table", rows[1].split()[1])
    assert files == {
        path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()
    }
