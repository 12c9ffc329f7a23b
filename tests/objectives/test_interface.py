"""What `output` and `score_output` guarantee, whatever an objective hands them."""

import pytest
import torch

from offline_rlvr.objectives import interface


def test_coefficients_that_carry_a_gradient_do_not_pass_it_on(random_batch, totals_of):
    batch, totals = random_batch(), totals_of(random_batch())
    c = batch.policy_logprobs.double().exp() * batch.response_mask
    out = interface.score_output(batch, totals, c)
    out.loss.backward()
    expected = -(c.detach() / totals.tokens)
    torch.testing.assert_close(batch.policy_logprobs.grad, expected, rtol=1e-12, atol=0)
    assert not out.coefficients.requires_grad
    assert not interface.output(batch, out.loss, c).coefficients.requires_grad


@pytest.mark.parametrize("junk", [float("nan"), 7.0])
def test_junk_coefficients_under_the_mask_vanish(random_batch, totals_of, junk):
    batch = random_batch()
    c = torch.full_like(batch.policy_logprobs, -2.0).masked_fill(~batch.response_mask, junk)
    out = interface.score_output(batch, totals_of(batch), c.detach())
    assert torch.equal(out.coefficients, -2.0 * batch.response_mask)


def test_the_shared_metric_is_the_token_mean_of_the_size(random_batch, totals_of):
    batch = random_batch()
    sign = torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=torch.float64).expand(3, 4)
    for c in (3 * sign, 3 * sign[..., None].expand(batch.response_mask.shape)):
        out = interface.score_output(batch, totals_of(batch), c)
        size = out.metrics["objective/coefficient_abs"]
        assert (size.mean, size.count) == (3.0, int(batch.response_mask.sum()))
