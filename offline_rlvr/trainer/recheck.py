"""Do a pool's stored log-probs come from the model that it names? Score some groups again."""

from dataclasses import dataclass

import numpy as np
import torch

from offline_rlvr.errors import ConfigError, DataError, IncompatibleError
from offline_rlvr.generation.pretrained import fingerprint
from offline_rlvr.policy import load_policy, micro_batches
from offline_rlvr.pool import Pool
from offline_rlvr.progress import Progress
from offline_rlvr.stream.data import collate
from offline_rlvr.trainer.mismatch import GROUPS, explain
from offline_rlvr.trainer.rescore import TOKEN_BUDGET


@dataclass(frozen=True)
class Noise:
    """|stored - recomputed| log-prob per response token, nats.

    Attributes:
        groups: Groups that were scored again.
        tokens: Their response tokens.
        mean: Over all these tokens.
        largest: Of one token, in group `group_of_largest`.
        group_of_largest: A group id.
        worst_mean: The largest mean over one group's tokens, that of `worst_group`.
        worst_group: A group id.
    """

    groups: int
    tokens: int
    mean: float
    largest: float
    group_of_largest: int
    worst_mean: float
    worst_group: int


def recheck(pool: Pool, groups: int, max_noise: float, device: str = "auto") -> Noise:
    """Score `groups` groups, evenly spread over the pool, with the model that built it.

    Args:
        pool: The opened pool.
        groups: At least 1; more than there are means all.
        max_noise: Most nats per token, on average, that any one group may differ by: above it the
            stored log-probs are those of another policy, not of another kernel or dtype.
        device: Where to score.

    Raises:
        IncompatibleError: A group above `max_noise`, or a model whose weights, tokenizer or
            template are no longer those that built the pool, or a pool whose sampling was
            truncated.
        ConfigError: Impossible settings.
        DataError: An empty pool.
    """
    if groups < 1 or not max_noise > 0:
        raise ConfigError(f"{groups} groups with a limit of {max_noise}; both must be above 0")
    if not len(pool):
        raise DataError(f"{pool.path} has no groups")
    model, sampling = pool.identity["model"], pool.identity["sampling"]
    _refuse_incomparable(pool)
    policy = load_policy(
        model["name_or_path"],
        revision=model["revision"],
        dtype=model["dtype"],
        device=device,
        temperature=sampling["temperature"],
    ).eval()
    at = np.unique(np.linspace(0, len(pool) - 1, min(groups, len(pool))).round().astype(int))
    index = pool.index
    pieces = micro_batches(
        index.prompt_lengths[at].tolist(), index.response_lengths[at].tolist(), TOKEN_BUDGET
    )
    found: list[tuple[int, np.ndarray]] = []
    with torch.no_grad(), Progress("scoring again", len(at), "groups") as progress:
        for piece in pieces:
            batch = collate(pool.read(index.group_ids[at[piece]]))
            scores = policy.score(batch).logprobs.cpu()
            differences = (scores.double() - batch.behavior_logprobs.double()).abs()
            for row, group_id in enumerate(batch.group_ids.tolist()):
                found.append((group_id, differences[row][batch.response_mask[row]].numpy()))
            progress.update(len(found))
    noise = _summary(found)
    # "not <=" so that NaN is refused, too.
    if not noise.worst_mean <= max_noise:
        raise IncompatibleError(
            f"the stored log-probs of group {noise.worst_group} differ from those of "
            f"{model['name_or_path']!r} by {noise.worst_mean:.3g} nats per token (all "
            f"{noise.groups} groups: mean {noise.mean:.3g}, largest {noise.largest:.3g}); "
            f"at most {max_noise:g} is allowed. It looks like this: "
            f"{explain(policy, collate(pool.read(index.group_ids[at[:GROUPS]])), max_noise)}",
            hint="do not train on this pool with this model; if the noise is that of the sampler's "
            "dtype, raise --max-noise",
        )
    return noise


def _refuse_incomparable(pool: Pool) -> None:
    model, sampling = pool.identity["model"], pool.identity["sampling"]
    if sampling["top_p"] < 1 or sampling["top_k"] > 0 or sampling["min_p"] > 0:
        raise IncompatibleError(
            "the pool was sampled with top_p, top_k or min_p: its log-probs are renormalized over "
            "the tokens that were left, and scoring gives those of the whole distribution"
        )
    mine = fingerprint(model["name_or_path"], model["revision"])
    wrong = [part for part, value in model["fingerprint"].items() if value != mine.get(part)]
    if wrong:
        raise IncompatibleError(
            f"{model['name_or_path']!r} is not what built the pool; it differs in: "
            f"{', '.join(wrong)}",
            hint="put the model back that the pool names (`offline-rlvr pool stats`)",
        )


def _summary(found: list[tuple[int, np.ndarray]]) -> Noise:
    # argmax takes NaN for the largest, which is what is wanted here.
    largest = np.array([values.max() for _, values in found])
    means = np.array([values.mean() for _, values in found])
    everything = np.concatenate([values for _, values in found])
    return Noise(
        groups=len(found),
        tokens=len(everything),
        mean=float(everything.mean()),
        largest=float(largest.max()),
        group_of_largest=found[int(largest.argmax())][0],
        worst_mean=float(means.max()),
        worst_group=found[int(means.argmax())][0],
    )
