"""One model on one server: what it is asked, and the measurement that its log-probs are right."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from offline_rlvr.errors import ConfigError, IncompatibleError
from offline_rlvr.generation.endpoint import Endpoint
from offline_rlvr.generation.sampling import Sampling

#: What vLLM writes for -inf, which JSON has not.
JSON_MINUS_INFINITY = -9999.0
#: Tokens of the measurement, small enough for any server's --max-logprobs.
PROBE_TOKENS = 5
#: Nats by which the probabilities of a measurement may miss a sum of 1 (ties in bfloat16).
PROBE_TOLERANCE = 0.1


class Served:
    """A model on a server.

    Attributes:
        under_way: Prompts that it works on.
        max_model_len: Positions of a prompt with its response; infinity where it does not say.

    Raises:
        ConfigError: The server has several models, or not the one asked for.
        Further errors as `Endpoint.ask`.
    """

    def __init__(self, endpoint: Endpoint, model: str | None):
        self.endpoint = endpoint
        self.under_way = 0
        cards = {card["id"]: card for card in endpoint.ask("/v1/models").get("data") or []}
        if model not in cards if model is not None else len(cards) != 1:
            raise ConfigError(
                f"{endpoint.url} serves {', '.join(map(repr, cards)) or 'no model'}"
                + (f", and not {model!r}" if model is not None else ""),
                hint="set generation.model to the one to sample from",
            )
        self.name: str = model if model is not None else next(iter(cards))
        self.max_model_len: float = cards[self.name].get("max_model_len") or float("inf")

    def complete(
        self, prompt: Sequence[int], sampling: Sampling, n: int, logprobs: int = 0
    ) -> dict[str, Any]:
        """Ask for `n` responses; nothing is left to the server's defaults."""
        return self.endpoint.ask(
            "/v1/completions",
            {
                "model": self.name,
                "prompt": list(prompt),
                "n": n,
                "max_tokens": sampling.max_new_tokens,
                "min_tokens": 0,
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "top_k": sampling.top_k,  # 0 is off here too
                "min_p": sampling.min_p,
                "repetition_penalty": 1.0,
                "presence_penalty": 0.0,
                "frequency_penalty": 0.0,
                "stop": [],
                "bad_words": [],
                # Only these ids end a response, not what the server takes for the model's EOS.
                "stop_token_ids": list(sampling.stop_token_ids),
                "ignore_eos": True,
                "add_special_tokens": False,
                "echo": False,
                "stream": False,
                "logprobs": logprobs,
                "return_token_ids": True,
                "return_tokens_as_token_ids": True,
            },
        )

    def logprobs_of(self, choice: dict[str, Any]) -> dict[str, Any]:
        """The log-probs of a reply, or the error that there are none."""
        found = choice.get("logprobs") or {}
        if not found.get("token_logprobs") or not found.get("tokens"):
            raise self.not_usable("its replies hold no log-probs")
        return found

    def check_logprobs(self, prompt: Sequence[int], sampling: Sampling) -> None:
        """Measure whether log-probs are those of the distribution sampled from.

        The likeliest tokens are asked for at temperatures 1 and 2, cut to these tokens. In the
        distribution sampled from their probabilities sum to 1 and at 2 their log-probs lie half as
        far apart; before temperature and cut neither is so. That is the same distribution, and good
        enough, where temperature is 1 and nothing is cut.

        Raises:
            IncompatibleError: They are others.
        """
        one, two = (self._top(prompt, temperature) for temperature in (1.0, 2.0))
        tokens = sorted(one.keys() & two.keys())
        if not tokens:
            raise self.not_usable("its replies hold no log-probs of the likeliest tokens")
        at_one, at_two = (np.array([top[token] for token in tokens]) for top in (one, two))
        at_one_centered = at_one - at_one.mean()
        spread = float(at_one_centered @ at_one_centered)
        slope = float(at_one_centered @ at_two) / spread if spread > 1e-6 else float("nan")
        total = float(np.logaddexp.reduce(at_one))
        processed = slope < 0.75 and abs(total) < PROBE_TOLERANCE
        raw = slope >= 0.75 and total < PROBE_TOLERANCE
        plain = sampling.temperature == 1 and not sampling.truncated
        if not (processed or (raw and plain)):
            raise self.not_usable(
                "its log-probs are not those of the distribution that it samples from: from "
                f"temperature 1 to 2 the likeliest tokens' log-probs scale by {slope:.2f} instead "
                f"of 0.50, and their probabilities sum to {np.exp(total):.2f} instead of 1"
            )

    def _top(self, prompt: Sequence[int], temperature: float) -> dict[str, float]:
        probe = Sampling(1, temperature=temperature, top_k=PROBE_TOKENS)
        reply = self.complete(prompt, probe, n=1, logprobs=PROBE_TOKENS)
        top = self.logprobs_of((reply.get("choices") or [{}])[0]).get("top_logprobs") or [{}]
        return {token: value for token, value in top[0].items() if value > JSON_MINUS_INFINITY}

    def not_usable(self, reason: str) -> IncompatibleError:
        """The error that says how to start a server that is."""
        return IncompatibleError(
            f"the server {self.endpoint.url} cannot be sampled from: {reason}",
            hint=f"start it with `{self.endpoint.start}` (vLLM 0.10.2 or newer)",
        )
