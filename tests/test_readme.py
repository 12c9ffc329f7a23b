"""The README's commands and its Python snippet, run as they stand."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

REPOSITORY = pathlib.Path(__file__).parents[1]
README = (REPOSITORY / "README.md").read_text()


def blocks(language, marker):
    """All blocks of a language that hold a marker, one after another."""
    found = re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
    return "\n".join(block for block in found if marker in block)


@pytest.mark.slow
def test_the_job_by_hand_runs_as_written(tmp_path):
    (tmp_path / "configs").symlink_to(REPOSITORY / "configs")
    commands = blocks("bash", "offline-rlvr ").replace("source .venv/bin/activate\n", "")
    environment = {
        **os.environ,
        "PATH": f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}",
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(tmp_path / "cache"),
    }
    options = {"cwd": tmp_path, "env": environment, "check": True, "text": True}
    subprocess.run(["bash", "-euo", "pipefail", "-c", commands], **options)
    for run in ("ggpo", "pkl"):
        assert (tmp_path / "runs" / run / "checkpoints").is_dir()
    assert (tmp_path / "runs/ggpo/report.html").is_file()
    snippet = (
        blocks("python", "load_dataset") + "\nassert len(groups) >= len(training_ids) > 3000\n"
    )
    subprocess.run([sys.executable, "-c", snippet], **options)


def test_files_and_verbs_that_the_readme_names_are_there():
    for name in re.findall(r"^  (\w+)/ ", README, re.MULTILINE):
        assert (REPOSITORY / "offline_rlvr" / name).is_dir(), name
    for path in re.findall(r"`(offline_rlvr/[\w/*.]+|configs/[\w/.]+)`", README):
        assert list(REPOSITORY.glob(path)), path
    assert (REPOSITORY / ".github/quickstart.png").is_file()


def test_the_table_of_faults_names_tests_that_are_there():
    """`FOLDER FILE::NAME, NAME` in the second column of each row."""
    folders = {"P": "pool", "V": "verifier", "T": "trainer"}
    table = (REPOSITORY / "tests/faults/README.md").read_text()
    named = 0
    for row in re.findall(r"^\| [^|]+ \| ([^|]+) \| [^|]+ \|$", table, re.MULTILINE):
        source = None
        for entry in re.findall(r"`([^`]+)`", row):
            letter, _, rest = entry.rpartition(" ")
            path, _, name = rest.partition("::")
            if path.endswith(".py"):
                folder = folders.get(letter, "faults")
                source = REPOSITORY / ("" if "/" in path else f"tests/{folder}") / path
                assert source.is_file(), entry
            else:
                name = path
            assert source is not None
            assert not name or f"def {name}(" in source.read_text(), entry
            named += 1
    assert named > 40
