"""Metrics of an update by hand, and that they add up over micro-batches and ranks."""

import json
import math
from dataclasses import fields, replace

import pytest
import torch

from offline_rlvr.batch import TokenBatch
from offline_rlvr.diagnostics.bins import BINS, POSITION_KEYS, PROBABILITIES, PROBABILITY_KEYS
from offline_rlvr.diagnostics.responses import response_record
from offline_rlvr.diagnostics.update import UpdateDiagnostics, probe_metrics
from offline_rlvr.diagnostics.window import EssWindow


def by_hand() -> TokenBatch:
    """One group: a right response of two tokens (lambda 0.2, -0.05), a wrong one of one (-0.4)."""
    log_ratio = torch.tensor([[[0.2, -0.05], [-0.4, 77.0]]], dtype=torch.float64)
    to_reference = torch.tensor([[[0.1, 0.3], [-0.2, 0.0]]], dtype=torch.float64)
    policy = torch.full_like(log_ratio, -2.0)
    mask = torch.tensor([[[True, True], [True, False]]])
    rewards = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    return TokenBatch(policy, policy - log_ratio, rewards, mask, ref_logprobs=policy - to_reference)


def random_batch(seed: int, groups: int = 4) -> TokenBatch:
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    shape = (groups, 4, 6)
    rewards = (draw(groups, 4) < 0.5).double()
    mask = torch.arange(6) < torch.randint(1, 7, (groups, 4, 1), generator=generator)
    return TokenBatch(-draw(*shape), -draw(*shape), rewards, mask, ref_logprobs=-draw(*shape))


def picked(batch: TokenBatch, rows: list[int]) -> TokenBatch:
    values = {f.name: getattr(batch, f.name) for f in fields(batch)}
    return TokenBatch(**{k: None if v is None else v[rows] for k, v in values.items()})


def result(batch: TokenBatch, beta: float | None = 0.5, **extra) -> dict[str, float]:
    acc = UpdateDiagnostics(beta)
    acc.add(batch, **extra)
    return acc.result(EssWindow())


def k3(x: float) -> float:
    return math.exp(x) - x - 1


def test_drift_by_hand():
    values = result(by_hand())
    expected = {
        "drift/abs_log_ratio": (0.2 + 0.05 + 0.4) / 3,
        "drift/abs_log_ratio/right": 0.125,
        "drift/abs_log_ratio/wrong": 0.4,
        "drift/k1_behavior_policy": (-0.2 + 0.05 + 0.4) / 3,
        "drift/k3_behavior_policy": (k3(0.2) + k3(-0.05) + k3(-0.4)) / 3,
        "drift/k3_behavior_policy/right": (k3(0.2) + k3(-0.05)) / 2,
        "drift/fraction_above_0.1": 2 / 3,
        "drift/fraction_saturated": 0.0,
        "reference/k3": (k3(0.1) + k3(0.3) + k3(-0.2)) / 3,
        "reference/log_ratio_nats": (0.4 - 0.2) / 2,
        "reference/log_ratio_nats/wrong": -0.2,
    }
    assert {key: values[key] for key in expected} == pytest.approx(expected, abs=1e-14)


def test_drift_by_position_and_by_behavior_probability():
    """Against a loop over tokens: a part is a tenth of a response, padding belongs to none."""
    generator = torch.Generator().manual_seed(1)
    policy, behavior = -3 * torch.rand(2, 2, 2, 23, generator=generator, dtype=torch.float64) - 1e-3
    lengths = torch.tensor([[23, 4], [10, 1]])
    mask = torch.arange(23) < lengths[..., None]
    rewards = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    batch = TokenBatch(policy, behavior, rewards, mask)
    acc = UpdateDiagnostics()
    acc.add(batch, entropy=torch.zeros_like(policy))
    found = {key: v for key, v in acc.result().items() if key in BINS}
    tokens: dict[str, list[float]] = {}
    for g, k, t in mask.nonzero().tolist():
        size = abs(float(policy[g, k, t] - behavior[g, k, t]))
        tokens.setdefault(POSITION_KEYS[10 * t // int(lengths[g, k])], []).append(size)
        chance = math.exp(behavior[g, k, t])
        inside = next(i for i, high in enumerate(PROBABILITIES[1:]) if chance <= high)
        tokens.setdefault(PROBABILITY_KEYS[inside], []).append(size)
    assert found == pytest.approx({key: sum(v) / len(v) for key, v in tokens.items()}, rel=1e-12)
    acc = UpdateDiagnostics()
    acc.add(batch)
    assert not acc.result().keys() & BINS.keys()  # not a logging update


def test_weights_by_hand():
    values = result(by_hand())
    w = [math.exp(0.15), math.exp(-0.4)]
    ess = sum(w) ** 2 / (2 * sum(x * x for x in w))
    assert values["weights/ess_update"] == values["weights/ess"] == pytest.approx(ess)
    assert values["weights/ess/right"] == pytest.approx(1.0)


def test_gibbs_by_hand():
    values = result(by_hand(), beta=0.5)
    z = [1 / 0.5 - 0.4, 0.0 + 0.2]
    q = math.exp(z[0]) / (math.exp(z[0]) + math.exp(z[1]))
    assert values["gibbs/ess_q"] == pytest.approx(1 / (q * q + (1 - q) ** 2))
    assert values["gibbs/ess_q_median"] == pytest.approx(values["gibbs/ess_q"])
    gap = math.log((math.exp(z[0]) + math.exp(z[1])) / 2) - sum(z) / 2
    assert values["gibbs/loss"] == pytest.approx(0.5 * gap, abs=1e-14)
    assert values["gibbs/negative_correct_fraction"] == 0.0
    assert "gibbs/ess_success" not in values  # no group with two right responses


def test_gibbs_success_concentration_and_negative_coefficients():
    delta = torch.tensor([[[2.0], [0.0], [0.0], [0.0]], [[0.0]] * 4], dtype=torch.float64)
    policy = torch.full_like(delta, -3.0)
    rewards = torch.tensor([[1.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
    mask = torch.ones_like(delta, dtype=torch.bool)
    values = result(
        TokenBatch(policy, policy, rewards, mask, ref_logprobs=policy - delta), beta=0.01
    )
    w = [math.exp(-2.0), 1.0]
    ess = sum(w) ** 2 / (2 * sum(x * x for x in w))
    assert values["gibbs/ess_success"] == pytest.approx(ess)
    # group 1: 4 q = 4 e^-2 / (e^-2 + 1) < 1 for the first; one of three right responses
    assert values["gibbs/negative_correct_fraction"] == pytest.approx(1 / 3)


def test_objective_and_entropy():
    coefficients = torch.tensor([[[1.0, -3.0], [9.0, 50.0]]], dtype=torch.float64)
    entropy = torch.tensor([[[1.0, 2.0], [6.0, float("nan")]]])
    values = result(by_hand(), coefficients=coefficients, entropy=entropy)
    assert values["objective/negative_correct_fraction"] == 1.0
    assert values["policy/entropy"] == 3.0
    assert values["policy/entropy/right"] == 1.5
    per_response = result(by_hand(), coefficients=torch.tensor([[0.5, -1.0]]))
    assert per_response["objective/negative_correct_fraction"] == 0.0


def test_values_are_never_clamped_and_overflow_is_counted():
    batch = by_hand()
    behavior = batch.behavior_logprobs.clone()
    behavior[0, 0, 0] = -102.0  # lambda = 100: float32 would overflow
    far = result(replace(batch, behavior_logprobs=behavior))
    assert far["drift/k3_behavior_policy/right"] == pytest.approx(k3(100.0) / 2, rel=1e-12)
    behavior[0, 0, 0] = -5002.0
    beyond = result(replace(batch, behavior_logprobs=behavior))
    assert beyond["drift/fraction_saturated"] == pytest.approx(1 / 3)
    assert beyond["drift/abs_log_ratio/right"] == pytest.approx(5000.05 / 2)
    assert beyond["drift/k3_behavior_policy/right"] == pytest.approx(k3(-0.05), rel=1e-9)
    assert beyond["weights/ess"] == pytest.approx(0.5)


def test_untouched_policy_drifts_by_exactly_nothing():
    batch = by_hand()
    same = replace(batch, behavior_logprobs=batch.policy_logprobs)
    values = result(same)
    assert values["drift/abs_log_ratio"] == values["drift/k3_behavior_policy"] == 0.0
    assert values["weights/ess"] == pytest.approx(1.0, abs=1e-15)


def test_micro_batches_and_ranks_add_up():
    batch = random_batch(0, groups=6)
    coefficients = torch.linspace(-1, 1, 24, dtype=torch.float64).reshape(6, 4)
    whole = UpdateDiagnostics(0.3)
    whole.add(batch, coefficients)
    expected = whole.result()
    ranks = []
    for rows in ([[0], [1, 2]], [[3, 4, 5]]):
        acc = UpdateDiagnostics(0.3)
        for micro in rows:
            acc.add(picked(batch, micro), coefficients[micro])
        ranks.append(UpdateDiagnostics.from_state(json.loads(json.dumps(acc.state_dict()))))
    merged = (ranks[0] + ranks[1]).result()
    assert merged == pytest.approx(expected, rel=1e-12)
    naive = (
        ranks[0].result()["drift/abs_log_ratio"] + ranks[1].result()["drift/abs_log_ratio"]
    ) / 2
    assert naive != pytest.approx(expected["drift/abs_log_ratio"], rel=1e-6)


def test_junk_under_the_mask_is_invisible():
    batch = random_batch(1)
    junk = {
        name: getattr(batch, name).masked_fill(~batch.response_mask, float("nan"))
        for name in ("policy_logprobs", "behavior_logprobs", "ref_logprobs")
    }
    assert result(replace(batch, **junk)) == result(batch)


def test_no_beta_or_reference_no_gibbs():
    batch = by_hand()
    assert not [k for k in result(batch, beta=None) if k.startswith("gibbs/")]
    without = result(replace(batch, ref_logprobs=None))
    assert not [k for k in without if k.startswith(("gibbs/", "reference/"))]


def test_extras_are_passed_through():
    acc = UpdateDiagnostics()
    acc.add(by_hand())
    assert acc.result(grad_norm=2.5, noise_floor=0.01)["train/grad_norm"] == 2.5
    assert "drift/noise_floor" not in acc.result()


def test_probe_has_the_same_drift_under_its_own_names():
    first, second = random_batch(2), random_batch(3)
    acc = UpdateDiagnostics()
    acc.add(first)
    acc.add(second)
    values, probe = acc.result(), probe_metrics([first, second])
    assert probe["probe/k3_behavior_policy"] == values["drift/k3_behavior_policy"]
    assert probe["probe/abs_log_ratio/wrong"] == values["drift/abs_log_ratio/wrong"]
    assert probe["probe/ess"] == values["weights/ess_update"]
    assert {key.split("/")[0] for key in probe} == {"probe"}


def test_response_record_by_hand():
    batch = by_hand()
    coefficients = torch.tensor([[[1.0, -3.0], [9.0, 50.0]]], dtype=torch.float64)
    record = response_record(batch, coefficients, beta=0.5)
    assert record["reward"].tolist() == [[1.0, 0.0]]
    assert record["s"].tolist() == [[-4.0, -2.0]]
    assert record["s_behavior"].tolist() == [[pytest.approx(-4.15), pytest.approx(-1.6)]]
    assert record["s_ref"].tolist() == [[pytest.approx(-4.4), pytest.approx(-1.8)]]
    q = 1 / (1 + math.exp(0.2 - 1.6))
    assert record["q"].tolist() == [[pytest.approx(q), pytest.approx(1 - q)]]
    assert record["coefficient"].tolist() == [[-1.0, 9.0]]
    assert set(response_record(replace(batch, ref_logprobs=None), beta=0.5)) == {
        "reward",
        "s",
        "s_behavior",
    }
