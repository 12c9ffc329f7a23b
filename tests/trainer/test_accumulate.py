"""An update's gradient does not depend on how its groups are cut into forward passes."""

import pytest
import torch

from offline_rlvr import objectives
from offline_rlvr.errors import ResourceError
from offline_rlvr.policy import response_pieces
from offline_rlvr.policy.load import load_policy
from offline_rlvr.pool import Pool
from offline_rlvr.pool.selection import select
from offline_rlvr.stream.data import collate
from offline_rlvr.trainer.accumulate import Accumulator
from offline_rlvr.trainer.memory import LEAST_TOKENS
from offline_rlvr.trainer.phases import Phases

MIN_COSINE = 0.999999
NORM_TOLERANCE = 1e-5
LOSS_TOLERANCE = 1e-6

OBJECTIVES = {"ggpo": {"beta": 1.0}, "proximal_kl": {}, "grpo_tis": {}, "maxrl": {}}


@pytest.fixture(scope="module")
def groups(small_pool):
    pool = Pool.open(small_pool)
    return collate(pool.read(select(pool, 0).training_ids[:6]))


@pytest.fixture
def policy():
    policy = load_policy("builtin", device="cpu")
    with torch.no_grad():  # away from the behavior policy, so that every ratio counts
        for number, parameter in enumerate(policy.parameters()):
            generator = torch.Generator().manual_seed(number)
            parameter += 0.01 * torch.randn(parameter.shape, generator=generator)
    return policy


def accumulate(policy, name, groups, budget):
    """Loss, flat gradient, diagnostics and response rows by group id."""
    objective = objectives.load(name, **OBJECTIVES[name])
    policy.zero_grad()
    accumulator = Accumulator(policy, objective, budget, Phases(policy.device))
    anchors = dict.fromkeys(objective.anchors, groups.behavior_logprobs)
    done = accumulator.add_gradients(1, groups, groups.totals, anchors, entropy=True)
    gradient = torch.cat([p.grad.flatten() for p in policy.parameters()])
    rows = {int(g): r["s"][i] for ids, r in done.records for i, g in enumerate(ids)}
    return float(done.loss), gradient, done.diagnostics.result(), rows


def passes(policy, monkeypatch):
    """(tokens, checkpointed, with gradient) of every forward pass from now on."""
    seen = []
    score = policy.score

    def spy(batch, entropy=False):
        tokens = int(batch.prompt_lengths.sum() + batch.response_lengths.sum())
        seen.append((tokens, policy.checkpointing, torch.is_grad_enabled()))
        return score(batch, entropy)

    monkeypatch.setattr(policy, "score", spy)
    return seen


@pytest.mark.parametrize("name", OBJECTIVES)
def test_groups_too_long_for_a_forward_pass_give_the_same_update(name, groups, policy, monkeypatch):
    size = groups.prompt_lengths + groups.response_lengths.sum(1)
    whole = accumulate(policy, name, groups, int(size.sum()))
    seen = passes(policy, monkeypatch)
    for budget, kind in ((int(size.min()) - 1, "checkpointed"), (int(size.min()) // 5, "pieces")):
        seen.clear()
        loss, gradient, metrics, rows = accumulate(policy, name, groups, budget)
        assert loss == pytest.approx(whole[0], abs=LOSS_TOLERANCE)
        assert torch.cosine_similarity(gradient, whole[1], 0) > MIN_COSINE
        assert gradient.norm() / whole[1].norm() == pytest.approx(1, abs=NORM_TOLERANCE)
        assert metrics.keys() == whole[2].keys()
        assert metrics == pytest.approx(whole[2], rel=1e-4, abs=1e-6)
        assert rows.keys() == whole[3].keys()
        if kind == "checkpointed":
            assert all(grad and checkpointed for _, checkpointed, grad in seen)
        else:  # one round without gradient, one with
            assert sum(grad for *_, grad in seen) * 2 == len(seen) > 2 * len(size)
            assert max(tokens for tokens, *_ in seen) < int(size.min())


def test_a_plain_update_checkpoints_nothing(groups, policy, monkeypatch):
    seen = passes(policy, monkeypatch)
    accumulate(policy, "ggpo", groups, 10_000)
    assert [(checkpointed, grad) for _, checkpointed, grad in seen] == [(False, True)]


def test_a_group_that_shares_no_pass_may_fill_the_budget(groups, policy, monkeypatch):
    seen = passes(policy, monkeypatch)
    objective = objectives.load("ggpo", beta=1.0)
    accumulator = Accumulator(policy, objective, 10_000, Phases(policy.device), pack_tokens=1)
    anchors = dict.fromkeys(objective.anchors, groups.behavior_logprobs)
    accumulator.add_gradients(1, groups, groups.totals, anchors, entropy=False)
    sizes = groups.prompt_lengths + groups.response_lengths.sum(1)
    assert sorted(seen) == [(tokens, False, True) for tokens in sorted(sizes.tolist())]


@pytest.mark.parametrize("budget", [10_000, 60, 15])
def test_an_anchor_is_scored_by_the_passes_that_train(budget, groups, policy):
    objective = objectives.load("ggpo", beta=1.0)
    accumulator = Accumulator(policy, objective, budget, Phases(policy.device))
    scored = accumulator.score(groups)
    done = accumulator.add_gradients(1, groups, groups.totals, {"reference": scored}, entropy=False)
    assert done.diagnostics.result()["reference/log_ratio_nats"] == 0


def test_pieces_hold_every_response_once_and_fit():
    lengths = [30, 50, 20, 60, 10, 10, 10]
    assert response_pieces(10, lengths, 50) == [slice(0, 7)]  # 200 tokens, four budgets
    pieces = response_pieces(10, lengths, 49)
    assert [lengths[piece] for piece in pieces] == [[30], [50], [20], [60], [10, 10, 10]]


def test_running_out_of_memory_halves_the_budget_down_to_a_floor(policy):
    accumulator = Accumulator(
        policy, objectives.load("pg"), 4 * LEAST_TOKENS + 3, Phases(policy.device)
    )
    assert accumulator.shrink("why") == (4 * LEAST_TOKENS + 3, 2 * LEAST_TOKENS + 1)
    accumulator.shrink("why")
    with pytest.raises(ResourceError, match=r"even with 256 tokens per forward pass \(why\)"):
        accumulator.shrink("why")
