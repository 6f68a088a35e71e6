"""Checkpoints opened in an object store: right values, few bytes, changes noticed."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import reshard
from reshard.core.conversion.convert import convert
from reshard.core.errors import CatalogError
from tests.support.checkpoints import case, read_rank
from tests.support.ckpt_writer import checkpoint_bytes
from tests.support.stores import Store, options_file

FOUR_RANKS = case(7009)


def test_a_named_storage_and_many_threads(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = store.add(FOUR_RANKS.directory, "case")
    options = options_file(store, tmp_path, monkeypatch)
    with (
        reshard.open(FOUR_RANKS.directory / "src", strategy=FOUR_RANKS.directory / "src_strategy.ckpt") as near,
        reshard.open(f"{source}/src", strategy=f"{source}/src_strategy.ckpt", storage=options) as checkpoint,
        ThreadPoolExecutor(8) as threads,
    ):
        found = threads.map(lambda name: np.asarray(checkpoint[name]), list(checkpoint) * 5)
        for name, array in zip(list(near) * 5, found, strict=True):
            assert np.array_equal(array, np.asarray(near[name]))
        for rank in checkpoint.ranks:
            for name, (_, _, content) in read_rank(FOUR_RANKS.directory / "src", rank).items():
                assert np.asarray(checkpoint.rank(rank)[name]).tobytes() == content


def test_an_encrypted_checkpoint(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", "a secret of 16 b")
    convert(FOUR_RANKS.request(store.url("out"), format="ckpt", encrypt_key="env:KEY"))
    with reshard.open(store.url("out"), decrypt_key="env:KEY") as checkpoint:
        for rank, want in FOUR_RANKS.want.items():
            for name, (_, _, content) in want.items():
                assert np.asarray(checkpoint.rank(rank)[name]).tobytes() == content


def test_rows_ask_for_little(store: Store, tmp_path: Path) -> None:
    matrix = np.arange(2048 * 1024, dtype=np.float32).reshape(2048, 1024)
    path = tmp_path / "m.ckpt"
    path.write_bytes(checkpoint_bytes(("w", "Float32", matrix.shape, matrix.tobytes())))
    with reshard.open(store.add(path, "m.ckpt")) as checkpoint:
        store.proxy.forget()
        assert np.array_equal(checkpoint["w"][1000:1010], matrix[1000:1010])
        sent = [exchange.sent_bytes for exchange in store.proxy.exchanges()]
        assert sum(sent) < 10 * 4096 + 2**16
        store.proxy.forget()
        assert np.array_equal(checkpoint["w"][5], matrix[5])
        assert len(store.proxy.exchanges()) == 1


def test_an_object_that_changes(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "m.ckpt"
    path.write_bytes(checkpoint_bytes(("w", "Float32", (4,), bytes(16))))
    url = store.add(path, "m.ckpt")
    with reshard.open(url) as checkpoint:
        assert checkpoint["w"][0] == 0
        path.write_bytes(checkpoint_bytes(("w", "Float32", (4,), os.urandom(16))))
        store.add(path, "m.ckpt")
        with pytest.raises(CatalogError, match="m.ckpt.* changed while it was being"):
            checkpoint["w"][0]
