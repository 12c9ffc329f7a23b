"""vLLM servers: a real one, and foreign ones that answer with what must not get into a pool."""

import importlib.util
import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
import torch

from offline_rlvr.errors import ConfigError, DataError, IncompatibleError, ResourceError
from offline_rlvr.generation import Sampling, load, responses_of
from offline_rlvr.generation import server as backend
from offline_rlvr.generation.pretrained import load_model, load_tokenizer
from offline_rlvr.generation.prompt import PromptFormat
from offline_rlvr.problems import load as load_problems

EOS = 2
#: As in test_vllm.py.
KERNEL_NOISE = 1e-4


# A real server.


@pytest.fixture(scope="module")
def served(biased_builtin, tmp_path_factory):
    """The address of `vllm serve`, with the built-in model under a generation config that bites."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    log = tmp_path_factory.mktemp("server") / "log"
    with open(log, "w") as output:
        server = subprocess.Popen(
            [
                # As `vllm serve`, which in the CPU package looks for the version of the other one.
                *[sys.executable, "-m", "vllm.entrypoints.openai.api_server"],
                *["--model", str(biased_builtin), "--served-model-name", "policy"],
                *["--host", "127.0.0.1", "--port", str(port), "--dtype", "float32"],
                *["--logprobs-mode", "processed_logprobs", "--enforce-eager"],
            ],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"},
        )
    try:
        for _ in range(300):
            time.sleep(1)
            assert server.poll() is None, log.read_text()[-3000:]
            try:
                urllib.request.urlopen(f"{url}/health", timeout=5).close()
                break
            except (urllib.error.URLError, OSError):
                continue
        yield url
    finally:
        server.terminate()
        try:
            server.wait(timeout=30)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


@pytest.mark.vllm
@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed")
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_a_real_server_gives_exact_logprobs(served, forward_logprobs, temperature):
    model, tokenizer = load_model("builtin", device="cpu"), load_tokenizer("builtin")
    problems = load_problems("arithmetic", count=8, seed=7, split="heldout")
    prompts = [PromptFormat().render(tokenizer, problem.question) for problem in problems]
    sampling = Sampling(11, temperature=temperature, stop_token_ids=(EOS,))
    generator = load("server", name_or_path="builtin", sampling=sampling, url=[served, served])
    try:
        first = generator.submit(prompts[:5], [[0] * 4] * 5)
        second = generator.submit(prompts[5:], [[0] * 2, [], [0]])
        groups = [*first(), *second()]
    finally:
        generator.close()
    assert [len(group) for group in groups] == [4, 4, 4, 4, 4, 2, 0, 1]
    assert {r.finish_reason for group in groups for r in group} == {"stop", "length"}
    for prompt, group in zip(prompts, groups, strict=True):
        for response in group:
            expected = forward_logprobs(model, prompt, response.token_ids, temperature)
            got = torch.tensor(response.behavior_logprobs).double()
            torch.testing.assert_close(got, expected, atol=KERNEL_NOISE, rtol=0)
            assert response.text == tokenizer.decode(response.token_ids, skip_special_tokens=True)


@pytest.mark.vllm
@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed")
def test_a_pool_from_a_real_server(served, command, small_job, tmp_path):
    pool = tmp_path / "pool"
    server = ("--generation.name", "server", "--generation.url", served)
    code, output = command(
        *("pool", "build", small_job, "-o", pool, *server, "--pool.mixed_groups", "12")
    )
    assert code == 0, output
    code, output = command("pool", "verify", pool, "--deep", "16")
    assert code == 0, output


# Foreign servers: `Foreign.choice` is what a right one answers, and each test spoils it.


class Foreign:
    """A server that draws from fixed logits; attributes and overridden methods make it go wrong."""

    LOGITS = np.array([2.0, 1.0, 0.0, -1.0, -2.0, -3.0, -4.0])
    mode = "processed"

    def __init__(self):
        self.requests = []
        self.statuses = []
        self.models = [{"id": "policy", "max_model_len": 64}]

    def answer(self, path, body):
        if path == "/v1/models":
            return {"data": self.models}
        if path == "/health":
            return {}
        self.requests.append(body)
        return {"choices": [self.spoil(self.choice(body)) for _ in range(body["n"])]}

    def logprobs(self, body):
        logits = self.LOGITS
        if self.mode != "raw":
            logits = logits / body["temperature"]
            if body["top_k"]:
                logits = np.where(np.arange(7) < body["top_k"], logits, -np.inf)
        if self.mode == "logits":
            return logits
        return logits - np.logaddexp.reduce(logits)

    def choice(self, body):
        values = np.maximum(self.logprobs(body), -9999.0)
        ids = [3] * (body["max_tokens"] - 1) + [2 if 2 in body["stop_token_ids"] else 1]
        top = np.argsort(-values)[: body["logprobs"]]
        return {
            "token_ids": ids,
            "prompt_token_ids": body["prompt"],
            "logprobs": {
                "tokens": [f"token_id:{i}" for i in ids],
                "token_logprobs": [float(values[i]) for i in ids],
                "top_logprobs": [{f"token_id:{i}": float(values[i]) for i in top} for _ in ids],
            },
        }

    def spoil(self, choice):
        return choice


@pytest.fixture
def serve():
    """Starts a foreign server; returns its address."""
    running = []

    def start(foreign):
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                self.reply(None)

            def do_POST(self):
                self.reply(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

            def reply(self, body):
                foreign.headers = self.headers
                status = foreign.statuses.pop(0) if foreign.statuses else 200
                content = foreign.answer(self.path, body) if status == 200 else {"error": "no"}
                text = content if isinstance(content, bytes) else json.dumps(content).encode()
                self.send_response(status)
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *args):
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        running.append(server)
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in running:
        server.shutdown()
        server.server_close()


@pytest.fixture
def ask(serve):
    """Has a foreign server sample two responses to each of two prompts."""
    generators = []

    def run(foreign, sampling=None, prompts=((5, 6), (7, 8)), **settings):
        sampling = sampling or Sampling(4, stop_token_ids=(2,))
        generator = load(
            "server", name_or_path="builtin", sampling=sampling, url=serve(foreign), **settings
        )
        generators.append(generator)
        return responses_of(generator.submit(prompts, [[0, 0]] * len(prompts))())

    yield run
    for generator in generators:
        generator.close()


def test_a_right_reply_and_a_full_request(ask):
    foreign = Foreign()
    groups = ask(foreign)
    assert [[r.token_ids for r in group] for group in groups] == [[(3, 3, 3, 2)] * 2] * 2
    assert groups[0][0].behavior_logprobs[0] == pytest.approx(
        foreign.logprobs({"temperature": 1, "top_k": 0})[3]
    )
    body = foreign.requests[-1]
    expected = {
        "model": "policy",
        "n": 2,
        "max_tokens": 4,
        "min_tokens": 0,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "stop": [],
        "bad_words": [],
        "stop_token_ids": [2],
        "ignore_eos": True,
        "add_special_tokens": False,
        "echo": False,
        "stream": False,
        "logprobs": 0,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
    }
    assert {key: value for key, value in body.items() if key != "prompt"} == expected
    assert sorted(r["prompt"] for r in foreign.requests[2:]) == [[5, 6], [7, 8]]


def without(*keys):
    return lambda choice: {key: value for key, value in choice.items() if key not in keys}


def with_logprobs(**changes):
    return lambda choice: {**choice, "logprobs": {**choice["logprobs"], **changes}}


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (without("logprobs"), "hold no log-probs"),
        (lambda choice: {**choice, "logprobs": None}, "hold no log-probs"),
        (without("token_ids"), "no token ids"),
        (without("prompt_token_ids"), "no token ids"),
        (lambda choice: {**choice, "prompt_token_ids": [1, 5, 6]}, "other prompt ids"),
        (with_logprobs(tokens=["a", "b", "c", "d"]), "not those of the tokens it drew"),
        (with_logprobs(top_logprobs=None), "of the likeliest tokens"),
    ],
)
def test_a_reply_that_proves_nothing_is_refused_with_what_to_type(ask, spoil, message):
    foreign = Foreign()
    foreign.spoil = spoil
    with pytest.raises(IncompatibleError, match=message) as caught:
        ask(foreign)
    assert "vllm serve builtin --dtype float32" in str(caught.value)
    assert "--logprobs-mode processed_logprobs" in str(caught.value)


@pytest.mark.parametrize("value", [-9999.0, None, 0.5])
def test_a_logprob_that_is_none_is_refused(ask, value):
    foreign = Foreign()
    foreign.spoil = with_logprobs(token_logprobs=[-1.0, -1.0, value, -1.0])
    with pytest.raises(DataError, match=r"prompt 0: token 2 of a response \(id 3\) has log-prob"):
        ask(foreign)


@pytest.mark.parametrize(
    ("mode", "sampling", "accepted"),
    [
        ("processed", Sampling(4), True),
        ("processed", Sampling(4, temperature=0.6), True),
        ("processed", Sampling(4, top_k=5), True),
        ("raw", Sampling(4), True),  # the same distribution
        ("raw", Sampling(4, temperature=0.6), False),
        ("raw", Sampling(4, top_k=5), False),
        ("logits", Sampling(4), False),
        ("logits", Sampling(4, temperature=0.6), False),
    ],
)
def test_the_kind_of_logprobs_is_measured(ask, mode, sampling, accepted):
    foreign = Foreign()
    foreign.mode = mode
    if accepted:
        assert len(ask(foreign, sampling)) == 2
    else:
        with pytest.raises(IncompatibleError, match="not those of the distribution"):
            ask(foreign, sampling)


def test_too_few_responses(ask):
    class Few(Foreign):
        def answer(self, path, body):
            content = super().answer(path, body)
            return {"choices": content["choices"][:1]} if body else content

    with pytest.raises(DataError, match="prompt 0: 1 of 2 responses"):
        ask(Few())


def test_a_response_that_ends_elsewhere(ask):
    foreign = Foreign()
    foreign.spoil = lambda choice: {
        **choice,
        "token_ids": choice["token_ids"][:2],
        "logprobs": {
            **choice["logprobs"],
            "tokens": choice["logprobs"]["tokens"][:2],
            "token_logprobs": choice["logprobs"]["token_logprobs"][:2],
        },
    }
    with pytest.raises(DataError, match="a response of 2 tokens should have 4"):
        ask(foreign)


def test_what_does_not_fit_the_server(ask):
    with pytest.raises(IncompatibleError, match=r"prompt 0 has 61 tokens .* only 64 positions"):
        ask(Foreign(), prompts=[[5] * 61])


def test_which_model(ask):
    foreign = Foreign()
    foreign.models.append({"id": "other"})
    with pytest.raises(ConfigError, match="serves 'policy', 'other'") as caught:
        ask(foreign)
    assert "generation.model" in str(caught.value)
    ask(foreign, model="other")
    assert {request["model"] for request in foreign.requests} == {"other"}
    with pytest.raises(ConfigError, match="and not 'third'"):
        ask(foreign, model="third")


def test_passing_errors_are_tried_again(ask, monkeypatch):
    waits = []
    monkeypatch.setattr(time, "sleep", waits.append)
    foreign = Foreign()
    foreign.statuses = [503, 500, 200]
    assert len(ask(foreign, retries=2)) == 2
    assert waits == [1.0, 2.0]
    foreign.statuses = [503, 503, 503]
    with pytest.raises(ResourceError, match=r"after 3 attempts.*503") as caught:
        ask(foreign, retries=2)
    assert "vllm serve builtin" in str(caught.value)


def test_nobody_there():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    generator = load("server", name_or_path="builtin", sampling=Sampling(4), url=url, retries=0)
    with pytest.raises(ResourceError, match="cannot be had after 1 attempts") as caught:
        generator.submit([[5]], [[0]])
    assert "vllm serve builtin" in str(caught.value)
    generator.close()


def test_a_slow_answer_is_not_asked_for_again(ask):
    class Slow(Foreign):
        def choice(self, body):
            if body["n"] == 2:
                time.sleep(1.5)
            return super().choice(body)

    foreign = Slow()
    with pytest.raises(ResourceError, match=r"did not answer within 0.5 s") as caught:
        ask(foreign, timeout_s=0.5)
    assert "generation.timeout_s" in str(caught.value)
    time.sleep(1.5)
    assert [request["n"] for request in foreign.requests] == [1, 1, 2, 2]


def test_a_server_that_went_away_is_not_waited_for(ask, monkeypatch):
    """It keeps the connection that it has, as a server does that shuts down politely."""

    class Leaving(Foreign):
        gone = threading.Event()

        def answer(self, path, body):
            if path == "/health" or (body and body["n"] == 2):
                self.gone.wait(0.0 if body is None else 20.0)
                raise ConnectionAbortedError
            return super().answer(path, body)

    monkeypatch.setattr(backend, "WATCH_S", 0.05)
    foreign = Leaving()
    with pytest.raises(ResourceError, match="no longer answers") as caught:
        ask(foreign)
    assert "vllm serve builtin" in str(caught.value)
    foreign.gone.set()


def test_a_busy_server_is_waited_for_and_the_idle_one_gets_more(serve, monkeypatch):
    class Slow(Foreign):
        def choice(self, body):
            time.sleep(0.2 if body["n"] == 2 else 0.0)
            return super().choice(body)

    monkeypatch.setattr(backend, "WATCH_S", 0.05)
    slow, fast = Slow(), Foreign()
    generator = load(
        "server",
        name_or_path="builtin",
        sampling=Sampling(4),
        url=[serve(slow), serve(fast)],
        concurrency=1,
    )
    answers = responses_of(generator.submit([[5, 6]] * 12, [[0, 0]] * 12)())
    assert [len(answer) for answer in answers] == [2] * 12
    counts = [sum(r["n"] == 2 for r in foreign.requests) for foreign in (slow, fast)]
    assert counts[1] > counts[0] > 0
    generator.close()


def test_a_refusal_is_passed_on(ask):
    foreign = Foreign()
    foreign.statuses = [404]
    with pytest.raises(IncompatibleError, match=r"refuses the request \(HTTP 404\)"):
        ask(foreign)


def test_a_page_instead_of_json(ask):
    class Page(Foreign):
        def answer(self, path, body):
            return b"<html>"

    with pytest.raises(DataError, match="did not answer with JSON: b'<html>'"):
        ask(Page())


def test_the_key_is_sent_and_never_shown(ask, monkeypatch):
    monkeypatch.setenv("SOME_KEY", "sesame")
    foreign = Foreign()
    ask(foreign, api_key_env="SOME_KEY")
    assert foreign.headers["Authorization"] == "Bearer sesame"
    foreign.statuses = [401]
    with pytest.raises(ConfigError, match="does not accept the API key") as caught:
        ask(foreign, api_key_env="SOME_KEY")
    assert "sesame" not in str(caught.value)
    with pytest.raises(ConfigError, match=r"OTHER_KEY.*not set"):
        ask(foreign, api_key_env="OTHER_KEY")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"url": "localhost:8000"}, "must begin with http"),
        ({"url": []}, "must begin with http"),
        ({"url": "http://x", "concurrency": 0}, "concurrency is 0"),
    ],
)
def test_settings_that_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        load("server", name_or_path="builtin", sampling=Sampling(4), **settings)
