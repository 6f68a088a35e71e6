"""Directories of PyTorch's Distributed Checkpoint on an object store."""

from pathlib import Path

import pytest

from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.conversion.convert import convert
from reshard.core.errors import InputError, StorageError
from reshard.core.request.conversion import ConversionRequest, build_request
from reshard.core.verification.published import verify_target
from tests.core.layouts.dcp.test_crcs import flip_value
from tests.support.checkpoints import read_safetensors
from tests.support.dcp import dcp_case, read_dcp
from tests.support.stores import Store


def test_a_dcp_checkpoint_is_read_by_ranges(store: Store, tmp_path: Path) -> None:
    for name in ("dtypes", "fsdp_uneven", "safetensors", "hf_sharded"):
        case = dcp_case(name)
        url = store.add(case.source, name)
        convert(case.request(tmp_path / name, url, layout="unified", verify="content"))
        assert read_safetensors(tmp_path / name / "model.safetensors") == case.whole


def test_crcs_are_checked_with_what_is_read_anyway(store: Store, tmp_path: Path) -> None:
    case = dcp_case("fsdp_uneven").copied(tmp_path / "case")
    url = store.add(case.source, "right")
    assert convert(case.request(tmp_path / "right", url, layout="unified")).crc_bytes == 0
    flip_value(case, "model.head.weight")
    url = store.add(case.source, "damaged")
    with pytest.raises(InputError, match=r"damaged/__\d_0\.distcp: parameter 'model\.head\.weight': its \d+ bytes"):
        convert(case.request(tmp_path / "damaged", url, layout="unified"))


def to_dcp(source: Path | str, target: str, **options: object) -> ConversionRequest:
    return build_request(source=str(source), target=target, layout="dcp", **options)


def test_written_there_replaced_in_place_and_read_from_there(store: Store, tmp_path: Path) -> None:
    first, second, url = dcp_case("dtypes"), dcp_case("fsdp_uneven"), store.url("made")
    convert(to_dcp(first.source, url, shards=5, verify="content"))
    assert read_dcp(store.files("made")) == first.whole
    convert(to_dcp(second.source, url, shards=2, overwrite=True))
    assert {file.name for file in store.files("made").iterdir() if file.is_file()} == {
        ".metadata",
        "__0_0.distcp",
        "__1_0.distcp",
    }
    assert read_dcp(store.files("made")) == second.whole
    assert verify_target(url, VerifyLevel.CONTENT).problems == ()
    convert(build_request(source=url, target=str(tmp_path / "back"), layout="unified"))
    assert read_safetensors(tmp_path / "back" / "model.safetensors") == second.whole


def test_what_is_replaced_loses_its_metadata_first(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch would read the new files by it."""
    case = dcp_case("fsdp_uneven")
    url = store.add(case.source, "saved")
    request = to_dcp(dcp_case("dtypes").source, url, overwrite=True, shards=2)
    with monkeypatch.context() as patch:
        patch.setattr(
            "reshard.core.target.target.Target.commit", lambda *_, **__: (_ for _ in ()).throw(StorageError("stopped"))
        )
        with pytest.raises(StorageError, match="stopped"):
            convert(request)
    assert not (store.files("saved") / ".metadata").exists()
    assert convert(request).committed
    assert read_dcp(store.files("saved")) == dcp_case("dtypes").whole
