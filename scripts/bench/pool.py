"""Reading a pool: its speed against training's, and its memory at 1x and at 10x the size.

    scripts/bench_pool [--groups 400] [--tokens 1024] [--responses 8] [--cache 16] [--json FILE]

Builds both pools in a temporary folder with the real writer, then does in a fresh process for each
what a training does: opening, selecting, streaming in plan order. Prints response tokens per
second, and how far the peak memory rises above where it stood after the same work on a tiny pool;
what grows with the pool is the index alone, and it is shown per group. Then the package's trainer
does some updates of `bench_train`'s workload, whose tokens per second are to be far fewer.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import result
import workload
from pace import Arm, resident, take_turns

HERE = Path(__file__).parent

VOCAB = 32_000
#: Groups of one commit, and of the tiny pool that warms a process up.
CHUNK = 64
GROUPS_PER_UPDATE = 8


def build(path: Path, groups: int, responses: int, tokens: int) -> None:
    """A pool of that many groups, every one mixed."""
    from offline_rlvr.pool import PoolWriter
    from offline_rlvr.records import Group, Problem, Response, Verdict

    draw = random.Random(0)
    bank = [
        Response(
            tuple(draw.randrange(VOCAB) for _ in range(tokens)),
            tuple(-draw.expovariate(1.0) for _ in range(tokens)),
            "text",
            "stop",
        )
        for _ in range(responses * 5)
    ]
    verdicts = (Verdict("correct"), *[Verdict("incorrect")] * (responses - 1))
    identity = {"group_size": responses, "vocab_size": VOCAB}
    with PoolWriter.create_or_open(path, identity) as writer:
        for first in range(0, groups, CHUNK):
            chunk = [
                Group(
                    i,
                    Problem(str(i), f"question {i}", "7"),
                    (1, 2, 3),
                    tuple(draw.sample(bank, responses)),
                    verdicts,
                )
                for i in range(first, min(first + CHUNK, groups))
            ]
            writer.append(chunk, "bench")


def use(path: Path, cache: int) -> tuple[int, int, float]:
    """Do what a training does with a pool; (bytes of its index, response tokens read, seconds)."""
    import numpy as np

    from offline_rlvr.pool import Pool, selection
    from offline_rlvr.pool.summary import funnel
    from offline_rlvr.stream import make_plan
    from offline_rlvr.stream.data import PoolData

    pool = Pool.open(path, cache_bytes=cache)
    funnel(pool)
    training, _ = selection.training(pool, probe_groups=0)
    plan = make_plan(
        training.tolist(), pool_hash=pool.hash, seed=0, groups_per_update=GROUPS_PER_UPDATE
    )
    stream = PoolData(pool, plan, 0, plan.updates).train_dataloader()
    start = time.perf_counter()
    read = sum(int(batch.response_lengths.sum()) for _, batch in stream)
    seconds = time.perf_counter() - start
    assert read == int(pool.index.response_lengths.sum(dtype=np.int64))
    arrays = (value for value in vars(pool.index).values() if isinstance(value, np.ndarray))
    return sum(array.nbytes for array in arrays), read, seconds


def measure(tiny: Path, path: Path, cache: int) -> dict[str, float]:
    """Figures of one pool, in this process."""
    use(tiny, cache)
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    index, tokens, seconds = use(path, cache)
    return {
        "tokens": tokens,
        "index_bytes": index,
        "tokens_per_s": tokens / seconds,
        "peak_mib": (resident("VmHWM") - before) / 2**20,
    }


def compare(groups: int, responses: int, tokens: int, cache: int) -> dict[str, dict[str, float]]:
    """Figures at 1x and at 10x, each from a process of its own."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        pools = {"tiny": CHUNK, "1x": groups, "10x": 10 * groups}
        for name, size in pools.items():
            build(Path(folder) / name, size, responses, tokens)
        for name in ("1x", "10x"):
            measured = subprocess.run(
                [sys.executable, __file__, "--measure", folder, name, "--cache", str(cache)],
                stdout=subprocess.PIPE,
                check=True,
                text=True,
            )
            found[name] = json.loads(measured.stdout)
            found[name]["groups"] = pools[name]
            found[name]["index_bytes_per_group"] = found[name].pop("index_bytes") / pools[name]
            # Ids and log-probs, 4 bytes each.
            found[name]["decoded_mib"] = found[name]["tokens"] * 8 / 2**20
    return found


def trained_tokens_per_s(preset: str, updates: int) -> float:
    """Response tokens per second of whole updates, after one to warm up."""
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder) / "work"
        workload.prepare(work, workload.PRESETS[preset], updates + 1)
        command = [sys.executable, HERE / "trainer_arm.py", work]
        with Arm("training", command, Path(folder)) as arm:
            take_turns([arm], updates)
    rates = [report["tokens"] / report["seconds"] for report in arm.reports[1:]]
    return statistics.median(rates)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--groups", type=int, default=400)
    parser.add_argument("--tokens", type=int, default=1024, help="per response")
    parser.add_argument("--responses", type=int, default=8, help="per group")
    parser.add_argument("--cache", type=int, default=16, help="MiB of decoded rows kept")
    parser.add_argument("--preset", choices=workload.PRESETS, default="cpu", help="of the training")
    parser.add_argument("--updates", type=int, default=3, help="of the training; 0: leave it out")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    result.add_option(parser)
    asked = parser.parse_args()
    if asked.measure:
        folder, name = asked.measure
        figures = measure(Path(folder) / "tiny", Path(folder) / name, asked.cache << 20)
        print(json.dumps(figures))
        return
    found: dict[str, Any] = dict(compare(asked.groups, asked.responses, asked.tokens, asked.cache))
    result.table(
        "reading",
        ["pool", "groups", "decoded MiB", "peak MiB", "index B/group", "tokens/s"],
        [
            [
                name,
                row["groups"],
                f"{row['decoded_mib']:.1f}",
                f"{row['peak_mib']:.1f}",
                f"{row['index_bytes_per_group']:.0f}",
                f"{row['tokens_per_s']:,.0f}",
            ]
            for name, row in found.items()
        ],
    )
    if asked.updates:
        trained = found["trained_tokens_per_s"] = trained_tokens_per_s(asked.preset, asked.updates)
        ratio = found["reading_vs_training"] = found["10x"]["tokens_per_s"] / trained
        print(f"\ntraining {trained:,.0f} tokens/s; reading is {ratio:,.0f} times as fast")
    result.finish(found, asked.json)


if __name__ == "__main__":
    main()
