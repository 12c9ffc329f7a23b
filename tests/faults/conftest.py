"""The command line in this process, and pools changed by a forger whose checksums fit again."""

import ctypes
import json
import signal
import subprocess

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from offline_rlvr.cli.main import main
from offline_rlvr.pool import Pool
from offline_rlvr.pool.commits import seal, sha256

PART = "samples/part-00000001.parquet"


@pytest.fixture
def cli(capfd):
    """`offline-rlvr ...` as its entry point runs it; returns (exit code, output)."""
    handler = signal.getsignal(signal.SIGTERM)

    def run(*arguments):
        capfd.readouterr()
        code = 0
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as exit:
            code = exit.code or 0
        return code, "".join(capfd.readouterr())

    yield run
    signal.signal(signal.SIGTERM, handler)


@pytest.fixture
def build(cli, small_job, tmp_path):
    """Types the one build command of these tests; returns (exit code, output)."""

    def run(*overrides, pool=tmp_path / "pool é"):
        return cli("pool", "build", small_job, "-o", pool, *overrides)

    return run


@pytest.fixture
def pool(tmp_path):
    return tmp_path / "pool é"


@pytest.fixture
def contents():
    """What the groups of a pool hold, whatever built them."""

    def run(pool):
        opened = Pool.open(pool)
        groups = opened.read(opened.index.group_ids)
        return [(group.texts, group.rewards.tolist(), group.seeds) for group in groups]

    return run


@pytest.fixture
def obey_permissions():
    """For `preexec_fn`: file modes count for root, too (CAP_DAC_OVERRIDE and its kin go)."""

    def drop():
        for capability in (1, 2, 3):
            ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP

    return drop


@pytest.fixture
def mount():
    """Runs `mount ... FOLDER`, and `umount` at the end; skips where that is not allowed."""
    mounted = []

    def run(folder, *options):
        done = subprocess.run(["mount", *options, folder], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"cannot mount: {done.stderr.strip()}")
        if folder not in mounted:  # or only remounted
            mounted.append(folder)

    yield run
    for folder in reversed(mounted):
        subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.fixture
def reseal():
    """Makes every size, hash and checksum of a changed pool fit its files again."""

    def run(root, change=lambda body: None):
        identity = json.loads((root / "pool.json").read_text())
        identity.pop("checksum")
        data = seal(identity)
        (root / "pool.json").write_bytes(data)
        for path in sorted((root / "commits").glob("*.json")):
            body = json.loads(path.read_text())
            body.pop("checksum")
            body["previous"] = sha256(data)
            for entry in body["files"]:
                content = (root / entry["path"]).read_bytes()
                rows = pq.read_metadata(pa.BufferReader(content)).num_rows
                entry.update(bytes=len(content), sha256=sha256(content), rows=rows)
            change(body)
            data = seal(body)
            path.write_bytes(data)

    return run


@pytest.fixture
def forge(own_pool, reseal):
    """Changes one column of a part, as plain Python lists, and seals the pool again."""

    def run(column, change, part=PART):
        table = pq.read_table(own_pool / part)
        values = table.column(column).to_pylist()
        change(values)
        at = table.column_names.index(column)
        kind = _nullable(table.schema.field(column).type)
        array = pa.array(values, type=kind)
        pq.write_table(table.set_column(at, pa.field(column, kind), array), own_pool / part)
        reseal(own_pool)

    return run


def _nullable(kind):
    return pa.list_(_nullable(kind.value_type)) if pa.types.is_list(kind) else kind
