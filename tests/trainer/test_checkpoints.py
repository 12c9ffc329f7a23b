"""What a checkpoint folder does with failures that no run meets by itself."""

import pytest
import torch

from offline_rlvr.stream import Journal
from offline_rlvr.trainer import checkpoints
from offline_rlvr.trainer.checkpoints import UpdateCheckpointIO


class Unsavable:
    """Fails as torch does."""

    def __reduce__(self):
        raise RuntimeError("no such thing can be saved")


@pytest.fixture
def save(tmp_path):
    """Saves a checkpoint of one update with this optimizer state."""

    def run(optimizer):
        def save_model(folder, weights):
            folder.mkdir()
            torch.save(weights, folder / "weights.pt")

        io = UpdateCheckpointIO(save_model, Journal(tmp_path / "ledger.jsonl"))
        state = {"applied": 1, "anchors": {}}
        content = {"optimizer_states": optimizer, "lr_schedulers": [], "state_dict": {}}
        path = checkpoints.folder_of(tmp_path, 1)
        io.save_checkpoint({**content, checkpoints.STATE: state}, path)
        return io, path

    return run


def test_a_failure_that_is_not_the_disk_s_is_told_as_it_is(save, tmp_path):
    with pytest.raises(RuntimeError, match="no such thing can be saved"):
        save([Unsavable()])
    assert not list(tmp_path.iterdir())


def test_lightning_may_remove_a_checkpoint(save, tmp_path):
    io, path = save([{"step": torch.ones(2)}])
    checkpoints.verify(path)
    io.remove_checkpoint(path)
    assert not list(tmp_path.iterdir())
