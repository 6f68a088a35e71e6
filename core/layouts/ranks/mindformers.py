"""What MindFormers writes beside checkpoints of ranks: the last step that each has saved.

    OUTPUT/checkpoint/rank_0/meta.json                {"last_epoch": 1, "last_step": 40}

Source: MindFormers 2.0.0, core/callback/callback.py and tools/resume_ckpt.py.
"""

from reshard.core.errors import CheckpointError
from reshard.core.files.file_names import Step
from reshard.core.runtime.metadata import load_json
from reshard.core.storage.listing import unless_missing
from reshard.core.storage.reading import read_small_file
from reshard.core.storage.urls import Location

SAVED_STEP_NAME = "meta.json"
"""In a rank's folder: the last step that the rank has saved completely."""
CHECKPOINT_FOLDERS = {
    "checkpoint": "all that training saved",
    "checkpoint_network": "the network's parameters alone",
    "checkpoint_trainable": "the trained parameters alone",
    "transformed_checkpoint": "what training loaded, converted",
    "unified_checkpoint": "what training loaded, in whole tensors",
}
"""Folders with checkpoints in a directory of outputs -> what they hold."""
_MAX_BYTES = 1 << 16


def read_saved_step(folder: Location) -> Step | None:
    """Return the last step that a rank has saved, by its meta.json; None if it has none, or one of another kind.

    Raises:
        StorageError: it cannot be read.
    """
    location = folder.child(SAVED_STEP_NAME)
    try:
        data = unless_missing(lambda: read_small_file(location, _MAX_BYTES))
        document = None if data is None else load_json(data, location)
    except (CheckpointError, ValueError, RecursionError):
        return None
    match document:
        case {"last_epoch": int(epoch), "last_step": int(step)} if epoch >= 0 and step >= 0:
            return Step(epoch, step)
    return None
