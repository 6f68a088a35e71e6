"""The proof that an optimizer's states are those of the tensors that they are taken for.

Megatron makes the model of the optimizer's float32 masters: rounded to the model's dtype, they are the model, bit for
bit. States lie beside their masters, so what holds for these holds for all.
"""

from contextlib import closing
from threading import Event

import numpy as np

from reshard.core.errors import CatalogError
from reshard.core.files.remote_reads import whole_file_readers
from reshard.core.files.torch_views import StoredTensor
from reshard.core.layouts.megatron.checkpoint import OpenedCheckpoint, StateFile
from reshard.core.layouts.megatron.optimizer import OptimizerState
from reshard.core.runtime.progress import current_progress
from reshard.core.runtime.threads import in_threads
from reshard.core.storage.reading import SourceFile, open_source, read_bytes
from reshard.core.storage.urls import parse_url
from reshard.core.tensor.casting import cast_bits
from reshard.core.text.options import option

_BLOCK_ELEMENTS = 1 << 20


def check_masters(checkpoint: OpenedCheckpoint, workers: int) -> None:
    """Compare the masters of all optimizers with the model.

    Raises:
        CatalogError: one is not the model's tensor; names the first of each file.
        StorageError: a file cannot be read.
    """
    masters = [state for each in checkpoint.state_files for state in each.states if state.is_master]
    if not masters:
        return
    sizes = [state.stored.extent.length for state in masters if state.stored.extent]
    current_progress().begin("comparing the optimizer's masters with the model", sum(sizes))
    at_once = whole_file_readers(parse_url(checkpoint.state_files[0].file.location), workers)
    for differing in in_threads(_first_differing, checkpoint.state_files, at_once, Event()):
        if differing:
            raise CatalogError(
                f"{differing}: so which state is whose is not known. Its weights can be converted: "
                f"{option('select', 'weights-only')}"
            )


def _first_differing(each: StateFile) -> str:
    with (
        closing(open_source(parse_url(each.file.location), each.file.version)) as states,
        closing(open_source(parse_url(each.model.location), each.model.version)) as model,
    ):
        for state in each.states:
            if state.is_master and not _is_model(states, model, state):
                return (
                    f"{each.file.location}: what should be the optimizer's master of {state.placed.local!r} is not its "
                    "value in the model"
                )
    return ""


def _is_model(states: SourceFile, model: SourceFile, state: OptimizerState) -> bool:
    master, tensor = state.stored, state.model
    if master.extent is None or tensor.extent is None:
        return False
    count = master.extent.length // master.dtype.itemsize
    for start in range(0, count, _BLOCK_ELEMENTS):
        stop = min(start + _BLOCK_ELEMENTS, count)
        rounded = cast_bits(_elements(states, master, start, stop), master.dtype, tensor.dtype)
        if not np.array_equal(rounded, _elements(model, tensor, start, stop)):
            return False
        current_progress().advance((stop - start) * master.dtype.itemsize)
    return True


def _elements(file: SourceFile, stored: StoredTensor, start: int, stop: int) -> np.ndarray:
    """The bits of elements of a tensor in C order."""
    item = stored.dtype.itemsize
    offset = stored.extent.offset if stored.extent else 0
    return np.frombuffer(read_bytes(file, offset + start * item, (stop - start) * item), f"<u{item}")
