"""Take away what makes files durable and runs provable, one thing at a time: does a test notice?

    python scripts/mutate_durability.py [FILE ...]     # e.g. durable.py stream; default: all
    python scripts/mutate_durability.py --list

Each mutant lacks one call (an fsync, a rename, a check, a lock) or one refusal (`if ...: raise`) of
one file, in a temporary copy of the repository. The tests of that file run until the first failure,
after they have all passed once on the file as it is.
Prints a table: what was taken away, and the test that noticed; exit code 1 where none did and no
reason is known (`EQUIVALENT`).
"""

import argparse
import ast
import contextlib
import importlib
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

REPOSITORY = Path(__file__).parents[1]
#: What a statement that calls one of these does is missed when it is gone.
CALLS = {
    "fsync", "_sync", "sync_folder", "_install", "_publish", "rename", "replace", "link", "unlink",
    "write_file", "append_file", "make_folder", "remove_folder", "remove_leftovers", "rmtree",
    "publish_folder", "_rewrite", "rewind", "flush", "prune", "_prune", "_keep", "verify",
    "read_state", "read_table", "check_ledger", "check_space", "_check_settings", "_check_plan",
    "_check_metrics", "_check_responses", "_refuse_others", "require_finite", "acquire", "release",
    "_check_first_update", "callback", "load_state_dict", "restore", "load_weights",
    "_refuse_links", "_make_room", "save_checkpoint", "write_evaluation", "refuse_foreign",
    "refuse_other", "_refuse_repeated", "_ready", "check_verifier_id", "_settle", "_set_aside",
    "add_commit", "verify_file", "check_schema", "check_identity", "read_commits", "finish",
    "_refuse_linked_folders", "_check_residues", "copyfile",
}  # fmt: skip
CRASH, FAULTS = "tests/pool/test_pool_crash.py", "tests/faults/test_train_faults.py"
VERIFY, RESUME = "tests/trainer/test_verify.py", "tests/trainer/test_resume.py"
STOPPED, RUN = "tests/trainer/test_resume_equivalence.py", "tests/trainer/test_run.py"
ANCHORS, RANKS = "tests/trainer/test_anchors.py", "tests/trainer/test_ranks.py"
FOLDERS, HOSTILE = "tests/faults/test_run_folders.py", "tests/faults/test_hostile_runs.py"
DAMAGE, REPAIR = "tests/pool/test_pool_damage.py", "tests/pool/test_pool_repair.py"
WRITER, DATA = "tests/pool/test_pool_writer.py", "tests/faults/test_data_faults.py"
LEFT = f"{RESUME}::test_what_killed_writers_left_is_removed"
LONGER = f"{RESUME}::test_more_updates_inside_an_anchor_window_are_refused_before_any_work"
FEWER = f"{RESUME}::test_fewer_checkpoints_are_kept_when_told_after_the_end"
REFUSED_START = f"{RESUME}::test_a_start_that_was_refused_leaves_nothing_to_the_next"
NOT_FINITE = f"{FAULTS}::test_an_update_that_is_not_finite_takes_no_step"
TOO_SMALL = f"{FAULTS}::test_a_disk_that_is_too_small_is_refused_before_any_work"
SHAPES = [
    f"{HOSTILE}::test_a_manifest_that_points_elsewhere",
    f"{HOSTILE}::test_a_link_in_a_checkpoint",
    f"{HOSTILE}::test_json_of_another_shape",
]
TORN, TWO = f"{FAULTS}::test_a_torn_last_line", f"{FAULTS}::test_two_trainings"
BASICS = [f"{RESUME}::test_a_second_ctrl_c_stops_at_once",
    "tests/pool/test_pool_build.py::test_typed_again_it_adds_nothing"]  # fmt: skip
#: The tests of each file, those that notice most and quick ones first.
TESTS: dict[str, list[str]] = {
    "cache.py": ["tests/test_cache.py", ANCHORS],
    "durable.py": ["tests/test_durable.py", "tests/stream", CRASH],
    "lock.py": ["tests/test_lock.py", TWO],
    "stream/journal.py": ["tests/stream", TORN, STOPPED],
    "stream/ledger.py": ["tests/stream", VERIFY],
    "stream/plan.py": ["tests/stream", VERIFY],
    "trainer/accumulate.py": [NOT_FINITE, "tests/trainer/test_accumulate.py"],
    "trainer/anchors.py": [VERIFY, FEWER, LONGER, STOPPED],
    "trainer/boundary.py": [f"{RESUME}::test_a_second_ctrl_c_stops_at_once", RUN, FEWER, STOPPED],
    "trainer/checkpoints.py": ["tests/trainer/test_checkpoints.py", VERIFY, LEFT, *SHAPES, FEWER,
        f"{RESUME}::test_a_damaged_checkpoint_is_moved_aside_and_the_one_before_it_used",
        f"{RESUME}::test_when_every_checkpoint_is_bad_a_person_decides", STOPPED],
    "trainer/evaluate.py": [f"{RESUME}::test_a_run_that_cannot_be_evaluated_says_why"],
    "trainer/folder.py": [VERIFY, FOLDERS, REFUSED_START, LONGER,
        f"{RESUME}::test_another_config_is_refused_and_names_what_differs"],
    "trainer/follow.py": [FOLDERS],
    "trainer/launch.py": [f"{RANKS}::test_an_error_of_the_first_process_is_told_as_it_is"],
    "trainer/module.py": [f"{RESUME}::test_an_update_out_of_turn_is_not_trained_on", NOT_FINITE,
        "tests/trainer/test_memory.py::test_another_error_is_not_taken_for_a_full_memory",
        f"{RESUME}::test_a_damaged_checkpoint_is_moved_aside_and_the_one_before_it_used",
        "tests/trainer/test_mismatch.py", RUN, STOPPED],
    "trainer/ranks.py": [f"{RANKS}::test_devices_that_are_not_there_are_refused",
        f"{RANKS}::test_all_processes_learn_what_one_of_them_met",
        f"{RANKS}::test_a_failure_while_weights_are_sharded_is_each_process_s_own"],
    "trainer/record.py": [VERIFY, LEFT, TORN, STOPPED],
    "trainer/run.py": [f"{RESUME}::test_a_run_whose_ledger_was_changed_is_not_continued", FEWER,
        f"{RESUME}::test_two_trainings_of_one_run_do_not_mix", RUN, TOO_SMALL, STOPPED],
    "trainer/space.py": [TOO_SMALL],
    "trainer/verify.py": [VERIFY, "tests/trainer/test_decisions.py"],
    "evaluation/files.py": ["tests/evaluation/test_evaluation_files.py"],
    "pool/commits.py": [DAMAGE, "tests/faults/test_hostile_files.py", REPAIR],
    "pool/committing.py": [DAMAGE],
    "pool/export.py": ["tests/pool/test_pool_living.py"],
    "pool/hub.py": ["tests/pool/test_pool_hub.py"],
    "pool/merge.py": ["tests/pool/test_pool_merge.py"],
    "pool/opening.py": [WRITER, DAMAGE, REPAIR,
        "tests/pool/test_pool_build.py::test_a_pool_without_a_commit_takes_other_settings",
        f"{CRASH}::test_power_cut_anywhere_in_a_repair"],
    "pool/repair.py": [REPAIR],
    "pool/snapshot.py": [DAMAGE, DATA, "tests/faults/test_hostile_files.py", REPAIR, WRITER],
    "pool/timing.py": ["tests/publish/test_publish.py::test_times_of_a_pool"],
    "pool/writer.py": [WRITER, DAMAGE, f"{CRASH}::test_a_disk_that_refuses",
        f"{CRASH}::test_lock_is_released_when_opening_fails",
        "tests/pool/test_pool_living.py::test_only_whole_grades_can_be_put_in_use",
        "tests/pool/test_pool_views.py"],
}  # fmt: skip
#: (file, what is taken away) -> why nothing is lost by it.
EQUIVALENT: dict[tuple[str, str], str] = {
    ("pool/hub.py", "if commit is None"): "a hub names the commit of every revision",
}
LIMIT_S = 600
#: In the copy of the repository: what the tests of the files as they are have built.
POOL = Path("built/small pool é")
#: There, too: the names of all modules that they have imported.
LIBRARIES = Path("libraries")


class Mutant(NamedTuple):
    """A file without one thing."""

    file: str
    line: int
    name: str
    text: str


def mutants(file: str, source: str) -> Iterator[Mutant]:
    """Every mutant of a file, in the order of its lines."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.If) and _refuses(node):
            yield _without(file, source, node.test, "if ", "False")
        elif isinstance(node, ast.For) and isinstance(node.body[-1], ast.Raise):
            yield _without(file, source, node.iter, "for ... in ", "()")
        elif isinstance(node, ast.Expr) and CALLS & set(_called(node.value)):
            yield _without(file, source, node, "", "pass")


def _refuses(node: ast.If) -> bool:
    return isinstance(node.body[-1], ast.Raise) or "sha256" in ast.unparse(node.test)


def _called(value: ast.expr) -> Iterator[str]:
    """The functions that a statement `f(...)` or `f(...) if ... else g(...)` calls."""
    if isinstance(value, ast.IfExp):
        yield from (*_called(value.body), *_called(value.orelse))
    elif isinstance(value, ast.Call):
        function = value.func
        yield function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _without(file: str, source: str, node: ast.AST, before: str, after: str) -> Mutant:
    lines = source.splitlines(keepends=True)
    starts = [sum(len(line.encode()) for line in lines[:n]) for n in range(len(lines))]
    data = source.encode()
    begin = starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
    end = starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]
    gone = before + " ".join(data[begin:end].decode().split())
    text = (data[:begin] + after.encode() + data[end:]).decode()
    return Mutant(file, node.lineno, gone, text)  # type: ignore[attr-defined]


class BuiltOnce:
    """For pytest: the small pool that the package as it is has built, not one for every mutant."""

    def pytest_fixture_setup(self, fixturedef: Any, request: Any) -> Path | None:
        """Instead of the fixture's own function, once there is such a pool."""
        if fixturedef.argname != "small_pool" or not POOL.exists():
            return None
        fixturedef.cached_result = (POOL.resolve(), fixturedef.cache_key(request), None)
        return POOL.resolve()


def noticed_by(tests: list[str], limit_s: float = LIMIT_S) -> str | None:
    """The first test that fails on what the files say now; runs in a fork.

    Libraries are imported once, by the parent; the package anew by each fork.
    """
    child, log = os.fork(), Path("log")
    if child == 0:
        try:
            os.setsid()
            out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            for stream in (1, 2):
                os.dup2(out, stream)
            import pytest

            imported = "ignore::pytest.PytestAssertRewriteWarning"
            arguments = ["-x", "-q", "--tb=no", "-p", "no:cacheprovider", "-W", imported]
            arguments += ["--basetemp", "t"]
            status = int(pytest.main([*arguments, *tests], [BuiltOnce()]))
            LIBRARIES.write_text("\n".join(filter(_is_library, sys.modules)))
            os._exit(status)
        except BaseException:  # noqa: BLE001 - a fork reports by its exit status
            traceback.print_exc()
            os._exit(9)
    deadline, status = time.monotonic() + limit_s, None
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
    if not failed:
        return "nothing could be run"
    file, _, test = failed[0].partition(" ")[2].partition(" - ")[0].partition("::")
    return f"{Path(file).name}::{test}"


def _is_library(name: str) -> bool:
    return "site-packages" in (getattr(sys.modules[name], "__file__", None) or "")


def copy_repository(folder: Path) -> None:
    """Go to a copy of what the tests need, which Python imports from here on."""
    for part in ("offline_rlvr", "tests", "pools", "configs"):
        skip = shutil.ignore_patterns("__pycache__")
        shutil.copytree(REPOSITORY / part, folder / part, ignore=skip)
    shutil.copy(REPOSITORY / "pyproject.toml", folder)
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    os.environ["PYTHONPATH"], sys.dont_write_bytecode = str(folder), True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"


def check_tests(tests: list[str]) -> None:
    """Without a change all tests pass; keep the pool that they build, import what they import."""
    if failed := noticed_by(list(dict.fromkeys(tests)), limit_s=3600):
        print(Path("log").read_text()[-3000:], file=sys.stderr)
        sys.exit(f"{failed} fails without any change")
    for pool in Path("t/pools0").glob("*"):
        shutil.copytree(pool, POOL)
    for name in LIBRARIES.read_text().split():  # paid for once
        with contextlib.suppress(Exception):
            importlib.import_module(name)


def main() -> None:
    """Mutate, test, report."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="*", help="beginnings of the files' names")
    parser.add_argument("--list", action="store_true", help="print the mutants, test nothing")
    parser.add_argument("--unchecked", action="store_true", help="the tests are known to pass")
    args = parser.parse_args()
    files = [f for f in TESTS if not args.files or f.startswith(tuple(args.files))]
    sources = {f: (REPOSITORY / "offline_rlvr" / f).read_text() for f in files}
    found = sorted(mutant for file in files for mutant in mutants(file, sources[file]))
    if args.list:
        for mutant in found:
            print(f"{mutant.file}:{mutant.line}: {mutant.name}")
        return
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        copy_repository(Path(folder))
        check_tests(BASICS if args.unchecked else [t for file in files for t in TESTS[file]])
        print("| file | taken away | noticed by |\n|---|---|---|", flush=True)
        for mutant in found:
            path = Path("offline_rlvr", mutant.file)
            path.write_text(mutant.text)
            answer = noticed_by(TESTS[mutant.file])
            path.write_text(sources[mutant.file])
            reason = EQUIVALENT.get((mutant.file, mutant.name))
            counts["noticed" if answer else "equivalent" if reason else "missed"] += 1
            shown = answer or (f"none: {reason}" if reason else "NONE")
            what = mutant.name.replace("|", "\\|")
            print(f"| {mutant.file}:{mutant.line} | `{what}` | {shown} |", flush=True)
    print(f"\n{len(found)} mutants: " + ", ".join(f"{n} {how}" for how, n in counts.items()))
    sys.exit(bool(counts["missed"]))


if __name__ == "__main__":
    main()
