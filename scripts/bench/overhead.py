"""The share of a training update that is neither forward, nor backward, nor the optimizer.

    scripts/bench_overhead [--preset cpu|cuda|tiny] [--updates 6] [--json FILE]

Whole updates of `offline-rlvr train` on the workload of `bench_train`, with the trainer's own
phases measured: loss, metrics, ledger, response rows, reading and Lightning itself are overhead.
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

import result
import workload
from pace import Arm, take_turns

HERE = Path(__file__).parent
WORK = ("forward", "backward", "optimizer")
WARM_UP = 2
#: The arm waits in this phase between updates.
WAITING = "record"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    workload.add_options(parser)
    parser.add_argument("--updates", type=int, default=6, help="timed updates")
    result.add_option(parser)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder) / "work"
        workload.prepare(work, workload.chosen(options), WARM_UP + options.updates)
        command = [sys.executable, HERE / "trainer_arm.py", work, "--phases"]
        with Arm("training", command, Path(folder)) as arm:
            take_turns([arm], WARM_UP - 1 + options.updates)
    reports = arm.reports[WARM_UP:]
    shares = {
        name: statistics.median(r["phases"].get(name, 0.0) / r["seconds"] for r in reports)
        for name in reports[0]["phases"]
        if name != WAITING
    }
    overhead = statistics.median(
        1 - sum(r["phases"][name] for name in WORK) / r["seconds"] for r in reports
    )
    named = sum(share for name, share in shares.items() if name not in WORK)
    rows = [*shares.items(), ("reading, records, Lightning", overhead - named)]
    result.table("an update", ["phase", "share"], [[n, f"{v:.2%}"] for n, v in rows])
    seconds = arm.seconds(WARM_UP)
    print(f"\noverhead {overhead:.2%} of {seconds:.2f} s")
    result.finish({"overhead": overhead, "update_s": seconds, "shares": dict(rows)}, options.json)


if __name__ == "__main__":
    main()
