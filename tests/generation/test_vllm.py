"""vLLM's engine: the log-probs are exact, and nothing but the config decides what is sampled."""

import importlib.util
import math
import os
import signal
import threading
from collections import Counter

import psutil
import pytest
import torch

from offline_rlvr.errors import ConfigError, DataError, IncompatibleError, ResourceError
from offline_rlvr.generation import Sampling, load, seed_for
from offline_rlvr.generation.hf import HFGenerator
from offline_rlvr.generation.pretrained import BUILTIN_FOLDER, load_model, load_tokenizer
from offline_rlvr.generation.prompt import PromptFormat
from offline_rlvr.generation.vllm import VLLMGenerator, logprobs_of
from offline_rlvr.problems import load as load_problems

needs_vllm = [
    pytest.mark.vllm,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed"),
    # vLLM's imports, not ours
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning"),
]


def marked(test):
    for mark in needs_vllm:
        test = mark(test)
    return test


#: Stored log-probs against a plain float32 forward of transformers, in nats. At most 2.1e-5 was
#: measured over 46,000 tokens, at temperatures 0.6 to 1.3 (root mean square 4e-7).
KERNEL_NOISE = 1e-4
EOS = 2
#: Standard errors within which two means must agree: by chance they do not once in 15,000 times.
SIGMAS = 4


@pytest.fixture(scope="module")
def policy():
    """The built-in model and its tokenizer, in transformers."""
    return load_model("builtin", device="cpu"), load_tokenizer("builtin")


@pytest.fixture(scope="module")
def problems():
    return load_problems("arithmetic", count=60, seed=7, split="heldout")


@pytest.fixture(scope="module")
def prompts(policy, problems):
    return [PromptFormat().render(policy[1], problem.question) for problem in problems]


@pytest.fixture(scope="module")
def generator(biased_builtin):
    """One engine for all tests of this file, on a folder whose generation config is not neutral."""
    sampling = Sampling(24, stop_token_ids=(EOS,))
    generator = load("vllm", name_or_path=str(biased_builtin), sampling=sampling, dtype="float32")
    yield generator
    generator.close()


@pytest.fixture
def sample(generator):
    """Samples with other settings from the same engine, `k` responses for each prompt."""

    def run(prompts, k, **settings):
        generator.sampling = Sampling(**{"max_new_tokens": 24, **settings})
        return generator.submit(prompts, [[0] * k] * len(prompts))()

    return run


def check_logprobs(forward_logprobs, policy, prompts, groups, **settings):
    """Every stored log-prob equals the plain forward's."""
    for prompt, group in zip(prompts, groups, strict=True):
        for response in group:
            expected = forward_logprobs(policy[0], prompt, response.token_ids, **settings)
            got = torch.tensor(response.behavior_logprobs).double()
            torch.testing.assert_close(got, expected, atol=KERNEL_NOISE, rtol=0)


@marked
@pytest.mark.parametrize("temperature", [1.0, 0.6, 1.3])
def test_logprobs_are_those_of_a_plain_forward(
    sample, forward_logprobs, policy, prompts, temperature
):
    groups = sample(prompts[:20], 8, temperature=temperature, stop_token_ids=(EOS,))
    check_logprobs(forward_logprobs, policy, prompts[:20], groups, temperature=temperature)


@marked
def test_truncated_logprobs_are_renormalized(sample, forward_logprobs, policy, prompts):
    groups = sample(prompts[:20], 8, temperature=0.8, top_k=3, stop_token_ids=(EOS,))
    check_logprobs(forward_logprobs, policy, prompts[:20], groups, temperature=0.8, top_k=3)


@marked
@pytest.mark.parametrize("temperature", [1.0, 0.6, 1.3])
def test_tokens_are_drawn_as_often_as_their_logprobs_say(sample, policy, prompts, temperature):
    prompt, count = prompts[0], 4000
    drawn = Counter(
        response.token_ids[0]
        for response in sample([prompt], count, max_new_tokens=1, temperature=temperature)[0]
    )
    with torch.no_grad():
        logits = policy[0](input_ids=torch.tensor([prompt])).logits[0, -1].double()
    expected = (logits / temperature).softmax(-1) * count
    often = [token for token in range(len(expected)) if expected[token] >= 5]
    cells = [(drawn[token], float(expected[token])) for token in often]
    cells.append((count - sum(n for n, _ in cells), count - sum(e for _, e in cells)))
    chi_square = sum((n - e) ** 2 / max(e, 5.0) for n, e in cells)
    # Mean and variance of chi-square are df and 2 df.
    assert chi_square < len(often) + SIGMAS * math.sqrt(2 * len(often))


@marked
def test_vllm_and_hf_are_the_same_policy(sample, policy, problems, prompts):
    model, tokenizer = policy
    k = 16
    sampling = Sampling(24, stop_token_ids=(EOS,))
    seeds = [[seed_for(3, i, j) for j in range(k)] for i in range(len(prompts))]
    ours = HFGenerator(model, tokenizer, sampling, batch_size=480).generate(prompts, seeds)
    theirs = sample(prompts, k, stop_token_ids=(EOS,))

    def statistics(problem, group):
        """Means over a group: right answers, log-prob of a response, its length."""
        right = [response.text == rf"\boxed{{{problem.answer}}}" for response in group]
        sums = [sum(response.behavior_logprobs) for response in group]
        lengths = [len(response.token_ids) for response in group]
        return torch.tensor([right, sums, lengths], dtype=torch.float64).mean(1)

    # One difference per problem, so that how hard problems are cancels. With 960 responses each,
    # four standard errors are about 0.07 in accuracy.
    differences = torch.stack(
        [
            statistics(problem, a) - statistics(problem, b)
            for problem, a, b in zip(problems, ours, theirs, strict=True)
        ]
    )
    error = differences.std(0) / math.sqrt(len(problems))
    assert (differences.mean(0).abs() < SIGMAS * error).all(), (differences.mean(0), error)
    assert error[0] < 0.025


@marked
def test_eos_is_kept_with_its_logprob_and_a_cut_response_has_none(sample, prompts):
    responses = [
        r for group in sample(prompts, 4, max_new_tokens=11, stop_token_ids=(EOS,)) for r in group
    ]
    assert {r.finish_reason for r in responses} == {"stop", "length"}
    for response in responses:
        assert len(response.token_ids) == len(response.behavior_logprobs)
        assert EOS not in response.token_ids[:-1]
        assert (response.token_ids[-1] == EOS) == (response.finish_reason == "stop")
        assert response.seed is None


@marked
def test_only_the_given_ids_end_a_response(sample, policy, prompts):
    digits = tuple(policy[1].convert_tokens_to_ids(list("0123")))
    for response in sample(prompts[:8], 4, stop_token_ids=digits)[0]:
        assert response.finish_reason == "stop"
        assert response.token_ids[-1] in digits
    endless = [r for group in sample(prompts[:8], 4) for r in group]
    assert {len(r.token_ids) for r in endless} == {24}
    assert any(EOS in r.token_ids[:-1] for r in endless)


@marked
def test_text_is_what_our_tokenizer_reads(sample, policy, prompts):
    for response in sample(prompts[:4], 4, stop_token_ids=(EOS,))[0]:
        decoded = policy[1].decode(list(response.token_ids), skip_special_tokens=True)
        assert response.text == decoded
        assert "<|" not in response.text


@marked
def test_two_submissions_under_way_get_their_own_responses(
    generator, forward_logprobs, policy, prompts
):
    generator.sampling = Sampling(24, stop_token_ids=(EOS,))
    first = generator.submit(prompts[:6], [[0] * 5, [0], [], [0] * 2, [0], [0]])
    second = generator.submit(prompts[6:9], [[0] * 3] * 3)
    later, earlier = second(), first()
    assert [len(group) for group in earlier] == [5, 1, 0, 2, 1, 1]
    assert [len(group) for group in later] == [3, 3, 3]
    check_logprobs(forward_logprobs, policy, prompts[:6], earlier)
    check_logprobs(forward_logprobs, policy, prompts[6:9], later)


@marked
def test_what_does_not_fit_is_refused_before_sampling(generator):
    generator.sampling = Sampling(24)
    with pytest.raises(IncompatibleError, match=r"500 tokens .* 24, but the engine has only 512"):
        generator.submit([[5], [5] * 500], [[0], [0]])
    with pytest.raises(DataError, match="prompt 0 is empty"):
        generator.submit([[]], [[0]])
    with pytest.raises(ConfigError, match="2 prompts but 1 lists of seeds"):
        generator.submit([[5], [5]], [[0]])


@marked
def test_a_logprob_belongs_to_its_id_not_to_its_place():
    from vllm.logprobs import FlatLogprobs

    found = FlatLogprobs()
    found.append_fast([7, 3], [-0.1, -2.0], [1, 2], [None, None])
    found.append_fast([5], [-0.5], [1], [None])
    assert logprobs_of([3, 5], found) == [-2.0, -0.5]
    assert logprobs_of([3, 6], found) == [-2.0, None]
    assert logprobs_of([3, 5, 9], found) == [-2.0, -0.5], "one too few is for the caller to refuse"
    assert logprobs_of([3], None) == [None]


# The last test with the engine of this file: it does not survive.
@marked
def test_a_killed_engine_is_an_error_and_leaves_no_process(generator, prompts):
    generator.sampling = Sampling(400)
    waiting = generator.submit(prompts, [[0] * 64] * len(prompts))
    engine = [p for p in psutil.Process().children(recursive=True) if "EngineCore" in p.name()]
    family = [*engine, *(child for each in engine for child in each.children(recursive=True))]
    assert len(family) >= 2
    threading.Timer(1, lambda: os.kill(engine[0].pid, signal.SIGKILL)).start()
    with pytest.raises(ResourceError, match="engine died") as caught:
        waiting()
    assert "type the same command again" in str(caught.value)
    assert not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in family)
    with pytest.raises(ResourceError, match="the engine was closed"):
        generator.submit(prompts[:1], [[0]])


def make(**settings):
    return load("vllm", name_or_path="builtin", sampling=Sampling(4), **settings)


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed")
def test_without_vllm_it_says_how_to_install_it():
    with pytest.raises(ResourceError, match="not installed") as caught:
        make()
    assert "offline-rlvr[vllm]" in str(caught.value)
    assert "scripts/install_vllm_cpu" in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "message", "hint"),
    [
        ({"data_parallel_size": 2}, "one copy of the model per process", "--slice"),
        ({"engine": {"seed": 1}}, "engine.seed cannot be set", "pool.seed"),
        ({"engine": {"dtype": "half"}}, "engine.dtype cannot be set", "model.dtype"),
        ({"engine": {"logprobs_mode": "raw_logprobs"}}, "own distribution", "leave it out"),
        ({"engine": {"generation_config": "auto"}}, "own distribution", "leave it out"),
        ({"engine": {"quantization": "fp8"}}, "own distribution", "leave it out"),
        ({"engine": {"trust_remote_code": True}}, "trust_remote_code", "leave it out"),
        ({"device": "cuda:1"}, "takes auto, cpu or cuda", "CUDA_VISIBLE_DEVICES"),
    ],
)
def test_settings_that_are_refused(settings, message, hint):
    with pytest.raises(ConfigError, match=message) as caught:
        make(**settings)
    assert hint in str(caught.value)


@pytest.mark.parametrize(
    ("sampling", "settings", "message"),
    [
        (Sampling(4, temperature=2.5), {}, "temperature is 2.5; vLLM samples at 0.01 to 2.0"),
        (Sampling(4, temperature=0.001), {}, "temperature is 0.001"),
        (Sampling(4), {"seed_per_response": True}, "CPU engine cannot"),
    ],
)
def test_sampling_that_vllm_cannot_do(policy, sampling, settings, message):
    with pytest.raises(ConfigError, match=message):
        VLLMGenerator(BUILTIN_FOLDER, policy[1], sampling, {}, "cpu", **settings)


@marked
def test_an_unknown_engine_argument_is_named_before_anything_starts(prompts):
    generator = make(engine={"max_num_seq": 8})
    with pytest.raises(ConfigError, match="no engine argument 'max_num_seq'") as caught:
        generator.submit(prompts[:1], [[0]])
    assert "did you mean 'max_num_seqs'" in str(caught.value)


@marked
def test_an_engine_for_another_device_is_refused():
    with pytest.raises(ResourceError, match="'cuda', but the vLLM installed here is built for cpu"):
        make(device="cuda")


@marked
def test_an_engine_that_cannot_be_is_refused(prompts):
    generator = make(max_model_len=100_000)
    with pytest.raises(ConfigError, match="vLLM does not take these settings"):
        generator.submit(prompts[:1], [[0]])
