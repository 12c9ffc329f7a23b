"""Checkpoints that are whole or ignored: a folder with a manifest, published by one rename.

checkpoints/update-000020/
    model/          weights or adapter, loadable by transformers / PEFT / vLLM as it is
    optimizer.pt    optimizer and scheduler states (loaded with weights_only)
    state.json      applied updates, anchors, metric windows
    MANIFEST.json   bytes and sha256 of every other file
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.plugins.io import CheckpointIO
from torch import Tensor

from offline_rlvr.durable import TMP_PREFIX, file_sha256, publish_folder
from offline_rlvr.errors import DataError, OfflineRlvrError

MANIFEST = "MANIFEST.json"
#: Key of our own state in the dictionary that Lightning hands to a `CheckpointIO`.
STATE = "offline_rlvr"
#: What Lightning's dictionary must hold for it to restore optimizer and scheduler.
TENSOR_KEYS = ("optimizer_states", "lr_schedulers")


class UpdateCheckpointIO(CheckpointIO):
    """Lightning's checkpoint dictionary <-> a checkpoint folder.

    Args:
        save_model: Writes the learner into a folder in its library's own format; also given the
            whole weights where the learner holds a part of each.
    """

    def __init__(self, save_model: Callable[[Path, dict[str, Tensor] | None], None]):
        self.save_model = save_model

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None
    ) -> None:
        """Publish the folder `path`; ResourceError and no `path` when a write is refused."""

        def fill(folder: Path) -> None:
            self.save_model(folder / "model", checkpoint["state_dict"] or None)
            torch.save({key: checkpoint[key] for key in TENSOR_KEYS}, folder / "optimizer.pt")
            (folder / "state.json").write_text(json.dumps(checkpoint[STATE], indent=1))
            files = {
                str(file.relative_to(folder)): {
                    "bytes": file.stat().st_size,
                    "sha256": file_sha256(file),
                }
                for file in sorted(folder.rglob("*"))
                if file.is_file()
            }
            (folder / MANIFEST).write_text(json.dumps(files, indent=1))

        publish_folder(Path(path), fill)

    def load_checkpoint(
        self, path: Any, map_location: Any | None = None, weights_only: bool | None = True
    ) -> dict[str, Any]:
        """What Lightning restores; the weights are read by the module from `path/model`."""
        folder = Path(path)
        verify(folder)
        tensors = torch.load(folder / "optimizer.pt", map_location=map_location, weights_only=True)
        return {
            "pytorch-lightning_version": "2.6.0",
            "epoch": 0,
            "global_step": 0,
            "state_dict": {},
            **tensors,
            STATE: {**read_state(folder), "folder": str(folder)},
        }

    def remove_checkpoint(self, path: Any) -> None:
        """Delete a checkpoint folder."""
        shutil.rmtree(Path(path))


def folder_of(checkpoints: Path, update: int) -> Path:
    """Where the checkpoint of an update lies."""
    return checkpoints / f"update-{update:06d}"


def verify(folder: Path) -> None:
    """Check every file of a checkpoint against its manifest.

    Raises:
        DataError: Naming the first file that is missing, cut, changed or unreadable.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        for name, facts in manifest.items():
            file = folder / name
            if file.stat().st_size != facts["bytes"] or file_sha256(file) != facts["sha256"]:
                raise DataError(f"{file} is damaged: its bytes are not those of {MANIFEST}")
        if "state.json" not in manifest or "optimizer.pt" not in manifest:
            raise DataError(f"{folder / MANIFEST} does not name state.json and optimizer.pt")
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(f"the checkpoint {folder} is damaged: {error}") from error


def read_state(folder: Path) -> dict[str, Any]:
    """`state.json` of a verified checkpoint."""
    return json.loads((folder / "state.json").read_text())


def newest(checkpoints: Path, say: Callable[[str], None]) -> Path | None:
    """The newest whole checkpoint; damaged newer ones are moved aside (never deleted) and reported.

    Args:
        checkpoints: The run's `checkpoints` folder.
        say: Receives a line for each damaged checkpoint.

    Raises:
        DataError: There were checkpoints, and none of them is whole.
    """
    for leftover in checkpoints.glob(f"{TMP_PREFIX}*"):  # of a save that was killed
        shutil.rmtree(leftover)
    for folder in sorted(checkpoints.glob("update-??????"), reverse=True):
        try:
            verify(folder)
        except OfflineRlvrError as error:
            aside = _free_name(folder.with_name(folder.name + ".damaged"))
            folder.rename(aside)
            say(f"{error.message}; moved to {aside.name}")
            continue
        return folder
    if any(checkpoints.glob("*.damaged*")):
        raise DataError(
            f"no whole checkpoint is left in {checkpoints}",
            hint="restore one from a copy, or remove the damaged ones to start from the beginning",
        )
    return None


def prune(checkpoints: Path, keep: int) -> list[Path]:
    """Remove all but the newest `keep` checkpoints; returns those that stay, oldest first."""
    folders = sorted(checkpoints.glob("update-??????"))
    for folder in folders[:-keep]:
        shutil.rmtree(folder)
    return folders[-keep:]


def _free_name(path: Path) -> Path:
    number = 1
    candidate = path
    while candidate.exists():
        number += 1
        candidate = path.with_name(f"{path.name}-{number}")
    return candidate
