"""Every metric key once: what it is, its unit, how to draw it, and which way is worrying. No torch.

The metrics of update u are measured on its groups before its step, so they describe the policy
after u - 1 updates; an evaluation at u describes the policy after u.

`describe("drift/abs_log_ratio/right")` finds the entry of a key with its split; `probe/*` keys take
the definition of the `drift/*` (or `weights/ess_update`) key they repeat on groups that are never
trained on. Those groups are an unfiltered sample, so each such metric estimates what it is on every
response that the behavior could give, and `probe/*_se` is its standard error.
"""

import difflib
from dataclasses import dataclass, replace
from typing import Literal

from offline_rlvr.diagnostics.bins import BINS
from offline_rlvr.errors import ConfigError

Scale = Literal["linear", "log"]
#: What a rise means: `worse`, `better`, or `neither` (to be read, not judged).
Rise = Literal["worse", "better", "neither"]

#: Suffixes of a metric that is also given over right and over wrong responses alone.
SPLITS = ("/right", "/wrong")


@dataclass(frozen=True)
class Metric:
    """One metric.

    Attributes:
        key: `area/name`.
        definition: In one sentence, with its direction where it estimates a divergence.
        unit: What the number counts, "" for a share.
        scale: How to draw it.
        rise: What a rise means.
        split: Whether `key/right` and `key/wrong` exist as well.
    """

    key: str
    definition: str
    unit: str = ""
    scale: Scale = "linear"
    rise: Rise = "neither"
    split: bool = False


_LAMBDA = "lambda = policy minus behavior log-prob of a response token"

_ENTRIES = (
    Metric(
        "drift/abs_log_ratio",
        f"token mean of |lambda|, {_LAMBDA}: the drift",
        "nats",
        "log",
        "worse",
        True,
    ),
    Metric(
        "drift/k3_behavior_policy",
        "token mean of exp(lambda) - lambda - 1; estimates KL(behavior || policy)",
        "nats",
        "log",
        "worse",
        True,
    ),
    Metric(
        "drift/k1_behavior_policy",
        "token mean of -lambda; estimates KL(behavior || policy), may be negative",
        "nats",
        "linear",
        "worse",
        True,
    ),
    Metric(
        "drift/fraction_above_0.1",
        "share of tokens with |lambda| > 0.1",
        "",
        "linear",
        "worse",
        True,
    ),
    Metric(
        "drift/fraction_saturated",
        "share of tokens with lambda > 600, left out of k3 because float64 cannot add them up",
        "",
        "linear",
        "worse",
        True,
    ),
    Metric(
        "drift/noise_floor",
        "drift/abs_log_ratio of the untouched policy on update 1: engine mismatch alone",
        "nats",
        "log",
        "neither",
    ),
    Metric(
        "weights/ess",
        "(sum w)^2 / (B sum w^2), w = exp(sum lambda), B responses of the last 8 updates",
        "",
        "log",
        "better",
        True,
    ),
    Metric(
        "weights/ess_update",
        "(sum w)^2 / (B sum w^2), w = exp(sum lambda), over the B responses of one update",
        "",
        "log",
        "better",
        True,
    ),
    Metric(
        "reference/k3",
        "token mean of exp(d) - d - 1, d = policy minus active reference log-prob",
        "nats",
        "log",
        "neither",
        True,
    ),
    Metric(
        "reference/fraction_saturated",
        "share of tokens with d > 600, left out of reference/k3",
        "",
        "linear",
        "worse",
        True,
    ),
    Metric(
        "reference/log_ratio_nats",
        "mean over responses of log policy minus log reference of the whole response",
        "nats",
        "linear",
        "neither",
        True,
    ),
    Metric(
        "gibbs/ess_q",
        "mean over groups of 1 / sum q^2 in [1, m], q = softmax(r / beta - s + s_ref)",
        "responses",
        "linear",
        "better",
    ),
    Metric(
        "gibbs/ess_q_median",
        "median over groups of 1 / sum q^2 in [1, m], q = softmax(r / beta - s + s_ref)",
        "responses",
        "linear",
        "better",
    ),
    Metric(
        "gibbs/ess_success",
        "1 / (k sum q^2) in [1/k, 1], q within the k right ones; mean over groups k >= 2",
        "",
        "linear",
        "better",
    ),
    Metric(
        "gibbs/loss",
        "mean over groups of the raw gap J = beta log mean exp(R / beta) - mean R",
        "reward",
        "log",
        "worse",
    ),
    Metric(
        "gibbs/negative_correct_fraction",
        "share of right responses whose GGPO coefficient (m q - 1) / sqrt(m - 1) is negative",
    ),
    Metric(
        "policy/entropy",
        "token mean of the policy's entropy; on logging updates only, without gradient",
        "nats",
        "linear",
        "neither",
        True,
    ),
    Metric(
        "train/grad_norm",
        "norm of the gradient before clipping; comparable within one objective only",
        "",
        "log",
        "neither",
    ),
    Metric(
        "train/loss",
        "the objective's loss over the whole update; comparable within one objective only",
    ),
    Metric("train/learning_rate", "learning rate of the update", "", "linear", "neither"),
    Metric("train/micro_batch_tokens", "token budget of a forward pass", "", "linear", "neither"),
    Metric(
        "time/update_s",
        "time since the update before, evaluations and checkpoints included",
        "seconds",
        "linear",
        "neither",
    ),
    Metric(
        "objective/coefficient_abs",
        "token mean of |c|, c = -N dL/dp: what the objective multiplies a token's score with",
        "",
        "log",
        "neither",
    ),
    Metric(
        "objective/negative_correct_fraction",
        "share of right responses whose mean coefficient in the objective at hand is negative",
    ),
    Metric("objective/clip_fraction", "share of tokens at which the objective's clip holds"),
    Metric(
        "objective/cost_saturated",
        "share of tokens whose log-ratio to the reference exceeds the cost bound",
    ),
    Metric("objective/horizon", "tokens of future KL cost, where they adapt", "tokens"),
    Metric(
        "objective/coefficient_variance",
        "mean over groups of the variance of c over a group's tokens (Proximal KL)",
        "",
        "log",
    ),
    Metric(
        "objective/coefficient_variance_2h",
        "objective/coefficient_variance as it would be at twice the horizon",
        "",
        "log",
    ),
    Metric(
        "objective/ratio_saturated",
        "share of tokens whose importance ratio was held at e^30",
        "",
        "linear",
        "worse",
    ),
    Metric(
        "objective/kl_penalty",
        "token mean of the K3 penalty to the reference, before its coefficient",
        "nats",
        "log",
        "neither",
    ),
    Metric(
        "objective/tis_capped", "share of tokens whose truncated importance weight is at its cap"
    ),
    Metric("objective/negative_weight", "mean weight of the negative examples (TOPR)"),
    *(Metric(key, definition, "nats", "log", "worse") for key, definition in BINS.items()),
)

#: Key -> entry, without splits and without `probe/*`.
CATALOGUE: dict[str, Metric] = {entry.key: entry for entry in _ENTRIES}

#: `probe/*` key -> the key it repeats on the untrained, unfiltered slice.
PROBE_OF: dict[str, str] = {
    "probe/abs_log_ratio": "drift/abs_log_ratio",
    "probe/k3_behavior_policy": "drift/k3_behavior_policy",
    "probe/k1_behavior_policy": "drift/k1_behavior_policy",
    "probe/fraction_above_0.1": "drift/fraction_above_0.1",
    "probe/fraction_saturated": "drift/fraction_saturated",
    "probe/ess": "weights/ess_update",
}

#: Suffix of the standard error of a `probe/*` key.
STANDARD_ERROR = "_se"


def describe(key: str) -> Metric:
    """The entry of a key, its split, `probe/` and `_se` included.

    Raises:
        ConfigError: No such metric.
    """
    if (probe := key.removesuffix(STANDARD_ERROR)) != key and probe in PROBE_OF:
        entry, definition = CATALOGUE[PROBE_OF[probe]], f"standard error of {probe}, over groups"
        return replace(entry, key=key, definition=definition, rise="neither", split=False)
    base, split = key, ""
    for suffix in SPLITS:
        if key.endswith(suffix):
            base, split = key.removesuffix(suffix), suffix
    entry = CATALOGUE.get(PROBE_OF.get(base, base))
    if entry is None or (split and not entry.split):
        raise ConfigError(
            f"there is no metric {key!r}; there are: {', '.join(CATALOGUE)}, probe/*",
            hint=_nearest(key),
        )
    where = " on unfiltered groups that are never trained on" if base in PROBE_OF else ""
    only = f" ({split[1:]} responses only)" if split else ""
    return replace(entry, key=key, definition=entry.definition + where + only, split=False)


def _nearest(key: str) -> str | None:
    bare = [*CATALOGUE, *PROBE_OF]
    split = [f"{k}{s}" for k in bare for s in SPLITS if CATALOGUE[PROBE_OF.get(k, k)].split]
    close = difflib.get_close_matches(key, [*bare, *split], n=3)
    return f"did you mean {' or '.join(close)}?" if close else None
