"""One OpenAI-compatible server: JSON over HTTP, tried again where that changes no result."""

import http.client
import json
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from typing import Any

from offline_rlvr.errors import ConfigError, DataError, IncompatibleError, ResourceError

#: Replies that come from a server that is starting, full or broken, not from the request.
_PASSING = {429, 500, 502, 503, 504}


@dataclass(frozen=True)
class Endpoint:
    """Where and how to ask.

    A request that ran into `timeout_s` is not sent again: the long responses would be those that
    are drawn again until they are short.

    Attributes:
        url: Of the server, without `/v1`.
        api_key: Sent as a bearer token, or None.
        timeout_s: Seconds without a byte after which a request is given up.
        retries: Further attempts after a refused connection or a passing error; the first after one
            second, each next after twice as long.
        start: What to type to have such a server, for messages.
    """

    url: str
    api_key: str | None = field(default=None, repr=False)
    timeout_s: float = 3600.0
    retries: int = 5
    start: str = "vllm serve MODEL"

    def ask(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """The reply to a POST of `body`, or to a GET without one.

        Raises:
            ConfigError: The server does not accept the key.
            DataError: The reply is not a JSON object.
            IncompatibleError: The server refuses the request; its own words are in the message.
            ResourceError: It cannot be reached, is broken or too slow.
        """
        delay = 1.0
        for attempts_left in range(self.retries, -1, -1):
            try:
                return self._once(path, body)
            except urllib.error.HTTPError as error:
                with error:
                    if error.code not in _PASSING:
                        raise self._refusal(path, error) from error
                reason: Exception = error
            except (OSError, http.client.HTTPException) as error:
                reason = getattr(error, "reason", error)
                if isinstance(reason, TimeoutError):
                    raise ResourceError(
                        f"{self.url} did not answer within {self.timeout_s:g} s",
                        hint="raise generation.timeout_s, or lower generation.concurrency",
                    ) from error
            if attempts_left:
                time.sleep(delay)
                delay *= 2
        raise ResourceError(
            f"{self.url}{path} cannot be had after {self.retries + 1} attempts: {reason}",
            hint=f"start the server with `{self.start}`, then type the same command again",
        )

    def answers(self) -> bool:
        """Whether it takes connections and does not call itself broken; a busy one does."""
        try:
            with urllib.request.urlopen(self.url + "/health", timeout=self.timeout_s):
                return True
        except urllib.error.HTTPError as error:
            with error:
                return error.code < 500
        except (OSError, http.client.HTTPException) as error:
            return isinstance(getattr(error, "reason", error), TimeoutError)

    def _once(self, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        headers = {"Content-Type": "application/json"}
        if self.api_key is not None:
            headers["Authorization"] = f"Bearer {self.api_key}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers)
        with urllib.request.urlopen(request, timeout=self.timeout_s) as reply:
            text = reply.read()
        try:
            content = json.loads(text)
        except ValueError as error:
            raise DataError(f"{self.url}{path} did not answer with JSON: {text[:200]!r}") from error
        if not isinstance(content, dict):
            raise DataError(f"{self.url}{path} did not answer with an object: {text[:200]!r}")
        return content

    def _refusal(self, path: str, error: urllib.error.HTTPError) -> Exception:
        words = error.read()[:500].decode("utf-8", "replace")
        if error.code in (401, 403):
            return ConfigError(
                f"{self.url} does not accept the API key (HTTP {error.code})",
                hint="name the variable that holds it: generation.api_key_env: VLLM_API_KEY",
            )
        return IncompatibleError(
            f"{self.url}{path} refuses the request (HTTP {error.code}): {words}",
            hint=f"start the server with `{self.start}`",
        )
