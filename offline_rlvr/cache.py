"""What several runs need alike: computed once, kept in the user's cache by what it depends on.

    $OFFLINE_RLVR_CACHE, or $XDG_CACHE_HOME/offline_rlvr, or ~/.cache/offline_rlvr
        KIND/KEY.kept      32 bytes of sha256, then the data

A pool may be read-only, and holds only what a commit names; so nothing of this lies there. The
folder may be deleted at any time. Data that are damaged are reported and made again; what cannot be
kept is reported. Writers make files of their own and rename them, so any number of runs may share
the folder.
"""

import contextlib
import hashlib
import json
import os
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from offline_rlvr.durable import make_folder, write_file, writing
from offline_rlvr.errors import ResourceError

#: Files used longest ago are removed above this size.
MAX_BYTES = 32 << 30
#: A writer's own file that is older belongs to no living writer.
LEFT_OVER_S = 24 * 3600
DIGEST_BYTES = hashlib.sha256().digest_size


def cache_folder(kind: str) -> Path:
    """Where data of a kind are kept."""
    own, shared = os.environ.get("OFFLINE_RLVR_CACHE"), os.environ.get("XDG_CACHE_HOME")
    root = Path(own) if own else Path(shared or Path.home() / ".cache") / "offline_rlvr"
    return root / kind


class Cache:
    """Bytes by the facts that they depend on.

    Args:
        folder: Where they are kept.
        what: What they are, for people: `log-probs of the initial policy`.
        say: Receives a line when data are reused, are damaged or cannot be kept.
    """

    def __init__(self, folder: Path, what: str, say: Callable[[str], None] = print):
        self.folder = folder
        self.what = what
        self.say = say

    def get(self, facts: Mapping[str, Any]) -> bytes | None:
        """What was kept under these facts (JSON values); None where there is nothing whole."""
        path = self._path(facts)
        try:
            content = path.read_bytes()
        except OSError:
            return None
        digest, data = content[:DIGEST_BYTES], content[DIGEST_BYTES:]
        if hashlib.sha256(data).digest() != digest:
            self.say(f"{path} is damaged and is made again")
            return None
        self.say(f"{self.what}: reused from {path}")
        with contextlib.suppress(OSError):  # read-only: then nothing is removed either
            os.utime(path)
        return data

    def keep(self, facts: Mapping[str, Any], data: bytes) -> None:
        """Keep data under these facts."""
        path = self._path(facts)
        own = path.with_name(f"{path.name}-{uuid.uuid4().hex}")
        try:
            make_folder(self.folder)
            write_file(own, hashlib.sha256(data).digest() + data)
            with writing(path):
                os.replace(own, path)
                self._prune(path)
        except ResourceError as error:
            self.say(f"{self.what} are not kept for other runs: {error}")

    def _path(self, facts: Mapping[str, Any]) -> Path:
        key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
        return self.folder / f"{key[:32]}.kept"

    def _prune(self, newest: Path) -> None:
        """Remove what was used longest ago, and what killed writers left."""
        found = []
        for entry in self.folder.iterdir():
            with contextlib.suppress(FileNotFoundError):  # another run has just removed it
                facts = entry.stat()
                found.append((facts.st_mtime, facts.st_size, entry))
        total, now = 0, time.time()
        for used, size, entry in sorted(found, reverse=True):
            total += size
            left_over = entry.suffix != ".kept" and now - used > LEFT_OVER_S
            if entry != newest and (total > MAX_BYTES or left_over):
                entry.unlink(missing_ok=True)
