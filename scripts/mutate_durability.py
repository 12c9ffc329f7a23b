"""Take away what makes files durable and runs provable, one thing at a time: does a test notice?

    python scripts/mutate_durability.py [FILE ...]     # e.g. durable.py stream; default: all
    python scripts/mutate_durability.py --list

Each mutant lacks one call (an fsync, a rename, a check, a lock) or one refusal (`if ...: raise`) of
one file, in a temporary copy of the repository. The tests of that file run until the first failure.
Prints a table: what was taken away, and the test that noticed; exit code 1 where none did and no
reason is known (`EQUIVALENT`).
"""

import argparse
import ast
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).parents[1]
#: What a statement that calls one of these does is missed when it is gone.
CALLS = {
    "fsync", "_sync", "sync_folder", "_install", "_publish", "rename", "replace", "link", "unlink",
    "write_file", "append_file", "make_folder", "remove_folder", "remove_leftovers", "rmtree",
    "publish_folder", "_rewrite", "rewind", "flush", "prune", "verify", "read_state", "read_table",
    "check_ledger", "check_space", "_check_settings", "_check_plan", "_check_metrics",
    "_check_responses", "_refuse_others", "require_finite", "_check_first_update", "acquire",
    "callback", "load_state_dict", "restore", "load_weights",
}  # fmt: skip
CRASH, FAULTS = "tests/pool/test_pool_crash.py", "tests/faults/test_train_faults.py"
EVERY = "test_power_cut_before_every_call_that_touches_the_disk"
KILL = "test_sigkill_before_every_call_that_touches_the_disk"
VERIFY, RESUME = "tests/trainer/test_verify.py", "tests/trainer/test_resume.py"
STOPPED = "tests/trainer/test_resume_equivalence.py"
#: The tests of each file, quick ones first.
TESTS: dict[str, list[str]] = {
    "durable.py": [
        f"{CRASH}::test_order_of_a_commit", "tests/stream", f"{CRASH}::{EVERY}",
        f"{FAULTS}::{EVERY}", f"{FAULTS}::test_a_torn_last_line", CRASH, f"{FAULTS}::{KILL}",
        "tests/pool/test_pool_merge.py", RESUME,
    ],
    "lock.py": [f"{CRASH}::test_two_writers", f"{FAULTS}::test_two_trainings", CRASH],
    "stream/journal.py": ["tests/stream", f"{FAULTS}::{EVERY}", f"{FAULTS}::test_a_torn_last_line"],
    "stream/ledger.py": ["tests/stream", VERIFY],
    "stream/plan.py": ["tests/stream", VERIFY],
    "trainer/anchors.py": ["tests/trainer/test_anchors.py", VERIFY, STOPPED, f"{FAULTS}::{EVERY}",
        RESUME],
    "trainer/boundary.py": [STOPPED, f"{FAULTS}::{KILL}", "tests/trainer/test_run.py"],
    "trainer/checkpoints.py": [VERIFY, RESUME, "tests/faults/test_hostile_runs.py",
        f"{FAULTS}::{EVERY}", f"{FAULTS}::{KILL}"],
    "trainer/folder.py": [RESUME, VERIFY, "tests/faults/test_hostile_runs.py",
        f"{FAULTS}::{EVERY}"],
    "trainer/module.py": [STOPPED, "tests/trainer/test_run.py", "tests/trainer/test_mismatch.py"],
    "trainer/record.py": [STOPPED, f"{FAULTS}::{EVERY}", f"{FAULTS}::{KILL}"],
    "trainer/run.py": [STOPPED, f"{FAULTS}::test_two_trainings", f"{FAULTS}::{KILL}",
        f"{FAULTS}::test_a_disk_that_is_too_small_is_refused_before_any_work", RESUME],
    "trainer/space.py": [f"{FAULTS}::test_a_disk_that_is_too_small_is_refused_before_any_work"],
    "trainer/verify.py": [VERIFY],
    "pool/commits.py": ["tests/pool/test_pool_damage.py", "tests/faults/test_hostile_files.py",
        "tests/pool/test_pool_repair.py", CRASH],
    "pool/snapshot.py": ["tests/pool/test_pool_damage.py", "tests/faults/test_data_faults.py",
        "tests/faults/test_hostile_files.py", "tests/pool/test_pool_repair.py"],
}  # fmt: skip
#: (file, what is taken away) -> why nothing is lost by it.
EQUIVALENT: dict[tuple[str, str], str] = {}
LIMIT_S = 300


class Mutant(NamedTuple):
    """A file without one thing."""

    file: str
    line: int
    name: str
    text: str


def mutants(file: str, source: str) -> Iterator[Mutant]:
    """Every mutant of a file, in the order of its lines."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.If) and isinstance(node.body[-1], ast.Raise):
            yield _without(file, source, node.test, "if ", "False")
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            called = node.value.func
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            if name in CALLS:
                yield _without(file, source, node, "", "pass")


def _without(file: str, source: str, node: ast.AST, before: str, after: str) -> Mutant:
    lines = source.splitlines(keepends=True)
    starts = [sum(len(line.encode()) for line in lines[:n]) for n in range(len(lines))]
    data = source.encode()
    begin = starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
    end = starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]
    gone = before + " ".join(data[begin:end].decode().split())
    text = (data[:begin] + after.encode() + data[end:]).decode()
    return Mutant(file, node.lineno, gone, text)  # type: ignore[attr-defined]


def noticed_by(tests: list[str], log: Path) -> str | None:
    """The first test that fails on what the files say now; runs in a fork.

    Libraries are imported once, by the parent; the package anew by each fork.
    """
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            for stream in (1, 2):
                os.dup2(out, stream)
            import pytest

            imported = "ignore::pytest.PytestAssertRewriteWarning"
            arguments = ["-x", "-q", "--tb=no", "-p", "no:cacheprovider", "-W", imported]
            os._exit(int(pytest.main([*arguments, *tests])))
        except BaseException:  # noqa: BLE001 - a fork reports by its exit status
            traceback.print_exc()
            os._exit(9)
    deadline, status = time.monotonic() + LIMIT_S, None
    while status is None and time.monotonic() < deadline:
        pid, code = os.waitpid(child, os.WNOHANG)
        status = code if pid else time.sleep(0.05)
    if status is None:
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return "no end"
    if status == 0:
        return None
    failed = [line for line in log.read_text().splitlines() if line.startswith(("FAILED", "ERROR"))]
    return (
        failed[0].partition(" ")[2].partition(" - ")[0].rpartition("/")[2]
        if failed
        else "nothing could be run"
    )


def main() -> None:
    """Mutate, test, report."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="*", help="beginnings of the files' names")
    parser.add_argument("--list", action="store_true", help="print the mutants, test nothing")
    args = parser.parse_args()
    files = [f for f in TESTS if not args.files or f.startswith(tuple(args.files))]
    sources = {f: (REPOSITORY / "offline_rlvr" / f).read_text() for f in files}
    found = sorted(mutant for file in files for mutant in mutants(file, sources[file]))
    if args.list:
        for mutant in found:
            print(f"{mutant.file}:{mutant.line}: {mutant.name}")
        return
    import lightning.pytorch  # noqa: F401 - paid for once
    import math_verify  # noqa: F401
    import peft  # noqa: F401
    import transformers  # noqa: F401

    survivors = 0
    print("| file | taken away | noticed by |\n|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for part in ("offline_rlvr", "tests", "pools", "configs"):
            skip = shutil.ignore_patterns("__pycache__")
            shutil.copytree(REPOSITORY / part, Path(folder) / part, ignore=skip)
        shutil.copy(REPOSITORY / "pyproject.toml", folder)
        os.chdir(folder)
        sys.path.insert(0, folder)
        os.environ["PYTHONPATH"], sys.dont_write_bytecode = folder, True
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        for mutant in found:
            path = Path("offline_rlvr", mutant.file)
            path.write_text(mutant.text)
            answer = noticed_by(TESTS[mutant.file], Path("log"))
            path.write_text(sources[mutant.file])
            reason = EQUIVALENT.get((mutant.file, mutant.name))
            survivors += answer is None and reason is None
            shown = answer or (f"none: {reason}" if reason else "NONE")
            what = mutant.name.replace("|", "\\|")
            print(f"| {mutant.file}:{mutant.line} | `{what}` | {shown} |", flush=True)
    sys.exit(bool(survivors))


if __name__ == "__main__":
    main()
