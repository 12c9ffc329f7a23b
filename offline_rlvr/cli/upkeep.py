"""`offline-rlvr pool ...`: check a pool, repair it, put slices together, share it."""

import shlex
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from offline_rlvr.errors import DataError


def verify(pool: Path, *, deep: int | None = None, max_noise: float = 0.1) -> None:
    """Check hashes, schema and every row of a pool, and on request its log-probs.

    Parameters
    ----------
    pool
        The pool's folder.
    deep
        Also score this many groups again with the pool's own model.
    max_noise
        Most nats per token that a group's log-probs may differ by, on average.
    """
    from offline_rlvr.pool import Pool

    opened = Pool.open(pool)
    opened.verify()
    print(
        f"{pool}: {len(opened)} groups of {opened.group_size} responses in {opened.commit} commits "
        f"are whole; grades: {', '.join(opened.verifier_ids) or 'none'}; "
        f"hash {opened.hash[:12]}"
    )
    if deep is not None:
        from offline_rlvr.trainer.recheck import recheck

        noise = recheck(opened, deep, max_noise)
        print(
            f"log-probs of {noise.groups} groups ({noise.tokens} tokens) scored again: "
            f"mean |difference| {noise.mean:.3g} nats, largest {noise.largest:.3g} "
            f"(group {noise.group_of_largest})"
        )


def repair(pool: Path, *, quarantine: bool = False) -> None:
    """Say which files of a pool are damaged and what a repair would lose; on request repair it.

    Parameters
    ----------
    pool
        The pool's folder.
    quarantine
        Take the damaged files out of the pool and move them to POOL/quarantine.
    """
    from offline_rlvr.pool import repair as repairing
    from offline_rlvr.pool.show_damage import format_damage

    damage = repairing.repair(pool) if quarantine else repairing.inspect(pool)
    print(format_damage(pool, damage))
    if not damage.reasons:
        return
    name = shlex.quote(str(pool))
    if not quarantine:
        raise DataError(
            f"{pool} is damaged; nothing was changed",
            hint="restore these files from a copy of the pool, or take them out: "
            f"offline-rlvr pool repair {name} --quarantine",
        )
    print(f"they lie in {pool / 'quarantine'}; the rest is whole")
    if damage.lost:
        print(f"next: offline-rlvr {_refill(pool, name)}")
    if damage.ungraded:
        print(f"next: offline-rlvr pool grade {name} --verifier.name ... grades what is left")


def _refill(pool: Path, name: str) -> str:
    from offline_rlvr.pool.snapshot import read_identity

    if read_identity(pool)[0].get("generation") == "import":
        return f"pool import --config CONFIG FILE {name} reads the lost groups again"
    return f"pool build CONFIG -o {name} samples the lost groups again"


def merge(output: Path, *slices: Path, allow_missing: bool = False) -> None:
    """Put the pools of `pool build --slice I/N` together.

    Parameters
    ----------
    output
        The pool to make.
    slices
        The slices' folders, in any order.
    allow_missing
        Go without the slices that are not named.
    """
    from offline_rlvr.pool.merge import merge as join
    from offline_rlvr.pool.show_damage import format_merged

    print(format_merged(output, join(output, slices, allow_missing=allow_missing)))


def push(
    pool: Path,
    repo_id: str,
    *,
    private: Annotated[bool, Parameter(negative="--public")] = True,
    revision: str | None = None,
) -> None:
    """Upload a pool with its card to the Hugging Face Hub, as a data set repository.

    Parameters
    ----------
    pool
        The pool's folder.
    repo_id
        OWNER/NAME; made when missing.
    private
        Whether a new repository is private.
    revision
        Branch to upload to; by default main.
    """
    from offline_rlvr.pool.hub import push as upload

    commit = upload(pool, repo_id, private=private, revision=revision)
    print(f"{repo_id} at {commit}")
    print(f"to get it: offline-rlvr pool pull {repo_id} POOL --revision {commit}")


def pull(repo_id: str, pool: Path, *, revision: str | None = None) -> None:
    """Download a pool from the Hugging Face Hub and check every row of it.

    Parameters
    ----------
    repo_id
        OWNER/NAME.
    pool
        The folder to make.
    revision
        Branch, tag or commit; by default the newest commit of main.
    """
    from offline_rlvr.pool.hub import pull as download

    commit = download(repo_id, pool, revision=revision)
    print(
        f"{pool}: {repo_id} at {commit}  (next: offline-rlvr pool stats {shlex.quote(str(pool))})"
    )
