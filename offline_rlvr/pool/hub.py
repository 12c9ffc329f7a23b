"""A pool on the Hugging Face Hub: a data set repository with exactly the pool's files and its card.

What is pushed is checked before, what is pulled after the transfer: hashes, schema and every row.
No code runs from a repository.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from offline_rlvr.durable import make_folder, publish_folder
from offline_rlvr.errors import ConfigError, OfflineRlvrError, ResourceError
from offline_rlvr.pool.card import CARD_NAME
from offline_rlvr.pool.commits import COMMIT_FOLDER
from offline_rlvr.pool.reader import Pool
from offline_rlvr.pool.snapshot import IDENTITY_NAME, take_snapshot

if TYPE_CHECKING:
    from huggingface_hub import HfApi

#: Everything that a repository may hold of a pool. The hub matches `*` against `/`, too.
PATTERNS = [
    IDENTITY_NAME,
    CARD_NAME,
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
    files = [IDENTITY_NAME, CARD_NAME, *commits, *(entry.path for entry in snapshot.files)]
    hub = api or _hub()
    with _explained(repo_id, revision):
        hub.create_repo(repo_id, repo_type="dataset", private=private, exist_ok=True)
        if revision is not None:
            hub.create_branch(repo_id, branch=revision, repo_type="dataset", exist_ok=True)
        done = hub.upload_folder(
            repo_id=repo_id,
            repo_type="dataset",
            folder_path=path,
            revision=revision,
            allow_patterns=files,
            delete_patterns=PATTERNS[2:],
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
    hub = api or _hub()
    with _explained(repo_id, revision):
        commit = hub.dataset_info(repo_id, revision=revision).sha
    if commit is None:
        raise ResourceError(f"the hub names no commit of {repo_id}", hint="try again later")

    def fill(folder: Path) -> None:
        with _explained(repo_id, revision):
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


def _hub() -> "HfApi":
    from huggingface_hub import HfApi

    return HfApi(library_name="offline-rlvr")


@contextmanager
def _explained(repo_id: str, revision: str | None) -> Iterator[None]:
    """Every way in which the hub refuses, told apart."""
    from huggingface_hub import errors as hub

    login = "hf auth login, with a token that may do this"
    try:
        yield
    except hub.HFValidationError as error:
        raise ConfigError(
            f"{repo_id!r} cannot name a repository: {error}", hint="it looks like OWNER/NAME"
        ) from error
    except hub.RevisionNotFoundError as error:
        raise ConfigError(f"{repo_id} has no revision {revision!r}") from error
    except hub.RepositoryNotFoundError as error:
        raise ConfigError(
            f"there is no data set {repo_id} that this login may see",
            hint=f"check the name; for a private one: {login}",
        ) from error
    except hub.LocalTokenNotFoundError as error:
        raise ConfigError("not logged in to the hub", hint=login) from error
    except hub.OfflineModeIsEnabled as error:
        raise ResourceError(
            "the hub is switched off by HF_HUB_OFFLINE", hint="unset HF_HUB_OFFLINE"
        ) from error
    except hub.HfHubHTTPError as error:
        if error.response.status_code in (401, 403):
            raise ConfigError(f"the hub refuses {repo_id}: {error}", hint=login) from error
        raise _unreachable(error) from error
    # Whatever goes wrong below HTTP: the name is of the HTTP library that the hub library uses.
    except (
        hub.HTTPError,  # pyright: ignore[reportPrivateImportUsage]
        hub.LocalEntryNotFoundError,
        ConnectionError,
    ) as error:
        raise _unreachable(error) from error


def _unreachable(error: Exception) -> ResourceError:
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    return ResourceError(
        f"the hub cannot be used: {reason}",
        hint="check the network (and HF_ENDPOINT), then type the same command again",
    )
