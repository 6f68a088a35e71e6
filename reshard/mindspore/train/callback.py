"""`mindspore.train.callback`: saving during training."""

from reshard.core.mindspore_api.checkpoint_config import CheckpointConfig
from reshard.core.mindspore_api.model_checkpoint import ModelCheckpoint, RunContext

__all__ = ["CheckpointConfig", "ModelCheckpoint", "RunContext"]
