"""Drift by where in a response a token stands, and by how likely its sampler found it. No torch."""

from itertools import pairwise

#: A response is cut into so many parts of equal length.
PARTS = 10
#: Ends of the classes of behavior probability; the sampler's own, of the token it drew.
PROBABILITIES = (0.0, 0.01, 0.1, 0.5, 0.9, 0.99, 1.0)

#: Metric of each part, first to last.
POSITION_KEYS = tuple(f"drift/position_{part:02}" for part in range(1, PARTS + 1))
#: Metric of each class, least to most likely.
PROBABILITY_KEYS = tuple(f"drift/probability_to_{high:g}" for high in PROBABILITIES[1:])

_POSITIONS = tuple(
    f"{100 * part // PARTS} to {100 * (part + 1) // PARTS} % into its response"
    for part in range(PARTS)
)
_CHANCES = tuple(
    f"a behavior probability above {low:g}, up to {high:g}" for low, high in pairwise(PROBABILITIES)
)
#: Key -> definition.
BINS: dict[str, str] = {
    **{
        key: f"drift/abs_log_ratio of the tokens {where}; on logging updates only"
        for key, where in zip(POSITION_KEYS, _POSITIONS, strict=True)
    },
    **{
        key: f"drift/abs_log_ratio of the tokens with {which}; on logging updates only"
        for key, which in zip(PROBABILITY_KEYS, _CHANCES, strict=True)
    },
}
