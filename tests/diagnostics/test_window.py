"""The window equals the weights it stands for, forgets on time, and survives a checkpoint."""

import json

import pytest
import torch

from offline_rlvr.diagnostics.window import EssWindow
from offline_rlvr.numerics.logspace import LogWeights


def rows(count: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [3 * torch.randn(5 + n, generator=generator, dtype=torch.float64) for n in range(count)]


def pushed(window: EssWindow, logs: list[torch.Tensor]) -> EssWindow:
    for row in logs:
        window.push({"": LogWeights.of(row), "/right": LogWeights.of(row[:2])})
    return window


def test_equals_all_weights_of_the_last_updates():
    logs = rows(11)
    window = pushed(EssWindow(updates=8), logs)
    recent = torch.cat(logs[-8:])
    w = (recent - recent.max()).exp()
    slow = float(w.sum() ** 2 / (len(w) * (w * w).sum()))
    assert window.result()["weights/ess"] == pytest.approx(slow, rel=1e-12)
    right = LogWeights.of(torch.cat([row[:2] for row in logs[-8:]]))
    assert window.result()["weights/ess/right"] == pytest.approx(right.ess, rel=1e-12)
    assert window.result()["weights/ess"] != pytest.approx(
        LogWeights.of(torch.cat(logs)).ess, rel=1e-6
    )


def test_is_not_a_mean_of_means():
    logs = [torch.zeros(4, dtype=torch.float64), torch.full((4,), 5.0, dtype=torch.float64)]
    # each update alone has ESS 1; together the second dwarfs the first
    assert pushed(EssWindow(8), logs).result()["weights/ess"] < 0.52


def test_state_through_json_is_exact():
    logs = rows(12)
    straight = pushed(EssWindow(4), logs)
    before = pushed(EssWindow(4), logs[:7])
    after = EssWindow(1)
    after.load_state_dict(json.loads(json.dumps(before.state_dict())))
    assert pushed(after, logs[7:]).result() == straight.result()
    assert after.state_dict() == straight.state_dict()


def test_a_split_without_responses_is_absent_and_comes_back():
    window = EssWindow(2)
    nothing = LogWeights.of(torch.zeros(0, dtype=torch.float64))
    some = LogWeights.of(torch.zeros(3, dtype=torch.float64))
    window.push({"": some, "/wrong": nothing})
    assert set(window.result()) == {"weights/ess"}
    assert "Infinity" not in json.dumps(window.state_dict())
    window.push({"": some, "/wrong": some})
    assert window.result()["weights/ess/wrong"] == pytest.approx(1.0)
