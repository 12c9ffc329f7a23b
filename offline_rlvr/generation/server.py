"""Sampling from vLLM servers, on this machine or others; several can feed one pool.

    generation:
      name: server
      url: http://localhost:8000    # or a list: each prompt goes to the one with the least to do
      model: null                   # served name; default: the one that the server has
      concurrency: 64               # prompts under way per server
      timeout_s: 3600               # without an answer; then the build stops, see `Endpoint`
      retries: 5                    # of refused connections and passing errors
      api_key_env: null             # environment variable that holds the API key

Start each server as

    vllm serve MODEL --dtype float32 --generation-config vllm --logprobs-mode processed_logprobs

with the model, revision and dtype of the config, and with a --seed of its own (on a CPU
`python -m vllm.entrypoints.openai.api_server --model MODEL ...`). Prompts go as token
ids, every sampling setting goes with every request, and a reply counts only with its token ids and
their log-probs. Before the first prompt each server is measured: it must hold prompt and response,
and give the log-probs of the distribution that it samples from. That its weights are those of
`model.name_or_path` no server can prove, and paths differ between machines: `pool verify --deep`
shows it, and training checks it before the first update. `model.device` has no meaning here.

Responses have no seed of their own (None): the server draws from one random stream.
"""

import os
from collections.abc import Sequence
from functools import partial
from multiprocessing.pool import AsyncResult, ThreadPool
from threading import Lock
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from offline_rlvr.errors import ConfigError, DataError, ResourceError
from offline_rlvr.generation import Answer, Pending
from offline_rlvr.generation.endpoint import Endpoint
from offline_rlvr.generation.pretrained import load_tokenizer
from offline_rlvr.generation.sampling import (
    Sampling,
    check_lengths,
    check_vllm_temperature,
    checked_response,
)
from offline_rlvr.generation.served import JSON_MINUS_INFINITY, Served
from offline_rlvr.records import Response

#: Seconds between looks at the servers while an answer is awaited ...
WATCH_S = 10.0
#: ... and how many in a row find one silent before it counts as lost.
SILENT_CHECKS = 3


class ServerGenerator:
    """Samples responses from servers that are measured at the first submission.

    Args:
        endpoints: The servers, at least one.
        tokenizer: Decodes responses to text.
        sampling: Settings of every response.
        model: Served name, or None for the only one.
        concurrency: Prompts under way per server.

    Raises:
        ConfigError: vLLM cannot sample at this temperature.
    """

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        tokenizer: PreTrainedTokenizerBase,
        sampling: Sampling,
        model: str | None = None,
        concurrency: int = 64,
    ):
        check_vllm_temperature(sampling)
        self.sampling = sampling
        self._endpoints = endpoints
        self._tokenizer = tokenizer
        self._model = model
        self._served: list[Served] = []
        self._threads = ThreadPool(concurrency * len(endpoints))
        self._lock = Lock()

    def submit(self, prompts: Sequence[Sequence[int]], seeds: Sequence[Sequence[int]]) -> Pending:
        """Send the prompts, as many at a time as `concurrency` allows.

        Errors as `Generator.submit`; a server of another kind is an IncompatibleError.
        """
        served = self._served or [Served(each, self._model) for each in self._endpoints]
        limit = min(server.max_model_len for server in served)
        check_lengths(prompts, seeds, self.sampling, limit, "the server")
        if not self._served and prompts:
            for server in served:
                server.check_logprobs(prompts[0], self.sampling)
            self._served = served
        results = [
            self._threads.apply_async(self._sample, (i, list(prompt), len(row)))
            for i, (prompt, row) in enumerate(zip(prompts, seeds, strict=True))
        ]
        return partial(self._answers, results)

    def close(self) -> None:
        """Drop the requests under way."""
        self._threads.terminate()

    def _answers(self, results: Sequence["AsyncResult[list[Response]]"]) -> list[Answer]:
        answers: list[Answer] = []
        silent = 0
        for result in results:
            while not result.ready():
                result.wait(WATCH_S)
                # A server that shuts down keeps the connections it has, and never answers them.
                lost = [
                    each for each in self._endpoints if not result.ready() and not each.answers()
                ]
                silent = silent + 1 if lost else 0
                if silent >= SILENT_CHECKS:
                    raise ResourceError(
                        f"{lost[0].url} no longer answers",
                        hint=f"start it with `{lost[0].start}`, then type the same command again",
                    )
            try:
                answers.append(result.get())
            except DataError as error:
                answers.append(error)
        return answers

    def _sample(self, i: int, prompt: list[int], n: int) -> list[Response]:
        if not n:
            return []
        # The server with the least to do: a fast one gets more prompts than a slow one.
        with self._lock:
            server = min(self._served, key=lambda each: each.under_way)
            server.under_way += 1
        try:
            reply = server.complete(prompt, self.sampling, n)
        finally:
            with self._lock:
                server.under_way -= 1
        choices = reply.get("choices") or []
        if len(choices) != n:
            raise DataError(f"prompt {i}: {len(choices)} of {n} responses came back")
        return [self._response(server, i, prompt, choice) for choice in choices]

    def _response(
        self, server: Served, i: int, prompt: list[int], choice: dict[str, Any]
    ) -> Response:
        ids, echoed = choice.get("token_ids"), choice.get("prompt_token_ids")
        if ids is None or echoed is None:
            raise server.not_usable("its replies hold no token ids (return_token_ids)")
        if echoed != prompt:
            raise server.not_usable(
                f"it sampled from other prompt ids than it was sent: {echoed[:20]} for "
                f"{prompt[:20]}"
            )
        logprobs = server.logprobs_of(choice)
        if logprobs["tokens"] != [f"token_id:{token}" for token in ids]:
            raise server.not_usable("its log-probs are not those of the tokens it drew")
        values = [
            -np.inf if value is not None and value <= JSON_MINUS_INFINITY else value
            for value in logprobs["token_logprobs"]
        ]
        text = str(self._tokenizer.decode(ids, skip_special_tokens=True))
        return checked_response(i, ids, values, text, self.sampling, None)


def load(
    name_or_path: str,
    sampling: Sampling,
    url: str | Sequence[str],
    revision: str | None = None,
    dtype: str = "float32",
    device: str = "auto",
    model: str | None = None,
    concurrency: int = 64,
    timeout_s: float = 3600.0,
    retries: int = 5,
    api_key_env: str | None = None,
) -> ServerGenerator:
    """The generator of this back-end, by config name `server`; the settings are those above.

    Raises:
        ConfigError: A setting cannot be used.
    """
    urls = [url] if isinstance(url, str) else list(url)
    for each in urls or [""]:
        if not each.startswith(("http://", "https://")):
            raise ConfigError(
                f"url is {each!r}; it must begin with http:// or https://",
                hint="set generation.url: http://localhost:8000",
            )
    if concurrency < 1:
        raise ConfigError(f"concurrency is {concurrency}; it must be at least 1")
    if api_key_env is not None and api_key_env not in os.environ:
        raise ConfigError(
            f"api_key_env names {api_key_env!r}, which is not set",
            hint=f"type `export {api_key_env}=...` first",
        )
    key = None if api_key_env is None else os.environ[api_key_env]
    at = "" if revision is None else f" --revision {revision}"
    start = (
        f"vllm serve {name_or_path}{at} --dtype {dtype} --generation-config vllm "
        "--logprobs-mode processed_logprobs"
    )
    endpoints = [
        Endpoint(each.rstrip("/").removesuffix("/v1"), key, timeout_s, retries, start)
        for each in urls
    ]
    tokenizer = load_tokenizer(name_or_path, revision)
    return ServerGenerator(endpoints, tokenizer, sampling, model, concurrency)
