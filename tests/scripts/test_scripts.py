"""The scripts that look at all objectives at once."""

import importlib.util
import pathlib
import sys

import pytest

from offline_rlvr.objectives import names

REPOSITORY = pathlib.Path(__file__).parents[2]


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
