"""Memory of reading a pool at 1x and 10x its size: opening, selecting, random access, streaming.

    python scripts/bench_pool_memory.py [--groups 400] [--tokens 1024] [--responses 8] [--cache 16]

Builds both pools in a temporary folder with the real writer, then does in a fresh process for each
what a training does, and prints how far its peak memory rises above where it stood after the same
work on a tiny pool. What grows with the pool is the index alone, and it is shown per group.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

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


def use(path: Path, cache: int) -> tuple[int, int]:
    """Do what a training does with a pool; (bytes of its index, response tokens read)."""
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
    read = sum(int(batch.response_lengths.sum()) for _, batch in stream)
    assert read == int(pool.index.response_lengths.sum(dtype=np.int64))
    arrays = (value for value in vars(pool.index).values() if isinstance(value, np.ndarray))
    return sum(array.nbytes for array in arrays), read


def memory_kib(field: str) -> int:
    """VmRSS (now) or VmHWM (the most so far) of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))


def measure(tiny: Path, path: Path, cache: int) -> dict[str, float]:
    """Figures of one pool, in this process."""
    use(tiny, cache)
    before = memory_kib("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    index, tokens = use(path, cache)
    return {
        "tokens": tokens,
        "index_bytes": index,
        "peak_mib": (memory_kib("VmHWM") - before) / 1024,
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--groups", type=int, default=400)
    parser.add_argument("--tokens", type=int, default=1024, help="per response")
    parser.add_argument("--responses", type=int, default=8, help="per group")
    parser.add_argument("--cache", type=int, default=16, help="MiB of decoded rows kept")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.measure:
        folder, name = asked.measure
        figures = measure(Path(folder) / "tiny", Path(folder) / name, asked.cache << 20)
        print(json.dumps(figures))
        return
    found = compare(asked.groups, asked.responses, asked.tokens, asked.cache)
    if asked.json:
        print(json.dumps(found))
        return
    print(f"{'':6}{'groups':>8}{'decoded MiB':>13}{'peak MiB':>10}{'index B/group':>15}")
    for name, row in found.items():
        print(
            f"{name:6}{row['groups']:>8}{row['decoded_mib']:>13.1f}{row['peak_mib']:>10.1f}"
            f"{row['index_bytes_per_group']:>15.0f}"
        )


if __name__ == "__main__":
    main()
