"""Every key is defined once, and every key that is produced is in the catalogue."""

import re
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from offline_rlvr.batch import TokenBatch, Totals
from offline_rlvr.diagnostics.catalogue import CATALOGUE, PROBE_OF, describe
from offline_rlvr.diagnostics.update import UpdateDiagnostics, probe_metrics
from offline_rlvr.diagnostics.window import EssWindow
from offline_rlvr.errors import ConfigError
from offline_rlvr.objectives import load, names

#: The Diagnostics table of the design.
TABLE = {
    "drift/abs_log_ratio",
    "drift/k3_behavior_policy",
    "drift/k1_behavior_policy",
    "drift/fraction_above_0.1",
    "weights/ess",
    "weights/ess_update",
    "reference/k3",
    "reference/log_ratio_nats",
    "gibbs/ess_q",
    "gibbs/ess_success",
    "gibbs/loss",
    "gibbs/negative_correct_fraction",
    "policy/entropy",
    "train/grad_norm",
    "drift/noise_floor",
}


def test_the_table_is_covered():
    assert set(CATALOGUE) >= TABLE


@pytest.mark.parametrize("metric", CATALOGUE.values(), ids=list(CATALOGUE))
def test_entries_are_complete(metric):
    assert re.fullmatch(r"[a-z]+/[a-z0-9_.]+", metric.key)
    assert len(metric.definition) > 15
    assert metric.scale in ("linear", "log")
    assert metric.rise in ("worse", "better", "neither")


def test_the_catalogue_imports_no_torch():
    code = (
        "import sys, offline_rlvr.diagnostics.catalogue as c; "
        "c.describe('drift/k3_behavior_policy/right'); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def mixed_batch() -> TokenBatch:
    generator = torch.Generator().manual_seed(3)

    def draw():
        return -torch.rand(3, 4, 5, generator=generator, dtype=torch.float64) - 1e-3

    rewards = torch.tensor([[1.0, 1.0, 0.0, 0.0]] * 3, dtype=torch.float64)
    mask = torch.arange(5) < torch.randint(1, 6, (3, 4, 1), generator=generator)
    return TokenBatch(draw(), draw(), rewards, mask, ref_logprobs=draw(), old_logprobs=draw())


@pytest.mark.parametrize("name", names())
def test_everything_produced_is_described(name):
    batch = mixed_batch()
    out = load(name)(batch, Totals(3, int(batch.response_mask.sum())))
    acc = UpdateDiagnostics(beta=0.1)
    acc.add(batch, out.coefficients, torch.ones(3, 4, 5), out.metrics)
    values = acc.result(EssWindow(), grad_norm=1.0, noise_floor=0.1)
    values |= probe_metrics([batch])
    for key in values:
        assert describe(key).key == key
    bare = {key for key in values if not key.endswith(("/right", "/wrong"))}
    assert bare >= TABLE | set(PROBE_OF)
    for key in bare & set(CATALOGUE):
        assert (f"{key}/right" in values) == CATALOGUE[key].split
        assert (f"{key}/wrong" in values) == CATALOGUE[key].split


def test_splits_and_probes_are_described():
    assert "right responses only" in describe("drift/abs_log_ratio/right").definition
    assert "never trained on" in describe("probe/k3_behavior_policy/wrong").definition
    assert describe("probe/ess").unit == describe("weights/ess_update").unit


@pytest.mark.parametrize("key", ["drift/abs", "gibbs/loss/right", "probe/gibbs", ""])
def test_unknown_keys(key):
    with pytest.raises(ConfigError, match="there is no metric"):
        describe(key)


def test_absent_rather_than_nan():
    batch = mixed_batch()
    all_right = replace(batch, rewards=torch.ones_like(batch.rewards), ref_logprobs=None)
    acc = UpdateDiagnostics(beta=0.1)
    acc.add(all_right)
    values = acc.result(EssWindow())
    assert not [key for key in values if key.endswith("/wrong") or key.startswith("gibbs/")]
    assert all(value == value for value in values.values())
    assert "drift/abs_log_ratio/right" in values
