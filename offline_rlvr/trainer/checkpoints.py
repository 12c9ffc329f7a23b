"""Checkpoints that are whole or ignored: a folder with a manifest, published by one rename.

checkpoints/update-000020/
    model/          weights or adapter, loadable by transformers / PEFT / vLLM as it is
    optimizer.pt    optimizer and scheduler states (loaded with weights_only)
    state.json      applied updates, digest of their ledger lines, anchors, metric windows
    MANIFEST.json   bytes and sha256 of every other file
"""

import io
import json
import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.plugins.io import CheckpointIO
from safetensors import SafetensorError
from torch import Tensor

from offline_rlvr.durable import (
    file_sha256,
    publish_folder,
    remove_folder,
    remove_leftovers,
    writing,
)
from offline_rlvr.errors import DataError, OfflineRlvrError
from offline_rlvr.stream import Journal, ledger_digest
from offline_rlvr.trainer.folder import checkpoints_of

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
        ledger: Holds a line of every update that the learner has taken.
    """

    def __init__(
        self, save_model: Callable[[Path, dict[str, Tensor] | None], None], ledger: Journal
    ):
        self.save_model = save_model
        self.ledger = ledger

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None
    ) -> None:
        """Publish the folder `path`; ResourceError and no `path` when a write is refused."""

        def fill(folder: Path) -> None:
            try:
                self.save_model(folder / "model", checkpoint["state_dict"] or None)
            except SafetensorError as error:
                raise _reason_of(error) from error
            _save_tensors({key: checkpoint[key] for key in TENSOR_KEYS}, folder / "optimizer.pt")
            state = dict(checkpoint[STATE])
            state["ledger"] = ledger_digest(self.ledger.rows(), state["applied"])
            (folder / "state.json").write_text(json.dumps(state, indent=1))
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
        folder = Path(path)  # verified when it was chosen, see `newest`
        path = folder / "optimizer.pt"
        try:
            tensors = torch.load(path, map_location=map_location, weights_only=True)
            tensors = {key: tensors[key] for key in TENSOR_KEYS}
        except (pickle.UnpicklingError, RuntimeError, LookupError, TypeError) as error:
            reason = str(error).partition("\n")[0]
            raise DataError(f"{path} holds no optimizer state: {reason}") from error
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
        remove_folder(Path(path))


def folder_of(checkpoints: Path, update: int) -> Path:
    """Where the checkpoint of an update lies."""
    return checkpoints / f"update-{update:06d}"


def verify(folder: Path) -> None:
    """Check that a checkpoint holds exactly the files of its manifest, byte for byte.

    Raises:
        DataError: Naming the first file that is missing, cut, changed, unreadable or too many.
    """
    try:
        found = [folder, *folder.rglob("*")]
        there = {str(path.relative_to(folder)) for path in found if _is_file(path)}
        manifest = json.loads((folder / MANIFEST).read_text())
        for name in sorted({*manifest, MANIFEST, "state.json", "optimizer.pt"} ^ there):
            what = "is missing" if name in manifest else f"is not in {MANIFEST}"
            raise DataError(f"the checkpoint {folder} is damaged: {name} {what}")
        for name, facts in manifest.items():
            file = folder / name
            if file.stat().st_size != facts["bytes"] or file_sha256(file) != facts["sha256"]:
                raise DataError(f"{file} is damaged: its bytes are not those of {MANIFEST}")
        read_state(folder)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(f"the checkpoint {folder} is damaged: {error}") from error


def read_state(folder: Path) -> dict[str, Any]:
    """`state.json` of a checkpoint.

    Raises:
        DataError: It is not the state of the update that the folder is named after.
    """
    path = folder / "state.json"
    state = json.loads(path.read_text())
    if folder_of(folder.parent, state["applied"]) != folder:
        raise DataError(f"{path} is of update {state['applied']}")
    if not isinstance(state["ledger"], str) or not isinstance(state["anchors"], dict):
        raise DataError(f"{path} does not say which ledger lines and anchors belong to it")
    return state


def newest(checkpoints: Path, say: Callable[[str], None]) -> Path | None:
    """The newest whole checkpoint; damaged newer ones are moved aside (never deleted) and reported.

    Args:
        checkpoints: The run's `checkpoints` folder.
        say: Receives a line for each damaged checkpoint.

    Raises:
        DataError: There were checkpoints, and none of them is whole.
    """
    remove_leftovers(checkpoints)
    for folder in reversed(checkpoints_of(checkpoints)):
        try:
            verify(folder)
        except OfflineRlvrError as error:
            aside = _free_name(folder.with_name(folder.name + ".damaged"))
            with writing(folder):
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


def prune(checkpoints: Path, keep: int, best: int | None = None) -> list[Path]:
    """Remove all but the newest `keep` checkpoints and that of update `best`; returns those that
    stay, oldest first."""
    folders = checkpoints_of(checkpoints)
    spared = [] if best is None else [folder_of(checkpoints, best)]
    kept = [folder for folder in folders if folder in (*folders[-keep:], *spared)]
    for folder in folders:
        if folder not in kept:
            remove_folder(folder)
    return kept


def _is_file(path: Path) -> bool:
    """False for a folder; DataError for a link, a pipe or anything else that is not ours."""
    if path.is_symlink() or not (path.is_file() or path.is_dir()):
        raise DataError(f"{path} is neither a file nor a folder")
    return path.is_file()


class _Refusing(io.FileIO):
    """Remembers why the system refused a write: torch raises an error of its own instead."""

    refusal: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            self.refusal = error
            raise


def _save_tensors(tensors: dict[str, Any], path: Path) -> None:
    raw = _Refusing(path, "w")
    try:
        with io.BufferedWriter(raw) as file:
            torch.save(tensors, file)
    except RuntimeError as error:
        if raw.refusal is None:
            raise
        raise raw.refusal from error


def _reason_of(error: SafetensorError) -> Exception:
    """The OSError that safetensors tells only as text, `... (os error 28)`."""
    found = re.search(r"os error (\d+)", str(error))
    return OSError(int(found[1]), os.strerror(int(found[1]))) if found else error


def _free_name(path: Path) -> Path:
    number = 1
    candidate = path
    while candidate.exists():
        number += 1
        candidate = path.with_name(f"{path.name}-{number}")
    return candidate
