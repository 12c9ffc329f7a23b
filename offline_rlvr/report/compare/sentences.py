"""The page in plain sentences: who won, how sure that is, how far each drifted."""

import math

from offline_rlvr.evaluation import mean_at_k, pass_at_k_of
from offline_rlvr.report.compare.standings import Field, known_mean, table
from offline_rlvr.report.record import ESS_WINDOW
from offline_rlvr.report.verdict import direction, ends, number, percent, points

#: So many methods are each named in a sentence.
FEW = 4
#: From so many pairs on, one or more is expected to look different by chance.
MANY = 20


def verdict(field: Field) -> tuple[bool, str]:
    """Whether one method beats all others, and the sentence that says by how much."""
    best, *others = field.standings
    name = best.method.name
    reached = (
        f"{field.mean_name} {percent(best.mean.value)}, "
        f"{points(best.gain.value, sign=True)} points {ends(best.gain)} from the base model"
    )
    if not others:
        return False, f"{name} is the only method: {reached}."
    own = [pair for pair in field.pairs() if name in (pair.first, pair.second)]
    equal = [pair for pair in own if direction(pair.difference) != "rise"]
    if not equal:
        nearest = own[0]
        return True, (
            f"{name} won ({reached}): it beats every other method, the next best, "
            f"{nearest.second}, by {points(nearest.difference.value)} points "
            f"{ends(nearest.difference)}."
        )
    names = ", ".join(p.second if p.first == name else p.first for p in equal)
    beaten = len(own) - len(equal)
    rest = f"; it beats the {beaten} other{'s' if beaten > 1 else ''}" if beaten else ""
    return False, (
        f"No single winner. {name} is highest ({reached}), but no difference is shown to "
        f"{names}{rest}."
    )


def how_sure(field: Field) -> str:
    """What the intervals cover."""
    problems = field.standings[0].mean.problems
    seeds = len(field.seeds)
    asked = " + ".join(f"{name}" for name in field.sets)
    over = f"{problems:,} problems of {asked}, {field.n} answers each"
    without = _left_out(field)
    if seeds == 1:
        return (
            f"Intervals are at 95 % over {over}. There is one seed: they say nothing about what "
            f"training once more would give.{without}"
        )
    pairs = math.comb(len(field.methods), 2)
    chance = ""
    if pairs >= MANY:
        lucky = f"about {0.05 * pairs:.0f}"
        chance = f" Each holds by itself: of {pairs} pairs, {lucky} may look different by chance."
    few = " Two seeds say little about a third." if seeds == 2 else ""
    return (
        f"Intervals are at 95 % over {over}, and over {seeds} seeds of training."
        f"{few}{chance}{without}"
    )


def _left_out(field: Field) -> str:
    """Which runs do not count."""
    more = [
        f"{method.name} seed {', '.join(map(str, method.left_out))}"
        for method in field.methods
        if method.left_out
    ]
    return f" Left out, since not every method has that seed: {'; '.join(more)}." if more else ""


def drifted(field: Field) -> str:
    """How far the methods had moved by the end: each of a few, or the first, least and most."""
    known = [s for s in field.standings if s.drift is not None]
    if not known:
        return "Drift was not measured."
    ordered = sorted(known, key=lambda s: s.drift or 0.0)
    named = ordered if len(ordered) <= FEW else [known[0], ordered[0], ordered[-1]]
    words = [""] * len(named) if len(ordered) <= FEW else ["", "least: ", "most: "]
    each = "; ".join(
        f"{word}{s.method.name} {number(s.drift)} (ESS {number(s.ess)})"
        for word, s in zip(words, named, strict=True)
    )
    floor = field.methods[0].last("drift/noise_floor")
    beside = f" (noise floor {number(floor)})" if floor is not None else ""
    rest = "" if len(named) == len(known) else "; the others in the table"
    return (
        f"Drift from the behavior policy, nats per token over the last {ESS_WINDOW} updates"
        f"{beside}: {each}{rest}." + _ended_early(field)
    )


def _ended_early(field: Field) -> str:
    """Which runs had fewer updates than the others."""
    early = [
        f"{method.name} after update {update} (seed {seed})"
        for method in field.methods
        for seed, update in method.ended.items()
    ]
    return f" Ended early by train.stop_when: {', '.join(early)}." if early else ""


def best_of(field: Field, name: str) -> dict[str, int | None]:
    """Method -> the least k with which the base's best of k matches one trained answer; None: more
    answers than there are.
    """
    base = dict(enumerate(field.base(name)))
    ks = range(1, field.sets[name] + 1)
    reach = [known_mean(table(base, lambda e, k=k: pass_at_k_of(e.rewards, k))) for k in ks]
    found: dict[str, int | None] = {}
    for standing in field.standings:
        evaluations = standing.method.evaluations(name)
        mean = known_mean(table(evaluations, lambda e: mean_at_k(e.rewards)))
        found[standing.method.name] = next((k for k, p in enumerate(reach, 1) if p >= mean), None)
    return found


def single_answer(field: Field, name: str) -> str:
    """Whether one trained answer beats the base model's best of k, for the furthest method."""
    best, most = max(best_of(field, name).items(), key=lambda item: item[1] or math.inf)
    n = field.sets[name]
    if most is None:
        return f"On {name} a single answer of {best} beats the base model's best of {n}."
    if most == 1:
        return f"On {name} no method's single answer beats a single one of the base model."
    return (
        f"On {name} a single answer of {best} beats the base model's best of {most - 1}, "
        f"but not its best of {most}."
    )
