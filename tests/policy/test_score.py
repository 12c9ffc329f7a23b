"""Packed scoring equals scoring each response alone, in value and gradient."""

import copy
import warnings

import pytest
import torch

from offline_rlvr.batch import PoolBatch
from offline_rlvr.errors import BatchError, ConfigError
from offline_rlvr.policy import Policy, micro_batches

VALUE_TOLERANCE = 1e-5
MIN_COSINE = 0.99999
NORM_TOLERANCE = 1e-4

KINDS = ["qwen3", "qwen2", "llama", "smollm", "gemma3", "mistral", "gpt2"]


def gradient(values, model, seed=1):
    """Flat gradient of a random linear function of the scores, over all parameters."""
    weights = torch.randn(values.shape, generator=torch.Generator().manual_seed(seed))
    model.zero_grad()
    (values * weights).sum().backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def assert_same_gradient(ours, theirs):
    assert ours.shape == theirs.shape
    assert torch.cosine_similarity(ours, theirs, 0) > MIN_COSINE
    assert ours.norm() / theirs.norm() == pytest.approx(1, abs=NORM_TOLERANCE)


@pytest.mark.parametrize("backend", ["split", "dense"])
@pytest.mark.parametrize("kind", KINDS)
def test_equals_one_response_at_a_time(kind, backend, make_model, make_batch, plain_scores):
    batch = make_batch()
    oracle = make_model(kind, attention="eager")
    policy = Policy(make_model(kind), attention=backend)
    expected, _ = plain_scores(oracle, batch)
    scores = policy.score(batch)
    assert scores.logprobs.dtype == torch.float32
    assert scores.entropy is None
    torch.testing.assert_close(scores.logprobs, expected, atol=VALUE_TOLERANCE, rtol=1e-5)
    assert_same_gradient(gradient(scores.logprobs, policy), gradient(expected, oracle))


@pytest.mark.parametrize("kind", ["qwen3", "smollm", "gemma3", "mistral"])
def test_flex_equals_dense_forward(kind, make_model, make_batch):
    batch = make_batch()
    policy = Policy(make_model(kind), attention="dense")
    with torch.no_grad(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "flex_attention called without torch.compile")
        dense = policy.score(batch).logprobs
        policy.attention = "flex"
        flex = policy.score(batch).logprobs
    torch.testing.assert_close(flex, dense, atol=VALUE_TOLERANCE, rtol=1e-5)


@pytest.mark.parametrize("tied", [True, False])
def test_tied_and_untied_heads(tied, make_model, make_batch, plain_scores):
    batch = make_batch(g=2, k=2)
    oracle = make_model("llama", tie_word_embeddings=tied)
    policy = Policy(make_model("llama", tie_word_embeddings=tied))
    expected, _ = plain_scores(oracle, batch)
    assert (policy.head.weight is policy.causal_lm.get_input_embeddings().weight) == tied
    ours = gradient(policy.score(batch).logprobs, policy)
    assert_same_gradient(ours, gradient(expected, oracle))


@pytest.mark.parametrize(
    ("prompts", "responses"),
    [
        ([1], [[1, 1]]),  # nothing shorter exists
        ([5], [[1, 6]]),  # one group
        ([1, 4], [[3, 1], [1, 7]]),
        ([3], [[2, 9, 1, 5, 5, 3, 8, 4]]),  # K = 8
        ([7, 2, 1], [[4, 4, 4], [1, 1, 1], [9, 1, 2]]),
    ],
)
@pytest.mark.parametrize("kind", ["qwen3", "gemma3"])
def test_edge_lengths(kind, prompts, responses, make_model, make_batch, plain_scores):
    batch = make_batch(prompt_lengths=prompts, response_lengths=responses)
    policy = Policy(make_model(kind))
    with torch.no_grad():
        expected, _ = plain_scores(make_model(kind, attention="eager"), batch)
        ours = policy.score(batch).logprobs
    torch.testing.assert_close(ours, expected, atol=VALUE_TOLERANCE, rtol=1e-5)
    assert (ours[~batch.response_mask] == 0).all()


def test_token_t_is_scored_by_the_logits_at_t_minus_1(make_model, make_batch):
    """A model that predicts the successor of the last token: layers leave the stream alone."""
    model = make_model("llama", hidden_size=64, tie_word_embeddings=False)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.fill_(1.0 if "norm" in name else 0.0)
        tokens = torch.arange(53)
        model.model.embed_tokens.weight[tokens, tokens] = 1.0
        model.lm_head.weight[(tokens + 1) % 53, tokens] = 2.0
    batch = make_batch(prompt_lengths=[2, 1], response_lengths=[[3, 2], [1, 2]])
    batch.prompt_token_ids[:] = torch.tensor([[9, 3], [7, 0]])
    batch.response_token_ids[0] = torch.tensor([[4, 5, 6], [5, 6, 0]])
    batch.response_token_ids[1] = torch.tensor([[8, 0, 0], [8, 8, 0]])
    z = 2.0 * 8.0  # RMS norm turns a one-hot vector of 64 into one of length 8
    total = torch.tensor(z).exp() + 52
    hit, miss = float(z - total.log()), float(-total.log())
    expected = [[[hit, hit, hit], [miss, hit, 0]], [[hit, 0, 0], [hit, miss, 0]]]
    scores = Policy(model).score(batch).logprobs
    torch.testing.assert_close(scores, torch.tensor(expected), atol=1e-3, rtol=0)


def test_micro_batches_do_not_change_values(make_model, make_batch):
    batch = make_batch(g=9, k=3)
    policy = Policy(make_model("gemma3"))
    with torch.no_grad():
        whole = policy.score(batch).logprobs
        plan = micro_batches(batch.prompt_lengths.tolist(), batch.response_lengths.tolist(), 40)
        assert len(plan) > 2
        for rows in plan:
            part = policy.score(batch.select(rows)).logprobs
            torch.testing.assert_close(
                part, whole[rows, :, : part.shape[-1]], atol=VALUE_TOLERANCE, rtol=0
            )


@pytest.mark.parametrize("junk", [-100, 10**9, 2])  # invalid, invalid, the EOS id
def test_junk_in_the_padding_is_invisible(junk, make_model, make_batch):
    batch = make_batch(seed=3)
    dirty = PoolBatch(**{n: v.clone() for n, v in vars(batch).items()})
    dirty.response_token_ids[~batch.response_mask] = junk
    beyond = torch.arange(batch.prompt_token_ids.shape[1]) >= batch.prompt_lengths[:, None]
    dirty.prompt_token_ids[beyond] = junk
    policy = Policy(make_model("qwen3"))
    one, two = policy.score(batch).logprobs, policy.score(dirty).logprobs
    assert torch.equal(one, two)
    assert torch.equal(gradient(one, policy), gradient(two, policy))


def test_pad_equal_to_eos_keeps_the_real_eos(make_model, make_batch, plain_scores):
    batch = make_batch(prompt_lengths=[2], response_lengths=[[3, 5]])
    batch.response_token_ids[0, 0] = torch.tensor([7, 8, 0, 0, 0])  # 0 is EOS and pad
    policy = Policy(make_model("llama", eos_token_id=0))
    with torch.no_grad():
        expected, _ = plain_scores(make_model("llama", eos_token_id=0), batch)
        ours = policy.score(batch).logprobs
    assert ours[0, 0, 2] < 0
    torch.testing.assert_close(ours, expected, atol=VALUE_TOLERANCE, rtol=1e-5)


@pytest.mark.parametrize("backend", ["split", "dense"])
def test_responses_do_not_see_each_other(backend, make_model, make_batch):
    batch = make_batch(prompt_lengths=[3, 3], response_lengths=[[4, 4, 4], [4, 4, 4]])
    policy = Policy(make_model("qwen3"), attention=backend)
    before = policy.score(batch).logprobs
    batch.response_token_ids[0, 1] = (batch.response_token_ids[0, 1] + 1) % 53
    after = policy.score(batch).logprobs
    assert not torch.equal(before[0, 1], after[0, 1])
    assert torch.equal(before[0, [0, 2]], after[0, [0, 2]])
    assert torch.equal(before[1], after[1])


@pytest.mark.parametrize("temperature", [0.6, 1.3])
def test_temperature_and_entropy(temperature, make_model, make_batch, plain_scores):
    batch = make_batch()
    oracle = make_model("qwen3", attention="eager")
    policy = Policy(make_model("qwen3"), temperature=temperature)
    expected, entropies = plain_scores(oracle, batch, temperature)
    scores = policy.score(batch, entropy=True)
    torch.testing.assert_close(scores.logprobs, expected, atol=VALUE_TOLERANCE, rtol=1e-5)
    torch.testing.assert_close(scores.entropy, entropies, atol=VALUE_TOLERANCE, rtol=1e-5)
    assert not scores.entropy.requires_grad
    assert_same_gradient(gradient(scores.logprobs, policy), gradient(expected, oracle))


@pytest.mark.parametrize("tile", [1, 5, 10**6])
def test_tiles_do_not_change_scores(tile, make_model, make_batch):
    batch = make_batch()
    whole, tiled = Policy(make_model()), Policy(make_model(), tile_tokens=tile)
    a, b = whole.score(batch, entropy=True), tiled.score(batch, entropy=True)
    torch.testing.assert_close(a, b, atol=VALUE_TOLERANCE, rtol=0)
    assert_same_gradient(gradient(b.logprobs, tiled), gradient(a.logprobs, whole))


def test_two_calls_are_bit_equal_in_any_mode_despite_dropout(make_model, make_batch):
    batch = make_batch()
    policy = Policy(make_model("llama", attention_dropout=0.5))
    runs = [policy.train().score(batch), policy.train().score(batch), policy.eval().score(batch)]
    assert torch.equal(runs[0].logprobs, runs[1].logprobs)
    assert torch.equal(runs[0].logprobs, runs[2].logprobs)
    first, second = (gradient(run.logprobs, policy) for run in runs[:2])
    assert torch.equal(first, second)


def test_no_gradient_when_grad_is_off(make_model, make_batch):
    with torch.no_grad():
        assert not Policy(make_model()).score(make_batch()).logprobs.requires_grad


def test_generation_is_left_as_it_was(make_model, make_batch):
    model = make_model("gemma3").eval()
    ids = torch.tensor([[0, 0, 5, 9, 11, 4, 8], [3, 4, 5, 6, 7, 8, 9]])
    inputs = {"input_ids": ids, "attention_mask": (ids > 0).long()}
    options = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None}
    before = model.generate(**inputs, **options)
    policy = Policy(model)
    policy.score(make_batch())
    assert torch.equal(model.generate(**inputs, **options), before)
    assert policy.causal_lm.config.use_cache


def test_scoring_and_the_probe_leave_the_weights_and_random_numbers_alone(make_model, make_batch):
    model = make_model()
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    Policy(model).score(make_batch()).logprobs.sum().backward()
    assert all(torch.equal(v, before[n]) for n, v in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)


def test_bad_batches_name_group_and_response(make_model, make_batch):
    policy = Policy(make_model())
    batch = make_batch(prompt_lengths=[3, 3], response_lengths=[[2, 2], [2, 2]])

    def spoil(**changes) -> PoolBatch:
        return PoolBatch(**(vars(batch) | changes))

    with pytest.raises(BatchError, match="group 1, response 0 of this batch has 0 tokens"):
        policy.score(spoil(response_lengths=torch.tensor([[2, 2], [0, 2]])))
    with pytest.raises(BatchError, match="group 0, response 1 of this batch has 3 tokens"):
        policy.score(spoil(response_lengths=torch.tensor([[2, 3], [2, 2]])))
    with pytest.raises(BatchError, match="group 1 of this batch has a prompt of 0 tokens"):
        policy.score(spoil(prompt_lengths=torch.tensor([3, 0])))
    ids = batch.response_token_ids.clone()
    ids[1, 1, 0] = 53
    with pytest.raises(BatchError, match=r"group 1, response 1 .* token id 53; .* ids 0 to 52"):
        policy.score(spoil(response_token_ids=ids))


def test_bad_settings_are_refused(make_model):
    model = make_model()
    with pytest.raises(ConfigError, match="temperature 0 is not"):
        Policy(model, temperature=0)
    with pytest.raises(ConfigError, match="tile_tokens 0 is not"):
        Policy(model, tile_tokens=0)
    with pytest.raises(ConfigError, match="choose one of dense, split, flex"):
        Policy(model, attention="flash")
