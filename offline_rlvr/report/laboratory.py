"""The laboratory's page: two tables, one figure, and all numbers as JSON."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import groupby
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullLocator

from offline_rlvr.durable import make_folder, write_file
from offline_rlvr.lab import Bench, Curve, Statement, Tradeoff
from offline_rlvr.report import style

#: What the figure shows; a curve that leaves it at the bottom has found the Gibbs policy.
SHOWN = (1e-4, 1.3)
#: Curves that find the Gibbs policy are thick, and lie on each other where they agree.
THICK = ((style.BLUE, "-"), (style.VERMILLION, "--"), (style.GREEN, "-."))
THIN = [(color, dash) for dash in ("-", "--") for color in style.CYCLE]


@dataclass(frozen=True)
class Results:
    """What one run of the laboratory found."""

    bench: Bench
    steps: int
    curves: Sequence[Curve]
    statements: Sequence[Statement]
    tradeoffs: Sequence[Tradeoff]


def write_laboratory(results: Results, folder: Path) -> str:
    """Write `lab.json`, `lab.png`, `lab.svg` and `lab.md` into a folder.

    Args:
        results: What was found.
        folder: Made where it is not there; files of an earlier run are replaced.

    Returns:
        The text of `lab.md`.

    Raises:
        ResourceError: The folder cannot be written.
    """
    make_folder(folder)
    bench = results.bench
    facts = {
        "beta": bench.beta,
        "group_size": bench.size,
        "seed": bench.seed,
        "steps": results.steps,
        "distance": "total variation to the Gibbs policy over complete responses",
        "curves": [asdict(curve) for curve in results.curves],
        "statements": [{**asdict(s), "holds": s.holds} for s in results.statements],
        "tradeoffs": [asdict(row) for row in results.tradeoffs],
    }
    text = "\n\n".join([_distances(results), _statements(results), _tradeoffs(results)]) + "\n"
    write_file(folder / "lab.json", (json.dumps(facts, indent=1) + "\n").encode(), replace=True)
    write_file(folder / "lab.md", text.encode(), replace=True)
    draws: dict[str, style.Draw] = {
        f"{behavior} behavior" if behavior != "on policy" else behavior: partial(
            _draw, curves=[curve for curve in results.curves if curve.behavior == behavior]
        )
        for behavior in bench.behaviors
    }
    style.picture(draws, folder / "lab.png", folder / "lab.svg", legend=True)
    return text


def _draw(ax: Axes, curves: Sequence[Curve]) -> None:
    """Distance over flow time, both logarithmic."""
    thick, thin = iter(THICK), iter(THIN)
    for curve in curves:
        finds = curve.optimum == "gibbs"
        color, dash = next(thick if finds else thin)
        width, alpha = (2.8, 1.0) if finds else (1.3, 0.8)
        line = {"color": color, "linestyle": dash, "linewidth": width, "alpha": alpha}
        ax.plot(curve.times[1:], curve.distances[1:], label=curve.objective, **line)
    plain = FuncFormatter(lambda value, _: f"{value:g}")
    for axis, set_scale in ((ax.xaxis, ax.set_xscale), (ax.yaxis, ax.set_yscale)):
        set_scale("log")
        axis.set_major_formatter(plain)
        axis.set_minor_locator(NullLocator())
    ax.set_ylim(*SHOWN)
    ax.set_xlabel("flow time")
    if ax.get_subplotspec().is_first_col():  # type: ignore[union-attr]
        ax.set_ylabel("total variation to Gibbs")


def _distances(results: Results) -> str:
    bench = results.bench
    tree, behaviors = bench.tree, list(bench.behaviors)
    start = tree.total_variation(bench.reference, bench.target)
    lines = [
        f"Total variation to the Gibbs policy (beta {bench.beta:g}) after flow time "
        f"{results.steps}; {start:.3f} at the start. {tree.vocabulary} tokens, "
        f"{tree.mask.shape[1]} steps, {len(tree.mask)} responses, groups of {bench.size}.",
        "",
        _row(["objective", *behaviors, "update at the Gibbs policy, off policy", "declares"]),
        _row(["---", *["---:"] * len(behaviors), "---:", "---"]),
    ]
    for label, group in groupby(results.curves, key=lambda curve: curve.objective):
        curves = list(group)
        ends = [f"{curve.distances[-1]:.1e}" for curve in curves]
        moved = max(curve.at_gibbs for curve in curves if curve.behavior != "on policy")
        lines.append(_row([label, *ends, f"{moved:.1e}", curves[0].optimum]))
    return "\n".join(lines)


def _statements(results: Results) -> str:
    lines = [
        _row(["of", "statement", "predicted", "measured", "holds"]),
        _row(["---", "---", "---:", "---:", "---"]),
    ]
    for s in results.statements:
        relation = "" if s.relation == "=" else f"{s.relation} "
        measured = f"{s.measured:.4g}"
        lines.append(
            _row([s.about, s.text, f"{relation}{s.predicted:.4g}", measured, _yes(s.holds)])
        )
    return "\n".join(lines)


def _tradeoffs(results: Results) -> str:
    lines = [
        "Proximal KL off policy (stale): what a short horizon or a cost bound moves and calms.",
        "",
        _row(["horizon", "cost bound", "bias of the fixed point", "coefficient variance"]),
        _row(["---:"] * 4),
    ]
    for row in results.tradeoffs:
        horizon = "full tail" if row.horizon is None else f"{row.horizon}"
        bound = "none" if row.cost_bound is None else f"{row.cost_bound:g}"
        lines.append(_row([horizon, bound, f"{row.bias:.1e}", f"{row.variance:.3f}"]))
    return "\n".join(lines)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _yes(holds: bool) -> str:
    return "yes" if holds else "NO"
