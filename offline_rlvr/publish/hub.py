"""A run on the Hugging Face Hub: a model that loads as it is, its card, and the run's record.

In the root lie the newest or best checkpoint's weights or adapter with the tokenizer; in `run/`
lies what proves and explains them, enough for the questions of `run verify` and the report. The
optimizer stays.
"""

import warnings
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING

from offline_rlvr.errors import DataError
from offline_rlvr.evaluation import best_update, read_evaluations
from offline_rlvr.hub import explained, hub_api
from offline_rlvr.lock import WriterLock
from offline_rlvr.publish.card import render
from offline_rlvr.trainer import checkpoints
from offline_rlvr.trainer.folder import RunFolder

if TYPE_CHECKING:
    from huggingface_hub import HfApi

CARD_NAME = "README.md"
#: Of the run folder; evaluations too, `profile.md` and `report.html` where there are.
RECORD = (
    "run.json",
    "config.yaml",
    "plan.parquet",
    "metrics.jsonl",
    "ledger.jsonl",
    "ledger.discarded.jsonl",
    "report.html",
    "evaluations/*.parquet",
)
#: What an earlier push may have left in the repository.
OURS = ("run/*", "*.safetensors", "*.json", "*.jinja")


def push(
    path: Path,
    repo_id: str,
    *,
    private: bool = True,
    revision: str | None = None,
    pool_repo: str | None = None,
    best: bool = False,
    api: "HfApi | None" = None,
) -> str:
    """Upload a run's newest checkpoint, or its best, with its card and record, in one commit.

    Args:
        path: The run's folder.
        repo_id: `OWNER/NAME`; made when missing. Files of an earlier push are replaced.
        private: Whether a new repository is private; an existing one stays as it is.
        revision: Branch to upload to, made when missing; by default `main`.
        pool_repo: Data set repository of the pool, for the card.
        best: Send the checkpoint with the best held-out accuracy (`train.keep_best`).
        api: The hub; by default the one of `HF_ENDPOINT` with the stored login.

    Returns:
        The commit on the hub.

    Raises:
        DataError: No checkpoint yet, damaged, or not exactly once; nothing was sent.
        BusyError: The run is being trained.
        ConfigError: Not logged in, or no right to write.
        ResourceError: The hub cannot be reached.
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    run = RunFolder.open(path)
    lock = WriterLock(path)  # a training would prune the checkpoint that is being sent
    try:
        chosen = _best(run) if best else None
        card = render(path, pool_repo, chosen).encode()
        files = _files(run, chosen)
        hub = api or hub_api()
        with explained(repo_id, revision), warnings.catch_warnings():
            # The plan and the evaluations are data files, and belong to this model.
            warnings.filterwarnings("ignore", message=".*about to commit a data file.*")
            hub.create_repo(repo_id, private=private, exist_ok=True)
            if revision is not None:
                hub.create_branch(repo_id, branch=revision, exist_ok=True)
            stale = [
                name
                for name in hub.list_repo_files(repo_id, revision=revision)
                if name not in files and any(fnmatch(name, pattern) for pattern in OURS)
            ]
            changes = [
                CommitOperationAdd(CARD_NAME, card),
                *(CommitOperationAdd(name, file) for name, file in files.items()),
                *(CommitOperationDelete(name) for name in stale),
            ]
            name = f"Run {path.resolve().name}"
            return hub.create_commit(repo_id, changes, revision=revision, commit_message=name).oid
    finally:
        lock.release()


def _best(run: RunFolder) -> int:
    best = best_update(read_evaluations(run.path))
    folder = best and checkpoints.folder_of(run.checkpoints, best[0])
    if not best or not folder or not folder.is_dir():
        raise DataError(
            f"{run.path} has no checkpoint of its best held-out accuracy",
            hint="train with evaluation.problems, evaluation.every and train.keep_best: true",
        )
    return best[0]


def _files(run: RunFolder, update: int | None) -> dict[str, Path]:
    """Name in the repository -> file; the newest checkpoint unless an update is given."""
    if update is None:
        chosen = checkpoints.newest(run.checkpoints, print)
    else:
        chosen = checkpoints.folder_of(run.checkpoints, update)
        checkpoints.verify(chosen)
    if chosen is None:
        raise DataError(f"{run.path} has no checkpoint yet")
    model = chosen / "model"
    files = {
        file.relative_to(model).as_posix(): file
        for file in sorted(model.rglob("*"))
        if file.is_file() and file.name != CARD_NAME  # PEFT writes an empty card
    }
    for pattern in RECORD:
        for file in sorted(run.path.glob(pattern)):
            files[f"run/{file.relative_to(run.path).as_posix()}"] = file
    return files
