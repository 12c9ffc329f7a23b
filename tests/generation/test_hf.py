"""The stored log-prob is that of the distribution that drew the token; batches decide nothing."""

import math
from collections import Counter

import pytest
import torch
from transformers import GenerationConfig

from offline_rlvr.errors import ConfigError, DataError, IncompatibleError
from offline_rlvr.generation import Sampling, load, seed_for
from offline_rlvr.generation.draw import inverse_cdf
from offline_rlvr.generation.hf import HFGenerator
from offline_rlvr.generation.pretrained import load_model, load_tokenizer

#: float32 forward of one row against another batch shape, and with against without a KV cache.
LOGPROB_TOLERANCE = 1e-5
PROMPTS = [[1, 7, 8, 9], [1, 30], [1, *range(10, 24)], [1, 12, 13]]
SEEDS = [[seed_for(5, i, k) for k in range(3)] for i in range(len(PROMPTS))]


def draws(tiny, tokenizer, logits, count, **settings):
    """`count` one-token responses of a model with fixed logits."""
    generator = HFGenerator(tiny.fixed(logits), tokenizer, Sampling(1, **settings), batch_size=1024)
    return generator.generate([[0]], [[seed_for(0, 0, k) for k in range(count)]])[0]


def test_probe_temperature(tiny, tokenizer):
    responses = draws(tiny, tokenizer, [2.0, 1.0, 0.0], 200, temperature=0.5)
    stored = {r.token_ids[0]: r.behavior_logprobs[0] for r in responses}
    assert stored[1] == pytest.approx(-2.1429, abs=5e-5)


def test_probe_top_k(tiny, tokenizer):
    responses = draws(tiny, tokenizer, [2.0, 1.0, 0.0], 400, top_k=2)
    stored = {r.token_ids[0]: r.behavior_logprobs[0] for r in responses}
    assert stored[1] == pytest.approx(-1.3133, abs=5e-5)
    assert set(stored) == {0, 1}


@pytest.mark.parametrize(
    ("settings", "kept"), [({"top_p": 0.6}, {0}), ({"min_p": 0.3}, {0, 1}), ({"top_k": 1}, {0})]
)
def test_truncation_keeps_and_renormalizes(tiny, tokenizer, settings, kept):
    responses = draws(tiny, tokenizer, [2.0, 1.0, 0.0], 300, **settings)
    assert {r.token_ids[0] for r in responses} == kept
    stored = {r.token_ids[0]: r.behavior_logprobs[0] for r in responses}
    total = sum(map(math.exp, stored.values()))
    assert total == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("temperature", [1.0, 0.6, 1.3])
def test_frequencies_are_those_of_the_distribution(tiny, tokenizer, temperature):
    logits = torch.tensor([0.3, 0.0, -0.4, 0.2])
    count = 6000
    responses = draws(tiny, tokenizer, logits.tolist(), count, temperature=temperature)
    seen = Counter(r.token_ids[0] for r in responses)
    expected = (logits / temperature).softmax(-1) * count
    chi_square = sum((seen[i] - float(e)) ** 2 / float(e) for i, e in enumerate(expected))
    # 99.9 % quantile of chi-square with 3 degrees of freedom; the seeds are fixed, so no flakes.
    assert chi_square < 16.27


def test_successive_tokens_of_a_response_are_independent_draws(tiny, tokenizer):
    generator = HFGenerator(tiny.fixed([0.0] * 4), tokenizer, Sampling(2), batch_size=1024)
    pairs = Counter(
        r.token_ids
        for r in generator.generate([[0]], [[seed_for(1, 0, k) for k in range(4000)]])[0]
    )
    chi_square = sum((pairs[a, b] - 250) ** 2 / 250 for a in range(4) for b in range(4))
    assert chi_square < 37.70  # 99.9 %, 15 degrees of freedom


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.3])
@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_stored_logprobs_equal_an_independent_forward(
    tiny, tokenizer, forward_logprobs, architecture, temperature
):
    model = getattr(tiny, architecture)()
    sampling = Sampling(12, temperature=temperature, stop_token_ids=(2,))
    generator = HFGenerator(model, tokenizer, sampling, batch_size=5)
    for prompt, group in zip(PROMPTS, generator.generate(PROMPTS, SEEDS), strict=True):
        for response in group:
            expected = forward_logprobs(model, prompt, response.token_ids, temperature)
            got = torch.tensor(response.behavior_logprobs)
            torch.testing.assert_close(got.double(), expected, atol=LOGPROB_TOLERANCE, rtol=0)


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_a_response_does_not_depend_on_its_batch(tiny, tokenizer, architecture):
    model = getattr(tiny, architecture)()
    sampling = Sampling(10, stop_token_ids=(2,))
    together = HFGenerator(model, tokenizer, sampling, batch_size=64).generate(PROMPTS, SEEDS)
    alone = HFGenerator(model, tokenizer, sampling, batch_size=1)
    reversed_order = HFGenerator(model, tokenizer, sampling, batch_size=3).generate(
        PROMPTS[::-1], SEEDS[::-1]
    )[::-1]
    for i, prompt in enumerate(PROMPTS):
        single = alone.generate([prompt], [SEEDS[i][::-1]])[0][::-1]
        for one, two, three in zip(together[i], single, reversed_order[i], strict=True):
            assert one.token_ids == two.token_ids == three.token_ids
            assert one.behavior_logprobs == pytest.approx(
                two.behavior_logprobs, abs=LOGPROB_TOLERANCE
            )


def test_batches_that_do_not_fit_are_halved(tiny, tokenizer, capsys):
    class Small(type(tiny.llama())):
        """Has memory for three responses."""

        def forward(self, *args, **kwargs):
            if len(kwargs["input_ids"]) > 3:
                raise torch.OutOfMemoryError("CUDA out of memory.")
            return super().forward(*args, **kwargs)

    model = tiny.llama()
    roomy = HFGenerator(model, tokenizer, Sampling(8), batch_size=3).generate(PROMPTS, SEEDS)
    model.__class__ = Small
    generator = HFGenerator(model, tokenizer, Sampling(8), batch_size=7)
    assert [[r.token_ids for r in group] for group in generator.generate(PROMPTS, SEEDS)] == [
        [r.token_ids for r in group] for group in roomy
    ]
    assert generator.batch_size == 3
    said = "out of memory with 7 responses at once; going on with 3\n"
    assert capsys.readouterr().out == said


def test_seeds_decide(tiny, tokenizer):
    generator = HFGenerator(tiny.llama(), tokenizer, Sampling(10))
    responses = generator.generate([PROMPTS[0]], [[3, 3, 4, 3 + 2**32]])[0]
    assert [r.seed for r in responses] == [3, 3, 4, 3 + 2**32]
    assert responses[0].token_ids == responses[1].token_ids
    # Seeds that agree in their low 32 bits are different seeds.
    assert len({r.token_ids for r in responses}) == 3


def test_ragged_numbers_of_seeds(tiny, tokenizer):
    generator = HFGenerator(tiny.llama(), tokenizer, Sampling(3))
    groups = generator.generate(PROMPTS[:3], [[1], [], [2, 3]])
    assert [[r.seed for r in group] for group in groups] == [[1], [], [2, 3]]
    assert generator.generate([], []) == []


def test_the_models_generation_config_has_no_say(tiny, tokenizer):
    model = tiny.llama()
    sampling = Sampling(12, stop_token_ids=(2,))
    neutral = HFGenerator(model, tokenizer, sampling).generate(PROMPTS, SEEDS)
    hostile = GenerationConfig(
        do_sample=True,
        temperature=0.1,
        top_p=0.33,
        top_k=20,
        repetition_penalty=1.2,
        no_repeat_ngram_size=1,
        min_new_tokens=11,
        suppress_tokens=list(range(3, 20)),
        begin_suppress_tokens=[30],
        bad_words_ids=[[9]],
        forced_eos_token_id=2,
        sequence_bias=[[[21], 9.0]],
        exponential_decay_length_penalty=(1, 2.0),
        eos_token_id=[5, 6, 7],
        num_return_sequences=1,
        max_length=3,
    )
    model.generation_config = hostile
    assert HFGenerator(model, tokenizer, sampling).generate(PROMPTS, SEEDS) == neutral
    assert model.generation_config is hostile


def test_flat_prompt_is_not_sharpened_by_the_model_file(tiny, tokenizer):
    model = tiny.fixed([0.0] * 4)
    model.generation_config = GenerationConfig(temperature=0.1, top_p=0.33, repetition_penalty=1.2)
    responses = HFGenerator(model, tokenizer, Sampling(4)).generate([[0]], [list(range(32))])[0]
    assert all(
        logprob == pytest.approx(math.log(1 / 4), abs=1e-6)
        for response in responses
        for logprob in response.behavior_logprobs
    )
    assert len({response.token_ids for response in responses}) > 20


def test_eos_is_kept_with_its_logprob_and_ends_the_response(tiny, tokenizer):
    model = tiny.fixed([0.0, -9.0, 0.0, -9.0])  # pad 0 and eos 2, half each
    sampling = Sampling(3, stop_token_ids=(2,))
    responses = HFGenerator(model, tokenizer, sampling).generate([[3]], [list(range(60))])[0]
    reasons = Counter(r.finish_reason for r in responses)
    assert reasons["stop"] > 40
    assert reasons["length"] >= 1
    for response in responses:
        assert len(response.token_ids) == len(response.behavior_logprobs)
        assert 2 not in response.token_ids[:-1]
        if response.finish_reason == "stop":
            assert response.token_ids[-1] == 2
            assert response.behavior_logprobs[-1] == pytest.approx(math.log(0.5), abs=1e-3)
        else:
            assert len(response.token_ids) == 3
            assert response.token_ids[-1] != 2


def test_pad_equal_to_eos_changes_nothing(tiny, tokenizer, forward_logprobs):
    model = tiny.llama()
    sampling = Sampling(12, stop_token_ids=(2, 9, 17))
    prompts = [[1, 2, 7], [1, 30], [1, *range(10, 24)]]  # id 2 as a turn marker in a prompt
    seeds = [[1, 2, 3, 4]] * 3
    apart = HFGenerator(model, tokenizer, sampling, pad_token_id=0).generate(prompts, seeds)
    same = HFGenerator(model, tokenizer, sampling, pad_token_id=2).generate(prompts, seeds)
    assert apart == same
    stopped = [r for group in same for r in group if r.finish_reason == "stop"]
    assert {r.token_ids[-1] for r in stopped} <= {2, 9, 17}
    assert len({r.token_ids[-1] for r in stopped}) > 1
    for group, prompt in zip(same, prompts, strict=True):
        for response in group:
            torch.testing.assert_close(
                torch.tensor(response.behavior_logprobs).double(),
                forward_logprobs(model, prompt, response.token_ids),
                atol=LOGPROB_TOLERANCE,
                rtol=0,
            )


def test_text_has_no_special_tokens(tiny, tokenizer):
    model = tiny.fixed([-9.0, -9.0, 2.0, *[-9.0] * 4, 2.0, 2.0])  # eos, "a", "b"
    sampling = Sampling(5, stop_token_ids=(2,))
    responses = HFGenerator(model, tokenizer, sampling).generate([[1]], [list(range(20))])[0]
    for response in responses:
        letters = [{7: "a", 8: "b"}[t] for t in response.token_ids if t != 2]
        assert response.text.replace(" ", "") == "".join(letters)


def test_modes_cache_flag_and_global_random_state_are_as_found(tiny, tokenizer):
    model = tiny.gpt2(dropout=0.5)
    model.train()
    model.transformer.h[0].eval()
    model.config.use_cache = False
    modes = [module.training for module in model.modules()]
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    generator = HFGenerator(model, tokenizer, Sampling(5))
    first = generator.generate(PROMPTS, SEEDS)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert [module.training for module in model.modules()] == modes
    assert model.config.use_cache is False
    assert generator.generate(PROMPTS, SEEDS) == first  # dropout was off


def test_the_model_is_as_found_after_an_error(tiny, tokenizer):
    model = tiny.fixed([0.0, float("nan"), 0.0])
    model.train()
    config = model.generation_config
    with pytest.raises(DataError, match=r"prompt 0: token 0 of a response .* log-prob nan"):
        HFGenerator(model, tokenizer, Sampling(2)).generate([[0]], [[1]])
    assert model.training
    assert model.generation_config is config


@pytest.mark.parametrize("bad", [[float("inf"), 0.0, 0.0], [-float("inf")] * 3])
def test_logits_that_give_no_distribution_are_refused(tiny, tokenizer, bad):
    generator = HFGenerator(tiny.fixed(bad), tokenizer, Sampling(2))
    with pytest.raises(DataError, match="prompt 1: token 0"):
        generator.generate([[0], [0]], [[], [1]])


def test_an_impossible_token_is_never_drawn():
    logprobs = torch.tensor([[-math.inf, math.log(0.5), -math.inf, math.log(0.5), -math.inf]])
    edges = [0.0, 0.5 - 2**-54, 0.5, 1 - 2**-53]
    tokens = [int(inverse_cdf(logprobs, torch.tensor([u], dtype=torch.float64))) for u in edges]
    assert tokens == [1, 1, 3, 3]


def test_lengths_that_do_not_fit_are_refused(tiny, tokenizer):
    generator = HFGenerator(tiny.llama(), tokenizer, Sampling(100))
    with pytest.raises(IncompatibleError, match=r"prompt 1 has 29 tokens .* only 128 positions"):
        generator.generate([[1], [1] * 29], [[0], [0]])
    assert len(generator.generate([[1] * 28], [[0]])[0][0].token_ids) == 100
    with pytest.raises(DataError, match="prompt 0 is empty"):
        generator.generate([[]], [[0]])
    with pytest.raises(ConfigError, match="2 prompts but 1 lists of seeds"):
        generator.generate([[1], [1]], [[0]])
    with pytest.raises(ConfigError, match="batch_size is 0"):
        HFGenerator(tiny.llama(), tokenizer, Sampling(1), batch_size=0)


def test_load_by_name(folder):
    generator = load(
        "hf", name_or_path=str(folder), sampling=Sampling(3), device="cpu", batch_size=3
    )
    direct = HFGenerator(load_model(folder, device="cpu"), load_tokenizer(folder), Sampling(3))
    assert generator.generate([[1]], [[1, 2, 3]]) == direct.generate([[1]], [[1, 2, 3]])


def test_a_prompt_is_computed_once_for_all_its_responses(tiny, tokenizer):
    model, forwarded = tiny.llama(), []
    model.get_input_embeddings().register_forward_hook(
        lambda module, given, result: forwarded.append(given[0].numel())
    )
    prompt, answers = [1, *range(10, 40)], 8
    generator = HFGenerator(model, tokenizer, Sampling(3), batch_size=64)
    seeds = [[seed_for(0, i, k) for k in range(answers)] for i in range(2)]
    generator.generate([prompt, [*prompt[:-1], 7]], seeds)
    # Two prompts without their last tokens, then one token of 16 responses three times.
    assert sum(forwarded) == 2 * 30 + 3 * 2 * answers
