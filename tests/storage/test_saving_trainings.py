"""ModelCheckpoint saves to an object store."""

import numpy as np
import pytest

from reshard import mindspore
from reshard.core.mindspore_api import background
from reshard.mindspore import CheckpointConfig, ModelCheckpoint, RunContext
from tests.support.stores import Store


@pytest.mark.parametrize("way", ["thread", "process"])
def test_a_training_saves_to_an_object_store(store: Store, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "_NOTABLE_WAIT_SECONDS", 60)  # a busy machine is no matter of this test
    config = CheckpointConfig(2, keep_checkpoint_max=2, async_save=way, crc_check=True)
    directory = store.url("rank_0")
    network = {"w": np.zeros(3, np.float32)}
    with ModelCheckpoint("net", directory, config) as checkpoint:
        for step in range(1, 7):
            network["w"] += 1
            checkpoint.step_end(RunContext(train_network=network, cur_step_num=step, cur_epoch_num=1, batch_num=6))
    assert sorted(path.name for path in store.files("rank_0").iterdir()) == ["net-1_4.ckpt", "net-1_6.ckpt"]
    assert checkpoint.latest_ckpt_file_name == f"{directory}/net-1_6.ckpt"
    loaded = mindspore.load_checkpoint(checkpoint.latest_ckpt_file_name, crc_check=True)
    assert np.asarray(loaded["w"]).tolist() == [6, 6, 6]
    assert ModelCheckpoint("net", directory)._prefix == "net_1"
