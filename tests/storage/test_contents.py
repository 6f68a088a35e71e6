"""Contents of checkpoints in an object store: scanned, extracted, and a model's directory checked."""

from pathlib import Path

import numpy as np

import reshard
from reshard.cli.main import run
from tests.support.checkpoints import case
from tests.support.ckpt_writer import checkpoint_bytes
from tests.support.families import Family
from tests.support.stores import Store

FOUR_RANKS = case(7009)


def test_a_scan_reads_every_byte_once(store: Store, tmp_path: Path) -> None:
    values = np.zeros((3000, 1000), np.float32)
    values[2999, 998] = np.nan
    path = tmp_path / "m.ckpt"
    path.write_bytes(checkpoint_bytes(("w", "Float32", values.shape, values.tobytes())))
    url = store.add(path, "m.ckpt")
    store.proxy.forget()
    report = reshard.scan(url)
    [place] = report.non_finite[0].places
    assert (place.nan, place.first, place.first_in_whole) == (1, (2999, 998), (2999, 998))
    assert sum(exchange.sent_bytes for exchange in store.proxy.exchanges()) < values.nbytes + 2**20


def test_near_and_far_scans_agree(store: Store) -> None:
    near = reshard.scan(FOUR_RANKS.directory / "src")
    far = reshard.scan(store.add(FOUR_RANKS.directory / "src", "src"))
    assert (near.non_finite, near.zeros, near.parameters) == (far.non_finite, far.zeros, far.parameters)


def test_a_parameter_is_extracted_from_a_store_and_into_it(store: Store, tmp_path: Path) -> None:
    url = store.add(Family("llama").hf, "hf")
    assert run(["inspect", url, "--extract", "lm_head.weight", str(tmp_path / "near.npy")]) == 0
    assert run(["inspect", url, "--extract", "lm_head.weight", store.url("far.npy")]) == 0
    assert run(["inspect", url, "--extract", "lm_head.weight", store.url("far.npy")]) == 2
    assert np.load(tmp_path / "near.npy").shape == (48, 32)


def test_a_models_directory_is_checked(store: Store) -> None:
    assert reshard.doctor(store.add(Family("llama").hf, "hf")).fits is True
