"""Speed and memory of a training update: ours against TRL's GRPOTrainer on the same stored pool.

    scripts/bench_train [--preset cpu|cuda|tiny] [--arms ours,trl,control,ladder,reference]
        [--json FILE]

Random weights of SmolLM2-135M's shape, random tokens in a real pool, GRPO without KL, whole updates
of `offline-rlvr train` and of TRL 1.16. First both must compute equal log-probs and gradients. Then
the fastest of TRL's settings (gradient checkpointing on and off, batch sizes) and ours take turns,
update by update, each in a process of its own. The control case has equal lengths and a prompt too
short for sharing it to matter. The ladder adds one trick at a time. Every size is an option named
after its field in `workload.py` (`--layers 2 --groups 4`). About half an hour on two CPU cores.
"""

import argparse
import statistics
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import gate
import result
import workload
from ladder_arm import RUNGS
from pace import Arm, take_turns

HERE = Path(__file__).parent
TRL_PYTHON = HERE.parents[1] / ".venv-trl/bin/python"
ARMS = ("ours", "trl", "control", "ladder", "reference")
#: What the anchor costs is measured with the package's default penalty.
KL_COEF = 0.01


class Bench:
    """One run of the benchmark in a temporary folder.

    Args:
        options: Of the command line.
        folder: For models, pools and logs.
    """

    def __init__(self, options: argparse.Namespace, folder: Path):
        self.options = options
        self.folder = folder
        self.warm_up, self.updates = options.warm_up, options.updates

    def ours(self, work: Path, *more: str | Path, name: str = "ours") -> Arm:
        """The package's trainer."""
        return Arm(name, [sys.executable, HERE / "trainer_arm.py", work, *more], self.folder)

    def trl(self, work: Path, setting: tuple[int, int], *more: str | Path) -> Arm:
        """TRL with (checkpointing, batch size)."""
        checkpointing, batch = setting
        name = f"TRL batch {batch}" + (" checkpointed" if checkpointing else "")
        command = [self.options.trl_python, HERE / "trl_peer.py", work, *map(str, setting), *more]
        return Arm(name, command, self.folder)

    def timed(self, arms: list[Arm], updates: int | None = None) -> None:
        """Warm-up and timed updates, in turns; starting an arm does its first."""
        take_turns(arms, self.warm_up - 1 + (updates or self.updates))

    def gate(self, work: Path) -> dict[str, float]:
        """Both trainers' numbers of the first update, see `gate.compare`."""
        dumps = self.folder / "ours.safetensors", self.folder / "trl.safetensors"
        with self.ours(work, "--dump", dumps[0], name="our gate"):
            pass
        with self.trl(work, self.settings(work)[0], "--dump", dumps[1]):
            pass
        return gate.compare(*dumps)

    def settings(self, work: Path) -> list[tuple[int, int]]:
        """(checkpointing, batch size) of every TRL arm."""
        sizes, _ = workload.opened(work)
        sequences = sizes.groups * sizes.responses
        batches = [int(n) for n in self.options.trl_batches.split(",")]
        fitting = sorted({min(batch, sequences) for batch in batches})
        return [(c, batch) for c in (0, 1) for batch in fitting if sequences % batch == 0]

    def fastest(self, work: Path) -> tuple[tuple[int, int], dict[str, float]]:
        """TRL's best setting on this work, and the seconds of all."""
        found = {}
        seconds = {}
        for setting in self.settings(work):
            with self.trl(work, setting) as arm:
                self.timed([arm], self.options.trial_updates)
                found[setting] = seconds[arm.name] = arm.seconds(self.warm_up)
                print(f"{work.name}: {arm.name}: {seconds[arm.name]:.2f} s", flush=True)
        return min(found, key=found.__getitem__), seconds

    def versus(self, work: Path) -> dict[str, Any]:
        """Ours and, unless left out, TRL's best setting."""
        figures: dict[str, Any] = {}
        with ExitStack() as stack:
            arms = [stack.enter_context(self.ours(work))]
            if "trl" in self.options.arms:
                setting, figures["trl_settings"] = self.fastest(work)
                arms.append(stack.enter_context(self.trl(work, setting)))
            self.timed(arms)
        ours = arms[0]
        floors = [r["seconds"] / r["floor"] for r in ours.reports[self.warm_up :]]
        figures |= {
            "tokens_per_s": statistics.median(
                r["tokens"] / r["seconds"] for r in ours.reports[self.warm_up :]
            ),
            "floor_ratio": statistics.median(floors),
            "threads": ours.reports[0]["threads"],
            "arms": {arm.name: self.row(arm) for arm in arms},
        }
        if len(arms) == 2:
            figures["speedup"] = arms[1].seconds(self.warm_up) / ours.seconds(self.warm_up)
            figures["memory"] = ours.memory / arms[1].memory
        return figures

    def row(self, arm: Arm) -> dict[str, float]:
        """Figures of one arm."""
        seconds = arm.timed(self.warm_up)
        return {
            "median_s": statistics.median(seconds),
            "least_s": min(seconds),
            "most_s": max(seconds),
            "cpu_s": statistics.median(r["cpu_s"] for r in arm.reports[self.warm_up :]),
            "peak_bytes": arm.memory,
        }

    def ladder(self, work: Path) -> dict[str, dict[str, float]]:
        """Every rung, in turns, and the whole trainer as the last."""
        with ExitStack() as stack:
            arms = [
                stack.enter_context(
                    Arm(rung, [sys.executable, HERE / "ladder_arm.py", work, rung], self.folder)
                )
                for rung in RUNGS
            ]
            arms.append(stack.enter_context(self.ours(work, name="the trainer")))
            self.timed(arms, self.options.ladder_updates)
        for arm in arms[:-1]:
            if workload.opened(work)[0].precision == "32-true":
                off = arm.reports[0]["logprob_diff"]
                assert off < gate.MAX_LOGPROB_DIFF, f"{arm.name}: log-probs are off by {off}"
        return {arm.name: self.row(arm) for arm in arms}

    def reference(self, work: Path) -> float:
        """Peak memory with a reference / without."""
        memory = []
        for kl_coef in (KL_COEF, 0.0):
            with self.ours(work, "--kl-coef", str(kl_coef), name=f"KL {kl_coef}") as arm:
                take_turns([arm], self.warm_up)
                memory.append(arm.memory)
        return memory[0] / memory[1]


def show(title: str, rows: dict[str, dict[str, float]]) -> None:
    """A table of arms; the ratios are to the last one."""
    last = list(rows.values())[-1]
    result.table(
        title,
        ["", "s/update", "from", "to", "CPU s", "ratio", "peak GiB"],
        [
            [
                name,
                *(f"{row[key]:.3f}" for key in ("median_s", "least_s", "most_s", "cpu_s")),
                f"{row['median_s'] / last['median_s']:.2f}",
                f"{row['peak_bytes'] / 2**30:.2f}",
            ]
            for name, row in rows.items()
        ],
    )


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    workload.add_options(parser)
    parser.add_argument("--arms", type=lambda text: text.split(","), default=list(ARMS))
    parser.add_argument("--updates", type=int, default=6, help="timed updates of an arm")
    parser.add_argument("--warm-up", type=int, default=2, help="updates before them, at least 1")
    parser.add_argument("--trial-updates", type=int, default=1, help="to choose TRL's setting")
    parser.add_argument("--ladder-updates", type=int, default=3)
    parser.add_argument(
        "--trl-batches", default="4,8,16", help="per device; what divides an update"
    )
    parser.add_argument("--trl-python", type=Path, default=TRL_PYTHON)
    result.add_option(parser)
    options = parser.parse_args()
    if unknown := set(options.arms) - set(ARMS):
        parser.error(f"unknown arms {', '.join(sorted(unknown))}; there are {', '.join(ARMS)}")
    if "trl" in options.arms and not options.trl_python.exists():
        parser.error(
            f"there is no {options.trl_python}: scripts/bench_train makes it; or leave TRL out "
            "with --arms ours,control,ladder,reference"
        )
    return options


def main() -> None:
    options = parsed()
    work = workload.chosen(options)
    equal = replace(
        work,
        prompt=work.control_prompt,
        shortest=work.control_response,
        longest=work.control_response,
    )
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(options, Path(folder))
        ragged = bench.folder / "ragged"
        cases = {ragged: work}
        if "control" in options.arms:
            cases[bench.folder / "control"] = equal
        for place, sizes in cases.items():
            workload.prepare(place, sizes, options.warm_up + options.updates)
        if "trl" in options.arms:
            figures |= bench.gate(ragged)
            print(f"the same numbers: {figures}", flush=True)
        for place, sizes in cases.items():
            if place == ragged and "ours" not in options.arms:
                continue
            figures[place.name] = bench.versus(place)
            show(f"{place.name}: {sizes.response_range}", figures[place.name]["arms"])
        if "ladder" in options.arms:
            figures["ladder"] = bench.ladder(ragged)
            show("ladder: ragged, one trick at a time", figures["ladder"])
        if "reference" in options.arms:
            figures["memory_with_reference"] = bench.reference(ragged)
    if "ragged" in figures:
        figures["floor_ratio"] = figures["ragged"]["floor_ratio"]
    if "trl" in options.arms:
        if "ragged" in figures:
            figures["speedup_vs_trl"] = figures["ragged"]["speedup"]
            figures["memory_vs_trl"] = figures["ragged"]["memory"]
        if "control" in figures:
            figures["control_speedup"] = figures["control"]["speedup"]
    single = {name: value for name, value in figures.items() if isinstance(value, float)}
    result.table("in all", ["", "value"], [[n, f"{v:.6g}"] for n, v in single.items()])
    result.finish(figures, options.json)


if __name__ == "__main__":
    main()
