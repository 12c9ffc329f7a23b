"""What every objective promises, measured on every file of the folder and on its other settings."""

import copy
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch

from offline_rlvr.batch import TokenBatch, Totals
from offline_rlvr.errors import BatchError
from offline_rlvr.objectives import load, names

EXACT = {"rtol": 1e-12, "atol": 1e-14}
HERE = Path(__file__).parent
README = (HERE.parents[1] / "offline_rlvr/objectives/README.md").read_text()
FIELD_OF = {"reference": "ref_logprobs", "old": "old_logprobs"}

#: Settings that take another path through an objective's code than its defaults.
OTHER_SETTINGS = [
    ("agro", {"beta": 0.0}),
    ("cispo", {"clip_low": 0.1, "clip_high": 0.1}),
    ("ggpo", {"beta": 1.0}),
    ("ggpo_clipped", {"beta": 0.5, "clip": 0.2}),
    ("ggpo_reward_only", {"beta": 0.7}),
    ("grpo", {"kl_coef": 0.0}),
    ("grpo", {"kl_coef": 1.0, "clip_low": 0.05, "clip_high": 0.6}),
    ("grpo", {"advantage_shift": 0.7}),
    ("grpo_tis", {"kl_coef": 0.0, "tis_cap": 1.1}),
    ("proximal_kl", {"beta": 0.0}),
    ("proximal_kl", {"horizon": None, "cost_bound": None, "advantage": "leave_one_out"}),
    ("proximal_kl", {"importance": "sequence", "horizon": 2, "advantage": "standardized"}),
    ("proximal_kl", {"importance": "none", "reward_range": (-1, 1)}),
    ("proximal_kl", {"horizon": "adaptive", "adaptive_horizon": 2}),
    ("proximal_kl", {"advantage_shift": -0.4}),
    ("topr", {"reward_range": (0, 1), "baseline": 0.5}),
]
EVERY = [(name, {}) for name in names()] + OTHER_SETTINGS
every_objective = pytest.mark.parametrize(
    ("name", "params"), [pytest.param(n, p, id=f"{n}-{p}" if p else n) for n, p in EVERY]
)


def picked(batch: TokenBatch, rows: list[int]) -> TokenBatch:
    return TokenBatch(**{f.name: getattr(batch, f.name)[rows] for f in fields(batch)})


@every_objective
def test_coefficients_are_the_gradient(name, params, random_batch, evaluate, totals_of):
    batch = random_batch(spread=1.0)
    out, gradient = evaluate(load(name, **params), batch)
    c = out.coefficients if out.coefficients.ndim == 3 else out.coefficients[..., None]
    expected = -(c * batch.response_mask) / totals_of(batch).tokens
    torch.testing.assert_close(gradient, expected, rtol=1e-9, atol=1e-13)
    assert not out.coefficients.requires_grad
    assert gradient.abs().max() > 0


@every_objective
@pytest.mark.parametrize("junk", [float("nan"), float("inf"), -1e10])
def test_junk_under_the_mask_is_invisible(name, params, junk, random_batch, evaluate):
    batch = random_batch()
    assert not batch.response_mask.all()
    dirty = {
        f.name: getattr(batch, f.name).detach().masked_fill(~batch.response_mask, junk)
        for f in fields(batch)
        if f.name.endswith("logprobs")
    }
    objective = load(name, **params)
    clean_out, clean_gradient = evaluate(objective, batch)
    out, gradient = evaluate(objective, replace(batch, **dirty))
    assert out.loss.item() == clean_out.loss.item()
    assert torch.equal(gradient, clean_gradient)
    assert torch.equal(out.coefficients, clean_out.coefficients)
    assert {k: v.mean for k, v in out.metrics.items()} == {
        k: v.mean for k, v in clean_out.metrics.items()
    }


@every_objective
def test_order_of_groups_and_responses_does_not_matter(name, params, random_batch, evaluate):
    batch = random_batch()
    objective = load(name, **params)
    out, gradient = evaluate(objective, batch)
    order = [2, 0, 1]
    shuffled, shuffled_gradient = evaluate(objective, picked(batch, order))
    torch.testing.assert_close(shuffled.loss, out.loss, **EXACT)
    torch.testing.assert_close(shuffled_gradient, gradient[order], **EXACT)
    turned = TokenBatch(**{f.name: getattr(batch, f.name).flip(1) for f in fields(batch)})
    turned_out, turned_gradient = evaluate(objective, turned)
    torch.testing.assert_close(turned_out.loss, out.loss, **EXACT)
    torch.testing.assert_close(turned_gradient.flip(1), gradient, **EXACT)


@every_objective
def test_micro_batches_add_up_and_their_naive_mean_does_not(
    name, params, random_batch, evaluate, totals_of
):
    batch = random_batch(groups=5, tokens=6)
    objective, totals = load(name, **params), totals_of(batch)
    whole, gradient = evaluate(objective, batch)
    rows = [[0], [1, 2], [3, 4]]
    shares = [evaluate(objective, picked(batch, r), totals) for r in rows]
    torch.testing.assert_close(sum(out.loss for out, _ in shares), whole.loss, **EXACT)
    torch.testing.assert_close(torch.cat([g for _, g in shares]), gradient, **EXACT)
    for key, pair in whole.metrics.items():
        pooled = [out.metrics[key] for out, _ in shares]
        assert sum(p.sum for p in pooled) == pytest.approx(pair.sum.item(), rel=1e-12)
        assert sum(p.count for p in pooled) == pair.count
    alone = [evaluate(objective, picked(batch, r))[0].loss.item() for r in rows]
    assert sum(alone) / len(alone) != pytest.approx(whole.loss.item(), rel=1e-6)


@every_objective
def test_padding_length_does_not_matter(name, params, random_batch, evaluate):
    batch = random_batch()
    wider = {}
    for field in fields(batch):
        value = getattr(batch, field.name).detach()
        wider[field.name] = (
            value if value.ndim == 2 else torch.cat([value, value.new_zeros(3, 4, 7)], -1)
        )
    objective = load(name, **params)
    out, gradient = evaluate(objective, batch)
    wide, wide_gradient = evaluate(objective, TokenBatch(**wider))
    torch.testing.assert_close(wide.loss, out.loss, **EXACT)
    torch.testing.assert_close(wide_gradient[..., :5], gradient, **EXACT)
    assert not wide_gradient[..., 5:].any()


@every_objective
def test_inputs_are_unchanged(name, params, random_batch, totals_of):
    batch = random_batch()
    before = {f.name: copy.deepcopy(getattr(batch, f.name).detach()) for f in fields(batch)}
    load(name, **params)(batch, totals_of(batch)).loss.backward()
    for key, value in before.items():
        assert torch.equal(getattr(batch, key).detach(), value), key


@every_objective
def test_anchors_are_exactly_those_declared(name, params, random_batch, evaluate):
    batch = random_batch(spread=1.0)
    objective = load(name, **params)
    assert objective.anchors <= {"reference", "old"}
    out, gradient = evaluate(objective, batch)
    for anchor, field in FIELD_OF.items():
        value = getattr(batch, field)
        moved = replace(batch, **{field: 1.3 * value - 0.05})
        moved_out, moved_gradient = evaluate(objective, moved)
        without = replace(batch, **{field: None})
        if anchor in objective.anchors:
            assert not torch.equal(moved_gradient, gradient)
            with pytest.raises(BatchError, match=field):
                evaluate(objective, without)
        else:
            assert torch.equal(moved_gradient, gradient)
            assert moved_out.loss.item() == out.loss.item()
            assert evaluate(objective, without)[0].loss.item() == out.loss.item()


@every_objective
def test_only_the_policy_gets_a_gradient(name, params, random_batch, totals_of):
    others = ("behavior_logprobs", "ref_logprobs", "old_logprobs")
    batch = random_batch()
    leaves = {key: getattr(batch, key).clone().requires_grad_() for key in others}
    load(name, **params)(replace(batch, **leaves), totals_of(batch)).loss.backward()
    assert all(leaf.grad is None for leaf in leaves.values())


@every_objective
def test_uses_behavior_is_measured(name, params, random_batch, evaluate):
    batch = random_batch(spread=1.0)
    objective = load(name, **params)
    _, gradient = evaluate(objective, batch)
    moved = replace(batch, behavior_logprobs=1.3 * batch.behavior_logprobs - 0.05)
    _, moved_gradient = evaluate(objective, moved)
    assert torch.equal(moved_gradient, gradient) != objective.uses_behavior


@every_objective
@pytest.mark.parametrize("nats", [200.0, -200.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_stay_finite_at_200_nats(name, params, nats, dtype, random_batch, evaluate):
    batch = random_batch(dtype=dtype)
    far = {}
    for field in ("behavior_logprobs", "ref_logprobs", "old_logprobs"):
        value = getattr(batch, field).clone()
        value[0, 0, 0] = min(float(batch.policy_logprobs[0, 0, 0].detach()) - nats, 0.0)
        far[field] = value
    if nats < 0:  # the policy itself is far below the others
        p = batch.policy_logprobs.detach().clone()
        p[0, 0, 0] = nats
        far["policy_logprobs"] = p
    out, gradient = evaluate(load(name, **params), replace(batch, **far))
    assert gradient.dtype == dtype
    assert out.loss.isfinite()
    assert gradient.isfinite().all()
    assert gradient.square().sum().isfinite()
    assert out.coefficients.isfinite().all()


@every_objective
@pytest.mark.parametrize("reward", [0.0, 1.0, 0.1])
def test_equal_rewards_are_accepted(name, params, reward, random_batch, evaluate):
    batch = random_batch()
    even = replace(batch, rewards=torch.full_like(batch.rewards, reward))
    objective = load(name, **params)
    _, gradient = evaluate(objective, even)
    assert gradient.isfinite().all()
    if not objective.anchors and name != "topr":
        assert not gradient.any()


@every_objective
def test_groups_of_two_and_single_tokens_are_accepted(name, params, random_batch, evaluate):
    _, gradient = evaluate(load(name, **params), random_batch(groups=1, size=2, tokens=1))
    assert gradient.isfinite().all()
    assert gradient.abs().max() > 0


@every_objective
def test_groups_of_one_and_wrong_totals_are_refused(name, params, random_batch, totals_of):
    objective = load(name, **params)
    batch = random_batch()
    lone = TokenBatch(**{f.name: getattr(batch, f.name)[:, :1] for f in fields(batch)})
    with pytest.raises(BatchError, match="at least 2 responses"):
        objective(lone, totals_of(lone))
    right = totals_of(batch)
    for wrong in (Totals(right.groups, right.tokens - 1), Totals(right.groups - 1, right.tokens)):
        with pytest.raises(BatchError, match="whole update"):
            objective(batch, wrong)


@every_objective
def test_it_is_a_documented_value(name, params):
    objective = load(name, **params)
    assert objective == load(name, **params)
    assert hash(objective) == hash(load(name, **params))
    text = type(objective).__doc__
    for section in ("Reference:", "Differs from the paper:", "Reduces to:"):
        assert section in text
    for field in fields(objective):
        assert f"{field.name}:" in text


@pytest.mark.parametrize("name", names())
def test_it_has_its_own_test_file_and_its_row_in_the_table(name):
    assert (HERE / f"test_{name}.py").exists()
    table = [line.split("|")[1:-1] for line in README.splitlines() if line.startswith("| `")]
    (row,) = [cells for cells in table if cells[0].strip() == f"`{name}`"]
    _, _, anchors, behavior, stationary, _ = (cell.strip() for cell in row)
    objective = load(name)
    named = {anchor for anchor in FIELD_OF if anchor in anchors}
    assert named == objective.anchors
    assert behavior == ("yes" if objective.uses_behavior else "no")
    # proximal_kl is stationary there at other settings than its defaults; the row says which.
    assert stationary.startswith("Gibbs") == (objective.optimum == "gibbs" or name == "proximal_kl")
