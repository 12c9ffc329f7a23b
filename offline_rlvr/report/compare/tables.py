"""The tables of a comparison: for people as text, for programs as CSV and JSON."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from offline_rlvr.evaluation import Evaluation, mean_at_k, pass_at_k_of, seeded_interval
from offline_rlvr.numerics.pass_at_k import powers_of_two
from offline_rlvr.report.compare.sentences import best_of, drifted, how_sure, verdict
from offline_rlvr.report.compare.standings import Field, Pair, known_mean, table
from offline_rlvr.report.verdict import direction, ends, number, percent, points


@dataclass(frozen=True)
class Table:
    """Rows of text under named columns; the first column names the row."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def as_markdown(self) -> str:
        """A pipe table under a heading."""
        align = ["---", *["--:"] * (len(self.columns) - 1)]
        lines = [
            f"### {markdown_text(self.title)}",
            "",
            *map(_row, (self.columns, align, *self.rows)),
        ]
        return "\n".join(lines)


def standings_table(field: Field) -> Table:
    """One row for each method, best first: accuracy, gain, and how far it had drifted."""
    # What a narrow screen shows first: who, how good, how far.
    columns = ["method", field.mean_name, "gain", "drift", "ESS", "K3", f"pass@{field.n}"]
    columns += [f"95 % interval of {field.mean_name}", "of the gain", "seeds"]
    rows = [
        [
            s.method.name,
            percent(s.mean.value),
            points(s.gain.value, sign=True),
            number(s.drift),
            number(s.ess),
            number(s.k3),
            percent(s.passed.value),
            ends(s.mean),
            ends(s.gain),
            str(len(s.method.runs)),
        ]
        for s in field.standings
    ]
    where = (
        "all sets, each problem weighing the same" if len(field.sets) > 1 else "".join(field.sets)
    )
    return Table(f"Standings ({where})", columns, rows)


def set_table(field: Field, name: str) -> Table:
    """mean@n and pass@k of the base and of each method on one set."""
    n = field.sets[name]
    ks = powers_of_two(n)
    needed = best_of(field, name)

    def row(label: str, evaluations: dict[int, Evaluation], beside: str) -> list[str]:
        means = table(evaluations, lambda e: mean_at_k(e.rewards))
        passes = [
            known_mean(table(evaluations, lambda e, k=k: pass_at_k_of(e.rewards, k))) for k in ks
        ]
        found = seeded_interval(means, within=field.possible)
        texts = [percent(found.value), ends(found), *(percent(p) for p in passes)]
        return [label, *texts, beside]

    base = dict(enumerate(field.base(name)))
    rows = [row("base model", base, "1")]
    for standing in field.standings:
        method = standing.method
        k = needed[method.name]
        rows.append(
            row(method.name, method.evaluations(name), f"more than {n}" if k is None else str(k))
        )
    columns = [
        "method",
        f"mean@{n}",
        "95 % interval",
        *(f"pass@{k}" for k in ks),
        "base answers as good as one",
    ]
    problems = len(field.base(name)[0].problem_ids)
    return Table(f"{name}, {problems:,} problems", columns, rows)


def settings_table(field: Field) -> Table:
    """What tells the methods apart, and which runs they are."""
    rows = [
        [
            method.name,
            ", ".join(f"{key}={value}" for key, value in method.settings.items()),
            ", ".join(str(run.path) for run in method.runs.values()),
        ]
        for method in field.methods
    ]
    return Table("Methods", ["method", "settings that differ", "runs"], rows)


def by_seed(pair: Pair) -> str:
    """`seed 0 +1.2, seed 1 +0.8`, in points."""
    return ", ".join(f"seed {s} {points(d, sign=True)}" for s, d in pair.by_seed.items())


def pairs_csv(field: Field) -> str:
    """Every pair's difference in mean@n and in pass@n, as shares."""
    rows: list[list[Any]] = [
        ["first", "second", "metric", "difference", "low", "high", "problems", "seeds"]
    ]
    for metric, pairs in (
        (field.mean_name, field.pairs()),
        (f"pass@{field.n}", field.pairs(field.passed)),
    ):
        for p in pairs:
            d = p.difference
            rows.append(
                [p.first, p.second, metric, d.value, d.low, d.high, d.problems, len(p.by_seed)]
            )
    return _csv(rows)


def accuracy_csv(field: Field) -> str:
    """Every run's mean@n and pass@k of each evaluation, as shares."""
    rows: list[list[Any]] = [["method", "seed", "run", "set", "update", "metric", "value"]]
    for method in field.methods:
        for seed, run in method.runs.items():
            for e in run.evaluations:
                values = {f"mean@{e.n}": mean_at_k(e.rewards)}
                values |= {f"pass@{k}": pass_at_k_of(e.rewards, k) for k in powers_of_two(e.n)}
                rows += [
                    [
                        method.name,
                        seed,
                        str(run.path),
                        e.name,
                        e.update,
                        metric,
                        known_mean(v),
                    ]
                    for metric, v in values.items()
                ]
    return _csv(rows)


def as_json(field: Field) -> dict[str, Any]:
    """The standings and pairs, plain JSON values; differences are shares."""
    return {
        "won": verdict(field)[0],
        "verdict": verdict(field)[1],
        "drift": drifted(field),
        "certainty": how_sure(field),
        "methods": [
            {
                "name": s.method.name,
                "settings": s.method.settings,
                "runs": {str(seed): str(run.path) for seed, run in s.method.runs.items()},
                field.mean_name: s.mean.as_dict(),
                f"pass@{field.n}": s.passed.as_dict(),
                "gain": s.gain.as_dict(),
                "drift": s.drift,
                "k3": s.k3,
                "ess": s.ess,
            }
            for s in field.standings
        ],
        "pairs": [
            {
                "first": p.first,
                "second": p.second,
                "sentence": p.sentence,
                "kind": direction(p.difference),
                "difference": p.difference.as_dict(),
                "by_seed": {str(seed): value for seed, value in p.by_seed.items()},
            }
            for p in field.pairs()
        ],
    }


def _csv(rows: Sequence[Sequence[Any]]) -> str:
    sink = io.StringIO()
    csv.writer(sink, lineterminator="\n").writerows(rows)
    return sink.getvalue()


def markdown_text(text: str) -> str:
    """Text that stays in its cell or line, and is no HTML."""
    safe = text.replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|")
    return " ".join(safe.split())


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(markdown_text, cells))} |"
