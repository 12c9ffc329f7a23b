"""One self-contained HTML page from a run folder: no script, no external file, nothing fetched."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from offline_rlvr.durable import write_file
from offline_rlvr.report import figures, tables
from offline_rlvr.report.definitions import definitions_of
from offline_rlvr.report.examples import choose
from offline_rlvr.report.inert import inert
from offline_rlvr.report.record import RunRecord, read_run
from offline_rlvr.report.trained import trained_responses
from offline_rlvr.report.verdict import compare, ending, missing, verdict

HERE = Path(__file__).parent
FILE_NAME = "report.html"


def render_report(run_dir: Path) -> Path:
    """Write `report.html` into a run folder, finished or not.

    Args:
        run_dir: The run's folder; only what lies in it is read.

    Returns:
        Path of the page.

    Raises:
        DataError: Not a run folder, or a damaged file in it.
        ResourceError: The page cannot be written.
    """
    run = read_run(run_dir)
    path = run_dir / FILE_NAME
    write_file(path, page(run).encode("utf-8"), replace=True)
    return path


def page(run: RunRecord) -> str:
    """The page as text."""
    return fill_template("page.html.jinja", content(run))


def fill_template(name: str, content: Mapping[str, Any]) -> str:
    """A page of this folder's templates, every text in it escaped and inert."""
    environment = Environment(
        loader=FileSystemLoader(HERE),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_inert_text,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    css = Markup((HERE / "page.css").read_text("utf-8"))  # our own file, not data
    return environment.get_template(name).render(css=css, **content)


def content(run: RunRecord) -> dict[str, Any]:
    """Everything the template shows."""
    comparisons = compare(run)
    kind, sentence = verdict(run)
    return {
        "name": run.name,
        "subtitle": _subtitle(run),
        "kind": kind,
        "sentence": sentence,
        "ending": ending(run),
        "missing": missing(run),
        "accuracy_figures": figures.accuracy_figures(run),
        "accuracies": tables.accuracies(comparisons),
        "drift_figures": figures.drift_figures(run),
        "training_figures": figures.training_figures(run),
        "funnel": tables.funnel(run),
        "funnel_notes": tables.funnel_notes(run.part("funnel")),
        "pool_figure": figures.pool_figure(run.part("funnel")),
        "examples": choose(comparisons),
        "trained": trained_responses(run),
        "settings": tables.settings(run),
        "versions": tables.flattened(run.part("versions")),
        "config": run.config,
        "metrics": tables.metric_rows(run, definitions_of(run.keys)),
    }


def _subtitle(run: RunRecord) -> str:
    objective = run.part("objective").get("name", "objective not recorded")
    model: Any = run.identity.get("model")
    if isinstance(model, Mapping):
        model = model.get("name_or_path") or model.get("name")
    updates = f"{run.applied:,} of {run.planned:,} updates" if run.planned else "no plan recorded"
    created = str(run.identity.get("created") or "")[:16].replace("T", " ")
    parts = [objective, model or "model not recorded", updates, created]
    return " · ".join(str(part) for part in parts if part)


def _inert_text(value: Any) -> Any:
    """Applied to every value the template prints, before escaping."""
    return inert(value) if isinstance(value, str) and not isinstance(value, Markup) else value
