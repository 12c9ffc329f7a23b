"""Losses and gradients against an independent float64 implementation (golden.json)."""

import json
from pathlib import Path

import pytest
import torch

from offline_rlvr.batch import TokenBatch, Totals
from offline_rlvr.objectives import load

CASES = json.loads((Path(__file__).parent / "golden.json").read_text())
ABSOLUTE_FLOAT64 = 1e-10
RELATIVE_FLOAT32 = 1e-5

EXPECTED = [
    pytest.param(case["batch"], expected, id=f"batch{n}-{expected['objective']}-{k}")
    for n, case in enumerate(CASES)
    for k, expected in enumerate(case["expected"])
]


def token_batch(raw: dict, dtype: torch.dtype) -> TokenBatch:
    tensors = {name: torch.tensor(value) for name, value in raw.items()}
    tensors = {
        name: value if value.dtype == torch.bool else torch.tensor(raw[name], dtype=dtype)
        for name, value in tensors.items()
    }
    tensors["policy_logprobs"].requires_grad_()
    return TokenBatch(**tensors)


def loss_and_gradient(raw: dict, expected: dict, dtype: torch.dtype):
    batch = token_batch(raw, dtype)
    totals = Totals(len(batch.rewards), int(batch.response_mask.sum()))
    out = load(expected["objective"], **expected["params"])(batch, totals)
    out.loss.backward()
    golden = torch.tensor(expected["grad_policy_logprobs"], dtype=torch.float64)
    return out, batch.policy_logprobs.grad, golden


@pytest.mark.parametrize(("raw", "expected"), EXPECTED)
def test_float64_equals_golden(raw, expected):
    out, gradient, golden = loss_and_gradient(raw, expected, torch.float64)
    assert out.loss.item() == pytest.approx(expected["loss"], abs=ABSOLUTE_FLOAT64, rel=1e-12)
    torch.testing.assert_close(gradient, golden, atol=ABSOLUTE_FLOAT64, rtol=1e-12)


@pytest.mark.parametrize(("raw", "expected"), EXPECTED)
def test_float32_inputs_stay_close(raw, expected):
    out, gradient, golden = loss_and_gradient(raw, expected, torch.float32)
    assert gradient.dtype == torch.float32
    # a loss may cancel to near 0 between its tokens: its error is measured against its largest term
    scale = max(abs(expected["loss"]), float(golden.abs().max()))
    assert abs(out.loss.item() - expected["loss"]) <= RELATIVE_FLOAT32 * scale
    error = (gradient.double() - golden).abs().max()
    assert float(error) <= RELATIVE_FLOAT32 * float(golden.abs().max())
