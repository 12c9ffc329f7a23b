"""Train every objective from one pool in one order, and print what came of each as one table.

    python scripts/compare_objectives.py                       # all, seeds 0 1 2, 60 updates
    python scripts/compare_objectives.py ggpo pg --seeds 0     # some
    python scripts/compare_objectives.py --table               # only what is finished

Each run is an ordinary run folder (`RUNS/OBJECTIVE-SEED`) of `configs/OBJECTIVE.yaml`, so that a
command typed again finishes what is unfinished and skips the rest. One setting for all, no tuning
per objective: AdamW at 2e-4 with 3 updates of warm-up, gradients clipped at norm 1, 32 groups of 8
per update, a refreshed reference every 20 updates (fixed for GRPO), 200 held-out problems
answered 32 times before and after. Other settings as `--section.key=value`.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from offline_rlvr import objectives
from offline_rlvr.evaluation import read_evaluations
from offline_rlvr.stream import read_rows

CONFIGS = Path(__file__).parents[1] / "configs"
#: Drift and K3 are means over the updates that the effective sample size is taken over.
LAST_UPDATES = 8
COMMAND = [sys.executable, "-c", "from offline_rlvr.cli.main import main; main()"]


@dataclass(frozen=True)
class Job:
    """One run."""

    objective: str
    seed: int
    updates: int
    folder: Path

    @property
    def finished(self) -> bool:
        """Trained to the end and evaluated there."""
        evaluated = {e.update for e in read_evaluations(self.folder)} if self.started else set()
        return self.updates in evaluated

    @property
    def started(self) -> bool:
        """Whether there is a run folder."""
        return (self.folder / "run.json").exists()


def main() -> None:
    """Build the pool where there is none, train what is not finished, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("objectives", nargs="*", help="default: all")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--updates", type=int, default=60)
    parser.add_argument("--pool", type=Path, default=Path("pools/compare"))
    parser.add_argument("--runs", type=Path, default=Path("runs/compare"))
    parser.add_argument("--parallel", type=int, default=2, help="runs at a time, one core each")
    parser.add_argument("--table", action="store_true", help="train nothing")
    args, overrides = parser.parse_known_args()
    names = args.objectives or objectives.names()
    unknown = sorted(set(names) - set(objectives.names()))
    if unknown:
        parser.error(f"no objective {', '.join(unknown)}; there are {objectives.names()}")
    jobs = [
        Job(name, seed, args.updates, args.runs / f"{name}-{seed}")
        for seed in args.seeds
        for name in names
    ]
    if not args.table:
        if not (args.pool / "pool.json").exists():
            # 64 more than are trained on: the probe takes its 32 groups from all of them.
            groups = ["--pool.mixed_groups", str(32 * args.updates + 64)]
            call(["pool", "build", CONFIGS / "quickstart.yaml", "-o", args.pool, *groups], None)
        with ThreadPoolExecutor(args.parallel) as threads:
            list(threads.map(lambda job: train(job, args.pool, overrides), jobs))
    print(table([job for job in jobs if job.finished]))


def train(job: Job, pool: Path, overrides: Sequence[str]) -> None:
    """Train a run to its end in a process of its own; its output goes to `RUN.log`."""
    if job.finished:
        return
    once = str(job.updates)
    settings = {
        "train.seed": str(job.seed),
        "train.max_updates": once,
        "train.checkpoint_every": "20",
        "train.keep_checkpoints": "1",
        "train.probe_every": once,
        "train.log_entropy_every": once,
        "evaluation.every": "null",
    }
    flags = [text for key, value in settings.items() for text in (f"--{key}", value)]
    config = CONFIGS / f"{job.objective}.yaml"
    job.folder.parent.mkdir(parents=True, exist_ok=True)
    arguments = ["train", config, "--pool", pool, "--run", job.folder, *flags, *overrides]
    call(arguments, job.folder.with_suffix(".log"))
    print(f"finished {job.folder}", file=sys.stderr, flush=True)


def call(arguments: Sequence[object], log: Path | None) -> None:
    """Run a verb on one core; SystemExit with its last words when it fails."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [*COMMAND, *map(str, arguments)]
    if log is None:
        subprocess.run(command, env=environment, check=True)
        return
    with log.open("w") as sink:
        code = subprocess.run(
            command, env=environment, stdout=sink, stderr=sink, check=False
        ).returncode
    if code:
        sys.exit(f"{log}: exit code {code}: " + log.read_text()[-500:])


def table(jobs: Sequence[Job]) -> str:
    """Markdown: one row per objective, each number the mean over seeds with its range.

    Raises:
        SystemExit: Runs of one seed did not see the same groups in the same order.
    """
    plans: dict[int, set[str]] = {}
    for job in jobs:
        facts = json.loads((job.folder / "run.json").read_text())
        plans.setdefault(job.seed, set()).add(facts["plan"]["hash"])
    if any(len(hashes) > 1 for hashes in plans.values()):
        sys.exit(f"runs of one seed followed different plans: {plans}")
    lines = [
        *(f"seed {seed}: plan {next(iter(hashes))[:12]}" for seed, hashes in plans.items()),
        "",
        "| objective | seeds | mean@n before | after | gain, points | drift | K3 | ESS |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    rows = {}
    for job in jobs:
        rows.setdefault(job.objective, []).append(outcome(job))
    for name, found in sorted(rows.items(), key=lambda row: -statistics.mean(x[2] for x in row[1])):
        formats = ("{:.1f} %", "{:.1f} %", "{:+.1f}", "{:.3f}", "{:.3f}", "{:.3f}")
        columns = zip(formats, zip(*found, strict=True), strict=True)
        cells = [spread(form, values) for form, values in columns]
        lines.append(f"| {name} | {len(found)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def outcome(job: Job) -> tuple[float, ...]:
    """Accuracy before, after and gained (percent); drift (nats per token), K3, ESS at the end."""
    by_update = {e.update: e for e in read_evaluations(job.folder)}
    before, after = (
        100 * by_update[update].summary()[f"mean@{by_update[update].n}"]["value"]
        for update in (0, job.updates)
    )
    last = list(read_rows(job.folder / "metrics.jsonl"))[-LAST_UPDATES:]
    drift, k3 = (
        statistics.mean(row[key] for row in last)
        for key in ("drift/abs_log_ratio", "drift/k3_behavior_policy")
    )
    return before, after, after - before, drift, k3, last[-1]["weights/ess"]


def spread(form: str, values: Sequence[float]) -> str:
    """Mean, and lowest to highest where there are several."""
    text = form.format(statistics.mean(values))
    if len(values) == 1 or max(values) == min(values):
        return text
    bare = form.replace(" %", "")
    return f"{text} ({bare.format(min(values))} to {bare.format(max(values))})"


if __name__ == "__main__":
    main()
