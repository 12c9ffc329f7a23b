"""Opening, selecting, reading and streaming a pool takes as much memory at 10x as at 1x."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts/bench/pool.py"
#: MiB of decoded rows that may be kept; the larger pool has five times as much.
CACHE = 4
#: rewards 8, lengths 4, statuses 1, truncated 1 a response; 24 bytes a group.
INDEX_BYTES_PER_GROUP = 8 * (8 + 4 + 1 + 1) + 24


def test_memory_does_not_grow_with_the_pool(tmp_path):
    file = tmp_path / "figures.json"
    arguments = ["--groups", "128", "--tokens", "256", "--cache", str(CACHE), "--updates", "0"]
    subprocess.run([sys.executable, SCRIPT, *arguments, "--json", file], check=True, timeout=300)
    figures = json.loads(file.read_text())
    small, large = figures["1x"], figures["10x"]
    assert large["tokens"] == 10 * small["tokens"]
    assert large["decoded_mib"] == 5 * CACHE
    assert small["index_bytes_per_group"] == large["index_bytes_per_group"] == INDEX_BYTES_PER_GROUP
    # The full cache and a minibatch; a reader that keeps what it read would need 20 MiB more.
    assert large["peak_mib"] - small["peak_mib"] < 2 * CACHE
