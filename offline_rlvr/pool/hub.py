"""A pool on the Hugging Face Hub: a data set repository with exactly the pool's files and its card.

What is pushed is checked before, what is pulled after the transfer: hashes, schema and every row.
No code runs from a repository.
"""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from offline_rlvr.durable import make_folder, publish_folder
from offline_rlvr.errors import ConfigError, OfflineRlvrError, ResourceError
from offline_rlvr.hub import explained, hub_api
from offline_rlvr.pool.card import CARD_NAME
from offline_rlvr.pool.commits import COMMIT_FOLDER
from offline_rlvr.pool.reader import Pool
from offline_rlvr.pool.snapshot import IDENTITY_NAME, take_snapshot
from offline_rlvr.pool.timing import FILE_NAME

if TYPE_CHECKING:
    from huggingface_hub import HfApi

#: Everything that a repository may hold of a pool. The hub matches `*` against `/`, too.
PATTERNS = [
    IDENTITY_NAME,
    CARD_NAME,
    FILE_NAME,
    f"{COMMIT_FOLDER}/*.json",
    "samples/part-*.parquet",
    "grades/*/part-*.parquet",
]


def push(
    path: Path,
    repo_id: str,
    *,
    private: bool = True,
    revision: str | None = None,
    api: "HfApi | None" = None,
) -> str:
    """Upload a pool; typed again, only what is new.

    Args:
        path: The pool's folder.
        repo_id: `OWNER/NAME`; made when missing. Its other pool files are removed.
        private: Whether a new repository is private; an existing one stays as it is.
        revision: Branch to upload to, made when missing; by default `main`.
        api: The hub; by default the one of `HF_ENDPOINT` with the stored login.

    Returns:
        The commit on the hub.

    Raises:
        DataError: The pool is damaged; nothing was sent.
        ConfigError: No pool, not logged in, or no right to write.
        ResourceError: The hub cannot be reached.
    """
    snapshot = take_snapshot(path, "hash")
    commits = [f"{COMMIT_FOLDER}/{logged.commit.commit:08d}.json" for logged in snapshot.log]
    files = [
        IDENTITY_NAME,
        CARD_NAME,
        FILE_NAME,
        *commits,
        *(entry.path for entry in snapshot.files),
    ]
    hub = api or hub_api()
    with explained(repo_id, revision):
        hub.create_repo(repo_id, repo_type="dataset", private=private, exist_ok=True)
        if revision is not None:
            hub.create_branch(repo_id, branch=revision, repo_type="dataset", exist_ok=True)
        done = hub.upload_folder(
            repo_id=repo_id,
            repo_type="dataset",
            folder_path=path,
            revision=revision,
            allow_patterns=files,
            delete_patterns=PATTERNS[3:],
            commit_message=f"Pool {snapshot.hash[:12]}, commit {snapshot.commit}",
        )
        return done.oid


def pull(
    repo_id: str, path: Path, *, revision: str | None = None, api: "HfApi | None" = None
) -> str:
    """Download a pool, check it, and only then give it its name.

    Args:
        repo_id: `OWNER/NAME`.
        path: The folder to make. What an interrupted download left beside it is used.
        revision: Branch, tag or commit; by default the newest commit of `main`.
        api: See `push`.

    Returns:
        The commit on the hub.

    Raises:
        ConfigError: `path` exists, no such repository or revision, or it holds no pool.
        DataError: What was downloaded is not a whole pool; there is no `path`.
        ResourceError: The hub cannot be reached, or the folder cannot be written.
    """
    if path.exists() or path.is_symlink():
        raise ConfigError(f"{path} exists already", hint="choose another folder")
    hub = api or hub_api()
    with explained(repo_id, revision):
        commit = hub.dataset_info(repo_id, revision=revision).sha
    if commit is None:
        raise ResourceError(f"the hub names no commit of {repo_id}", hint="try again later")

    def fill(folder: Path) -> None:
        with explained(repo_id, revision):
            hub.snapshot_download(
                repo_id,
                repo_type="dataset",
                revision=commit,
                local_dir=folder,
                allow_patterns=PATTERNS,
            )
        try:
            Pool.open(folder).verify()
        except OfflineRlvrError:
            shutil.rmtree(folder)
            raise
        shutil.rmtree(folder / ".cache", ignore_errors=True)

    make_folder(path.parent)
    publish_folder(path, fill, resume=True)
    return commit
