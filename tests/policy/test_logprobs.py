"""Tiled log-probs equal the brute-force log-softmax and never hold more logits than a tile."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from offline_rlvr.policy import logprobs
from offline_rlvr.policy.logprobs import Head, selected_logprobs

TOLERANCE = 1e-5
COUNT, HIDDEN, VOCABULARY = 23, 6, 31


@pytest.fixture
def inputs():
    torch.manual_seed(0)
    hidden = torch.randn(COUNT, HIDDEN, requires_grad=True)
    weight = torch.randn(VOCABULARY, HIDDEN, requires_grad=True)
    bias = torch.randn(VOCABULARY, requires_grad=True)
    return hidden, weight, bias, torch.randint(0, VOCABULARY, (COUNT,))


def brute(hidden, head: Head, targets):
    z = hidden @ head.weight.T
    z = z if head.bias is None else z + head.bias
    z = z if head.softcap is None else head.softcap * torch.tanh(z / head.softcap)
    every = (z / head.temperature).log_softmax(-1)
    return every.gather(1, targets[:, None])[:, 0], -(every.exp() * every).sum(-1)


@pytest.mark.parametrize("tile", [1, 7, 22, 23, 24])
@pytest.mark.parametrize("softcap", [None, 3.0])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("biased", [True, False])
def test_equals_brute_force(inputs, tile, softcap, temperature, biased):
    hidden, weight, bias, targets = inputs
    head = Head(weight, bias if biased else None, temperature, softcap)
    leaves = [hidden, weight, bias] if biased else [hidden, weight]
    ours, entropy = selected_logprobs(hidden, head, targets, True, tile)
    theirs, expected = brute(hidden, head, targets)
    torch.testing.assert_close(ours, theirs, atol=TOLERANCE, rtol=TOLERANCE)
    torch.testing.assert_close(entropy, expected, atol=TOLERANCE, rtol=TOLERANCE)
    coefficients = torch.randn(COUNT)
    grads = [torch.autograd.grad((x * coefficients).sum(), leaves) for x in (ours, theirs)]
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b, atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.parametrize("softcap", [None, 3.0])
def test_pieces_of_a_tile_change_nothing(inputs, softcap, monkeypatch):
    hidden, weight, bias, targets = inputs
    head = Head(weight, bias, 0.7, softcap)

    def numbers():
        out, entropy = selected_logprobs(hidden, head, targets, True, 12)
        return out, entropy, *torch.autograd.grad(out.sum(), [hidden, weight, bias])

    whole = numbers()
    monkeypatch.setattr(logprobs, "CACHE_BYTES", 4 * VOCABULARY * 5)
    for a, b in zip(whole, numbers(), strict=True):
        torch.testing.assert_close(a, b, atol=TOLERANCE, rtol=TOLERANCE)


class Watch(TorchDispatchMode):
    """Remembers the most elements of any tensor made and counts the matrix products."""

    elements = 0
    products = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.products += func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm_)
        for tensor in out if isinstance(out, tuple | list) else [out]:
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.numel())
        return out


def test_logits_never_exceed_a_tile():
    hidden, tile = torch.randn(64, 2, requires_grad=True), 8
    weight = torch.randn(500, 2, requires_grad=True)
    with Watch() as seen:
        out, _ = selected_logprobs(hidden, Head(weight), torch.zeros(64).long(), True, tile)
        out.sum().backward()
    assert seen.elements == tile * 500


@pytest.mark.parametrize("frozen", [True, False])
def test_frozen_head_costs_no_weight_gradient(frozen, inputs):
    hidden, weight, _, targets = inputs
    weight.requires_grad_(not frozen)
    with Watch() as seen:
        out, _ = selected_logprobs(hidden, Head(weight), targets)
        out.sum().backward()
    assert hidden.grad is not None
    assert (weight.grad is None) == frozen
    assert seen.products == (2 if frozen else 3)  # logits and hidden gradient; one tile is kept


def test_low_precision_weights_still_give_float32(inputs):
    hidden, weight, _, targets = inputs
    low = weight.detach().bfloat16().requires_grad_()
    ours, entropy = selected_logprobs(hidden.bfloat16(), Head(low), targets, True, 5)
    exact, _ = brute(hidden, Head(weight), targets)
    assert ours.dtype == entropy.dtype == torch.float32
    torch.testing.assert_close(ours, exact, atol=0.1, rtol=0.05)
    ours.sum().backward()
    assert low.grad.dtype == torch.bfloat16


def test_autocast_changes_the_products_only(inputs):
    hidden, weight, _, targets = inputs
    with torch.autocast("cpu", torch.bfloat16):
        ours, _ = selected_logprobs(hidden, Head(weight), targets)
    rounded, _ = brute(hidden.bfloat16().float(), Head(weight.bfloat16().float()), targets)
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours, rounded, atol=0.05, rtol=0)
    ours.sum().backward()
    assert weight.grad.dtype == hidden.grad.dtype == torch.float32


def test_extreme_logits_stay_finite():
    weight = torch.tensor([[1e4], [-1e4], [0.0]], requires_grad=True)
    targets = torch.tensor([0, 1])
    out, entropy = selected_logprobs(torch.ones(2, 1), Head(weight), targets, True)
    assert out.tolist() == [0.0, -2e4]
    assert entropy.tolist() == [0.0, 0.0]
    out.sum().backward()
    assert weight.grad.flatten().tolist() == [-1.0, 1.0, 0.0]
