"""The commit log: what belongs to a pool, and nothing else does.

`commits/00000007.json` names the files that commit 7 adds with their sha256, bytes, rows and group
ids. It is created exclusively, after its files are durable; each one carries the sha256 of the one
before (the first: of `pool.json`), so files of two pools cannot be mixed. Every JSON file is sealed
with a checksum over its content.

Nothing is ever taken back: a repair is a commit that names the files that no longer belong.
"""

import hashlib
import json
import re
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from offline_rlvr.errors import DataError, IncompatibleError
from offline_rlvr.pool.schema import SCHEMA_VERSION

COMMIT_FOLDER = "commits"
_COMMIT_NAME = re.compile(r"[0-9]{8}\.json")
VERIFIER_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+=-]{0,127}")
_PART_PATH = re.compile(rf"(samples|grades/{VERIFIER_ID.pattern})/part-[0-9]{{8}}\.parquet")
#: Identity and commits are what a pool is known by: nothing can be rebuilt without them.
RESTORE = "restore it from a copy of the pool"
#: A commit is a page of JSON; anything larger is not ours.
_MAX_JSON_BYTES = 64 << 20


def _safe_path(path: str) -> str:
    if not _PART_PATH.fullmatch(path):
        raise ValueError(f"unsafe or unknown path {path!r}")
    return path


class FileEntry(BaseModel):
    """A Parquet file of the pool. `path` is relative to the pool's folder."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    path: Annotated[str, AfterValidator(_safe_path)]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    bytes: Annotated[int, Field(ge=1)]
    rows: Annotated[int, Field(ge=1)]
    first_group_id: Annotated[int, Field(ge=0)]
    last_group_id: Annotated[int, Field(ge=0)]

    @property
    def verifier_id(self) -> str | None:
        """The verifier of a grades file; None for samples."""
        folder, *rest = self.path.split("/")
        return rest[0] if folder == "grades" else None


class Commit(BaseModel):
    """One atomic change of a pool.

    Attributes:
        commit: Its number; the first is 1.
        previous: sha256 of the commit before, or of pool.json.
        files: What it adds.
        drops: Problems drawn but not sampled, by reason.
        next_group_id: Where drawing continues after this commit.
        removes: Paths that earlier commits added and that no longer belong to the pool.
        verifier_in_use: Its grades count again, as if it had completed them here.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    schema_version: int
    commit: Annotated[int, Field(ge=1)]
    previous: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    files: list[FileEntry]
    drops: dict[str, Annotated[int, Field(ge=0)]]
    next_group_id: Annotated[int, Field(ge=0)]
    removes: list[Annotated[str, AfterValidator(_safe_path)]] = []
    verifier_in_use: Annotated[str, Field(pattern=rf"^{VERIFIER_ID.pattern}$")] | None = None

    def sealed(self) -> bytes:
        """Its file; the last two entries are in it only when they say something."""
        body = self.model_dump()
        for name in ("removes", "verifier_in_use"):
            if not body[name]:
                del body[name]
        return seal(body)


class Logged(NamedTuple):
    """A commit and the sha256 of its file."""

    commit: Commit
    digest: str


def sha256(data: Any) -> str:
    """Hexadecimal sha256 of bytes."""
    return hashlib.sha256(data).hexdigest()


def seal(body: dict[str, Any]) -> bytes:
    """The JSON file of `body`, its last key a checksum of all the others."""
    plain = json.dumps(body, allow_nan=False)
    sealed = {**body, "checksum": sha256(plain.encode())}
    return (json.dumps(sealed, indent=1, allow_nan=False) + "\n").encode()


def read_sealed(path: Path, hint: str = RESTORE) -> tuple[dict[str, Any], str]:
    """The body of a sealed JSON file, and the sha256 of the file.

    Args:
        path: The file.
        hint: What to do when it is damaged.

    Raises:
        DataError: Missing, not a regular file, or not byte for byte what `seal` wrote.
        IncompatibleError: Written by a newer version of this package.
    """
    data = _read_small(path, hint)
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise DataError(f"{path} is damaged: not a JSON object", hint=hint)
    version = body.get("schema_version")
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise IncompatibleError(
            f"{path} has schema version {version}; this program reads up to {SCHEMA_VERSION}",
            hint="pip install --upgrade offline-rlvr",
        )
    checksum = body.pop("checksum", None)
    try:
        whole = checksum is not None and seal(body) == data
    except (ValueError, RecursionError):
        whole = False
    if not whole:
        raise DataError(
            f"{path} is damaged: its checksum does not fit its content",
            hint=hint,
        )
    return body, sha256(data)


def read_log(root: Path, genesis: str) -> list[Logged]:
    """Every commit of a pool in order.

    Args:
        root: The pool's folder.
        genesis: sha256 of its pool.json.

    Raises:
        DataError: A commit is missing, damaged or belongs to another pool; names the file.
        IncompatibleError: A commit has a newer schema.
    """
    folder = root / COMMIT_FOLDER
    if not folder.is_dir() or folder.is_symlink():
        raise DataError(f"{folder} is missing or is a link; every pool has it")
    names = sorted(p.name for p in folder.iterdir() if _COMMIT_NAME.fullmatch(p.name))
    log: list[Logged] = []
    added: set[str] = set()
    there: set[str] = set()
    previous = genesis
    for number, name in enumerate(names, 1):
        if name != f"{number:08d}.json":
            raise DataError(
                f"{folder / f'{number:08d}.json'} is missing, but {name} is there",
                hint=RESTORE,
            )
        logged = _read_commit(folder / name, number, previous)
        for path in logged.commit.removes:
            if path not in there:
                raise DataError(f"{folder / name} removes {path}, which is not in the pool")
            there.remove(path)
        for entry in logged.commit.files:
            if entry.path in added:
                raise DataError(f"{folder / name} adds {entry.path}, which was added before")
            added.add(entry.path)
            there.add(entry.path)
        log.append(logged)
        previous = logged.digest
    return log


def _read_commit(path: Path, number: int, previous: str) -> Logged:
    body, digest = read_sealed(path)
    try:
        commit = Commit.model_validate(body)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise DataError(f"{path}: {where}: {first['msg']}") from None
    if commit.commit != number:
        raise DataError(f"{path} says it is commit {commit.commit}")
    if commit.previous != previous:
        raise DataError(
            f"{path} does not follow the commit before it (or the pool.json) in this folder; "
            "files of two pools were mixed, or one was changed",
            hint=RESTORE,
        )
    return Logged(commit, digest)


def _read_small(path: Path, hint: str) -> bytes:
    """A small regular file, links refused."""
    if path.is_symlink():
        raise DataError(
            f"{path} is a symbolic link; only real files are read",
            hint="copy the folder with its links resolved: cp -rL",
        )
    if not path.is_file():
        raise DataError(f"{path} is missing", hint=hint)
    if path.stat().st_size > _MAX_JSON_BYTES:
        raise DataError(f"{path} is larger than any file of its kind")
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror})") from error
