"""The pictures with their words: which curve, under which title, and how to read it."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from offline_rlvr.evaluation import Evaluation
from offline_rlvr.report import curves, style
from offline_rlvr.report.definitions import definitions_of
from offline_rlvr.report.record import RunRecord, read_run
from offline_rlvr.report.style import Figured
from offline_rlvr.report.verdict import compare, number, percent


class Panel(NamedTuple):
    """A figure that is shown when its metric was measured."""

    key: str
    title: str
    reading: str
    draw: style.Draw


def readme_figure(run_dir: Path, path: Path) -> None:
    """Accuracy, drift and ESS of a run side by side, as a PNG.

    Args:
        run_dir: The run's folder.
        path: The PNG to write.

    Raises:
        DataError: Not a run folder, or a damaged file in it.
    """
    run = read_run(run_dir)
    draws: dict[str, style.Draw] = {
        "Held-out accuracy": partial(curves.draw_accuracy, run=run),
        "Drift (nats per token)": partial(curves.draw_drift, run=run),
        "Effective sample size": partial(curves.draw_ess, run=run),
    }
    style.picture(draws, path)


def accuracy_figures(run: RunRecord) -> list[Figured]:
    """Accuracy over updates; pass@k over k, before and after."""
    figures = []
    if run.evaluations:
        ends = "; ".join(
            f"{name}: {_mean_words(results[0])}, then {_mean_words(results[-1])}"
            for name, results in run.sets().items()
        )
        figures.append(
            Figured(
                style.panel(partial(curves.draw_accuracy, run=run)),
                "Held-out accuracy over training",
                f"Mean accuracy by update. {ends}",
                "Mean over problems of mean@k; the band is the 95 % interval over problems.",
            )
        )
    for comparison in compare(run):
        if comparison.before.n > 1 and comparison.after.n > 1:
            name = comparison.before.name
            figures.append(
                Figured(
                    style.panel(partial(curves.draw_pass, comparison=comparison)),
                    f"pass@k on {name}, before and after",
                    f"pass@k against k on {name}: the table below has the numbers.",
                    "Chance that one of k responses is right. A gap that closes with k: training "
                    "sharpened what the model could already do.",
                )
            )
    return figures


def drift_figures(run: RunRecord) -> list[Figured]:
    """Drift, K3, ESS, and the distance to the reference, as far as measured."""
    return _measured(
        run,
        [
            Panel(
                "drift/abs_log_ratio",
                "Drift, nats per token",
                "How far the policy has moved from the one that sampled the pool; at the noise "
                "floor it has not. Bands: 95 % of what other probe groups would have shown.",
                partial(curves.draw_drift, run=run),
            ),
            Panel(
                "drift/k3_behavior_policy",
                "K3, behavior to policy",
                "The same movement, large steps weighing more.",
                curves.lines(run, curves.K3, log=True),
            ),
            Panel(
                "weights/ess",
                "Effective sample size (ESS)",
                "Share of the responses that would still count after reweighting to the policy.",
                partial(curves.draw_ess, run=run),
            ),
            Panel(
                "drift/abs_log_ratio/right",
                "Drift by reward",
                "Whether right or wrong responses moved more.",
                curves.lines(run, curves.SPLIT, log=True),
            ),
            Panel(
                "reference/k3",
                "K3 to the active reference",
                "Starts again from 0 at each refresh of the reference.",
                curves.lines(run, curves.REFERENCE, log=True),
            ),
        ],
    )


def training_figures(run: RunRecord) -> list[Figured]:
    """Loss, gradient norm, entropy, concentration of the Gibbs weights."""

    def panel(key: str, title: str, reading: str, color: str, *, log: bool = False) -> Panel:
        return Panel(key, title, reading, curves.lines(run, [(key, title, color, "-")], log=log))

    return _measured(
        run,
        [
            panel("train/loss", "Loss", "", style.BLUE),
            panel("train/grad_norm", "Gradient norm", "", style.PURPLE, log=True),
            panel(
                "policy/entropy",
                "Entropy, nats per token",
                "Near 0 the policy has become certain of every token.",
                style.GREEN,
            ),
            panel(
                "gibbs/ess_q_median",
                "Responses carrying a group's weight",
                "At 1 a single response of each group decides the update.",
                style.RUST,
            ),
        ],
    )


def pool_figure(funnel: Mapping[str, Any]) -> Figured | None:
    """How many responses of a sampled group were right."""
    counts = funnel.get("correct_per_group")
    if not counts:
        return None
    words = ", ".join(f"{right} right: {groups:,}" for right, groups in enumerate(counts))
    return Figured(
        style.panel(partial(curves.draw_histogram, counts=counts)),
        "Right responses per sampled group",
        f"Number of groups by right responses. {words}",
        "Only mixed groups (not at either end) can teach anything; the ends are kept as evidence.",
    )


def _measured(run: RunRecord, panels: list[Panel]) -> list[Figured]:
    figures = []
    for panel in panels:
        series = run.series(panel.key)
        if not len(series):
            continue
        alt = f"{panel.title}: {number(float(series.values[0]))} at update {series.updates[0]}, "
        alt += f"{number(series.last)} at update {series.updates[-1]}"
        base = panel.key.removesuffix("/right")
        definition = definitions_of([base]).get(base, "")
        caption = f"{panel.reading} Definition: {definition}." if definition else panel.reading
        figures.append(Figured(style.panel(panel.draw), panel.title, alt, caption.strip()))
    return figures


def _mean_words(evaluation: Evaluation) -> str:
    summary = evaluation.summary()
    mean = summary[f"mean@{summary['responses_per_problem']}"]
    return f"{percent(mean['value'])} at update {summary['update']}"
