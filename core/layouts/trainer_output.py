"""Output directories of Hugging Face's Trainer: `checkpoint-40/` in them is a checkpoint of the layout that it has.

`trainer_state.json` is written after the model and the state of its optimizer.
Source: transformers 4.57, trainer.py, Trainer._save_checkpoint.
"""

import re
from collections.abc import Sequence

from reshard.core.storage.listing import names_if_directory
from reshard.core.storage.urls import Location

TRAINER_STATE = "trainer_state.json"
_CHECKPOINT = re.compile(r"checkpoint-(\d{1,18})", re.ASCII)
_MAX_LOOKED_INTO = 8


def trainer_text(root: Location, names: Sequence[str]) -> str:
    """Return the refusal of an output directory with these names, in place of a checkpoint; empty for any other.

    Raises:
        StorageError: the storage does not answer.
    """
    found = {int(match[1]): name for name in names if (match := _CHECKPOINT.fullmatch(name))}
    for number in sorted(found, reverse=True)[:_MAX_LOOKED_INTO]:
        directory = root.child(found[number])
        if TRAINER_STATE in names_if_directory(directory):
            return (
                f"{root}: is an output directory of Hugging Face's Trainer. No step chooses between its checkpoints, "
                f"each of which is a source of its own: name one. {directory} is the newest complete one"
            )
    return ""
