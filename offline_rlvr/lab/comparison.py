"""Every objective under every behavior: the distance to the Gibbs policy along the flow."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from offline_rlvr.lab.bench import Bench
from offline_rlvr.objectives import load, names, parameters

#: The setting of Proximal KL that its theorem is about.
FULL_TAIL = {"horizon": None, "cost_bound": None, "advantage": "leave_one_out"}
#: Curves keep this many points, evenly spaced in log time.
POINTS = 120


@dataclass(frozen=True)
class Curve:
    """One objective under one behavior.

    Attributes:
        objective: Its name and what differs from its defaults.
        optimum: What it declares (`objectives.interface.Optimum`).
        behavior: A key of `Bench.behaviors`.
        times: Flow time: steps times their length.
        distances: Total variation to the Gibbs policy at those times, in [0, 1].
        kl: KL(learner || Gibbs policy) at the end, nats.
        success: Probability of a right response at the end.
        at_gibbs: Largest entry of the expected update at the Gibbs policy itself; 0: it stays.
    """

    objective: str
    optimum: str
    behavior: str
    times: list[float]
    distances: list[float]
    kl: float
    success: float
    at_gibbs: float


def compare(bench: Bench, steps: int) -> Iterator[Curve]:
    """All curves, by objective, then behavior.

    Args:
        bench: The arrangement.
        steps: Flow steps of length 1.
    """
    for label, name, params in cases(bench.beta):
        for behavior in bench.behaviors:
            yield _curve(bench, label, name, params, behavior, steps)


def cases(beta: float) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(label, objective, parameters): the defaults, where there is a temperature at `beta`."""
    for name in names():
        known = parameters(name)
        # The coefficient of GRPO's penalty is its temperature.
        yield name, name, {key: beta for key in ("beta", "kl_coef") if key in known}
        if name == "proximal_kl":
            yield f"{name}, full tail", name, {"beta": beta, **FULL_TAIL}


def _curve(
    bench: Bench, label: str, name: str, params: dict[str, Any], behavior: str, steps: int
) -> Curve:
    objective, setting, tree = load(name, **params), bench.setting(behavior), bench.tree
    wanted = {round(steps ** (i / (POINTS - 1))) for i in range(POINTS)} | {0}
    times, distances, logits = [], [], bench.reference
    flow = setting.flow(objective, bench.reference)
    for step, logits in enumerate(islice(flow, steps + 1)):
        if step in wanted:
            times.append(float(step))
            distances.append(tree.total_variation(logits, bench.target))
    return Curve(
        label,
        objective.optimum,
        behavior,
        times,
        distances,
        tree.kl(logits, bench.target),
        tree.success(logits),
        float(setting.update(objective, bench.target).abs().max()),
    )
