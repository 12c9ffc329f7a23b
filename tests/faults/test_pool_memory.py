"""Opening, selecting, reading and streaming a pool takes as much memory at 10x as at 1x."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts/bench_pool_memory.py"
#: MiB of decoded rows that may be kept; the larger pool has five times as much.
CACHE = 4
#: rewards 8, lengths 4, statuses 1, truncated 1 a response; 24 bytes a group.
INDEX_BYTES_PER_GROUP = 8 * (8 + 4 + 1 + 1) + 24


def test_memory_does_not_grow_with_the_pool():
    arguments = ["--groups", "128", "--tokens", "256", "--cache", str(CACHE), "--json"]
    done = subprocess.run(
        [sys.executable, SCRIPT, *arguments], stdout=subprocess.PIPE, check=True, timeout=300
    )
    small, large = json.loads(done.stdout)["1x"], json.loads(done.stdout)["10x"]
    assert large["tokens"] == 10 * small["tokens"]
    assert large["decoded_mib"] == 5 * CACHE
    assert small["index_bytes_per_group"] == large["index_bytes_per_group"] == INDEX_BYTES_PER_GROUP
    # The full cache and a minibatch; a reader that keeps what it read would need 20 MiB more.
    assert large["peak_mib"] - small["peak_mib"] < 2 * CACHE
