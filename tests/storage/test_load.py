"""Ranks loaded from an object store: what is asked for, and by whom it may be."""

from pathlib import Path

import numpy as np
import pytest

from reshard.core.conversion.convert import convert
from reshard.core.conversion.load import plan_load
from tests.support.checkpoints import case
from tests.support.ckpt_writer import checkpoint_bytes
from tests.support.loading import load_rank
from tests.support.stores import Store, options_file

FOUR_TO_THREE = case(7009)


def test_ranks_of_a_named_storage(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = store.add(FOUR_TO_THREE.directory, "case")
    options = options_file(store, tmp_path, monkeypatch)
    plan = plan_load(
        f"{source}/src",
        f"{source}/src_strategy.ckpt",
        f"{source}/dst_strategy.ckpt",
        source_storage=options,
        target_storage=options,
    )
    for rank, want in FOUR_TO_THREE.want.items():
        found = {name: value.tobytes() for name, value in plan.load(rank) if isinstance(value, np.ndarray)}
        assert found == {name: content for name, (_, _, content) in want.items()}


def test_an_encrypted_rank(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", "a secret of 16 b")
    convert(FOUR_TO_THREE.request(store.url("out"), format="ckpt", encrypt_key="env:KEY"))
    strategy = str(FOUR_TO_THREE.directory / "dst_strategy.ckpt")
    loaded = load_rank(store.url("out"), strategy, strategy, 2, decrypt_key="env:KEY")
    found = {name: value.tobytes() for name, value in loaded if isinstance(value, np.ndarray)}
    assert found == {name: content for name, (_, _, content) in FOUR_TO_THREE.want[2].items()}


def test_what_is_chosen_is_read_and_a_turned_matrix_once(store: Store, tmp_path: Path) -> None:
    matrix = np.arange(1024 * 1024, dtype=np.float32).reshape(1024, 1024)
    path = tmp_path / "m.ckpt"
    path.write_bytes(checkpoint_bytes(*((name, "Float32", (1024, 1024), matrix.tobytes()) for name in ("w", "x"))))
    loaded = load_rank(store.add(path, "m.ckpt"), names=["w"], transpose=["w"], memory_limit="16MiB")
    store.proxy.forget()
    [(_, found)] = loaded
    assert np.array_equal(found, matrix.T)
    assert sum(exchange.sent_bytes for exchange in store.proxy.exchanges()) < matrix.nbytes + 2**20
