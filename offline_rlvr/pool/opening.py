"""Open a pool's folder for writing: same identity, leftovers removed."""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from offline_rlvr.dotted import leaves
from offline_rlvr.durable import TMP_PREFIX, make_folder, sync_folder, write_file, writing
from offline_rlvr.errors import ConfigError, DataError, IncompatibleError
from offline_rlvr.pool.commits import COMMIT_FOLDER, VERIFIER_ID, seal
from offline_rlvr.pool.schema import SCHEMA_VERSION
from offline_rlvr.pool.snapshot import (
    IDENTITY_NAME,
    Check,
    Snapshot,
    check_identity,
    read_identity,
    take_snapshot,
)

#: These entries of an identity are recorded when the pool is made, and not compared afterwards:
#: later commits may come from other versions, and the evaluation set may change.
INFORMATIONAL = ("versions", "overlap")
#: Damaged files that a repair took out of the pool lie here; nothing reads or deletes them.
QUARANTINE = "quarantine"


def plain_identity(identity: Mapping[str, Any]) -> dict[str, Any]:
    """The identity as JSON gives it back (tuples become lists), so that two of them compare equal.

    Raises:
        DataError: Not representable in JSON, or without a usable group_size and vocab_size.
    """
    try:
        plain = json.loads(json.dumps(dict(identity), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise DataError(f"the identity of a pool must be plain JSON values: {error}") from None
    check_identity(plain, "the identity of a pool")
    return plain


def check_verifier_id(verifier_id: str) -> None:
    """Refuse a verifier id that cannot name a folder."""
    if not VERIFIER_ID.fullmatch(verifier_id):
        raise DataError(
            f"verifier id {verifier_id!r}; allowed: up to 128 letters, digits and . _ + = - "
            "(the first a letter or digit)"
        )


def refuse_foreign(root: Path) -> None:
    """Refuse a folder that holds anything but a pool or what a killed creation left."""
    if os.path.lexists(root / IDENTITY_NAME):
        return
    if has_commits(root):
        raise DataError(
            f"{root / IDENTITY_NAME} is missing, but the pool has commits",
            hint="restore it from a copy of the pool",
        )
    foreign = [
        entry.name
        for entry in root.iterdir()
        if not entry.name.startswith(".") and entry.name not in ("samples", COMMIT_FOLDER)
    ]
    if foreign:
        raise ConfigError(
            f"{root} is neither a pool nor empty (it holds {sorted(foreign)[0]!r})",
            hint="choose another folder",
        )


def has_commits(root: Path) -> bool:
    """Whether anything was ever committed there: before, a pool may still become another one."""
    commits = root / COMMIT_FOLDER
    return commits.is_dir() and any(not p.name.startswith(TMP_PREFIX) for p in commits.iterdir())


def prepare(root: Path, identity: dict[str, Any], check: Check) -> Snapshot:
    """Create or continue the pool at `root`; the caller holds its lock.

    A pool without a commit takes the identity that is given: a setting that was found wrong only
    after the folder was made can be put right there.

    Raises:
        IncompatibleError: The pool has another identity; lists each difference.
        DataError: The pool is damaged.
        ResourceError: The folder cannot be written.
    """
    make_folder(root / COMMIT_FOLDER)
    make_folder(root / "samples")
    body = {"schema_version": SCHEMA_VERSION, "identity": identity}
    if not os.path.lexists(root / IDENTITY_NAME):
        write_file(root / IDENTITY_NAME, seal(body))
    stored, _ = read_identity(root)
    if not has_commits(root) and differences(stored, identity):
        write_file(root / IDENTITY_NAME, seal(body), replace=True)
        stored = identity
    refuse_other(root, stored, identity)
    snapshot = take_snapshot(root, check)
    with writing(root):
        _settle(root, snapshot)
    return snapshot


def _settle(root: Path, snapshot: Snapshot) -> None:
    """Delete files that no commit names, set aside those that a commit removes, and make the names
    of all others durable.

    A killed process may have published a name without its fsync; a later commit must not build on
    that.
    """
    committed, removed = {entry.path for entry in snapshot.files}, snapshot.removed
    for folder in _folders(root):
        for path in folder.iterdir():
            relative = path.relative_to(root).as_posix()
            ours = path.name.startswith(TMP_PREFIX) or (
                folder not in (root, root / COMMIT_FOLDER)
                and path.name.startswith("part-")
                and path.name.endswith(".parquet")
            )
            if relative in removed:
                _set_aside(root, relative)
            elif ours and relative not in committed and not path.is_dir():
                os.unlink(path)
        sync_folder(folder)
    if os.access(root.parent, os.R_OK):
        sync_folder(root.parent)


def _set_aside(root: Path, relative: str) -> None:
    """Move whatever has a removed file's name to the quarantine; what lies there stays there."""
    target = root / QUARANTINE / relative
    make_folder(target.parent)
    number = 0
    while os.path.lexists(target):
        number += 1
        target = target.with_name(f"{Path(relative).name}.{number}")
    os.replace(root / relative, target)
    sync_folder(target.parent)


def _folders(root: Path) -> Iterator[Path]:
    yield from (root / "samples", root / COMMIT_FOLDER)
    grades = root / "grades"
    if grades.is_dir():
        yield from (p for p in sorted(grades.iterdir()) if p.is_dir() and not p.is_symlink())
        yield grades
    yield root


def differences(stored: Mapping[str, Any], given: Mapping[str, Any]) -> list[str]:
    """One line for each setting in which two identities differ; empty when they are one pool's."""
    old, new = (
        {name: _comparable(value) for name, value in leaves(identity)}
        for identity in (stored, given)
    )
    return [
        f"  {key}: {old.get(key, '(absent)')} -> {new.get(key, '(absent)')}"
        for key in sorted(old.keys() | new.keys())
        if old.get(key, "(absent)") != new.get(key, "(absent)")
        and key.split(".")[0] not in INFORMATIONAL
    ]


def refuse_other(root: Path, stored: dict[str, Any], given: dict[str, Any]) -> None:
    """Refuse to go on with a pool that is of another identity.

    Raises:
        IncompatibleError: Lists each difference.
    """
    if lines := differences(stored, given):
        raise IncompatibleError(
            f"{root} was built with other settings (pool -> now):\n" + "\n".join(lines),
            hint="go back to the pool's settings, or build into another folder",
        )


def _comparable(value: Any) -> str:
    """A setting as JSON text; 1 and 1.0 are one value, true is another."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value)
