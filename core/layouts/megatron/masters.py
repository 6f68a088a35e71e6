"""The proof that an optimizer's states are whose they are taken for: their masters are the model's tensors."""

from reshard.core.errors import CatalogError
from reshard.core.layouts.megatron.checkpoint import OpenedCheckpoint, StateFile
from reshard.core.layouts.rounded_masters import MasterFile, MasterPair, StoredFile, differing_masters
from reshard.core.text.options import option


def check_masters(checkpoint: OpenedCheckpoint, workers: int) -> None:
    """Compare the masters of all optimizers with the model.

    Raises:
        CatalogError: one is not the model's tensor; names the first.
        StorageError: a file cannot be read.
    """
    differing = differing_masters([_masters(each) for each in checkpoint.state_files], workers)
    if differing:
        file, name = differing
        raise CatalogError(
            f"{file.masters.location}: what should be the optimizer's master of {name!r} is not its value in the "
            "model: so which state is whose is not known. Its weights can be converted: "
            f"{option('select', 'weights-only')}"
        )


def _masters(each: StateFile) -> MasterFile:
    return MasterFile(
        StoredFile(each.file.location, each.file.version),
        StoredFile(each.model.location, each.model.version),
        tuple(MasterPair(state.placed.local, state.stored, state.model) for state in each.states if state.is_master),
    )
