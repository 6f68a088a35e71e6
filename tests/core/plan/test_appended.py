"""Epoch and step numbers, flags and texts in checkpoint files: they survive, and can be set."""

import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from reshard.core.changes.info_texts import InfoValue
from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.conversion.convert import convert
from reshard.core.conversion.planning import make_plan
from reshard.core.conversion.report import Outcome
from reshard.core.errors import InputError, PlanError
from reshard.core.files.any_format import read_index
from reshard.core.files.scalars import read_scalars
from reshard.core.records.plan_file import dump_plan, load_plan, plan_identity
from reshard.core.request.conversion import build_request
from reshard.core.storage.reading import open_source
from reshard.core.storage.urls import parse_url
from reshard.core.strategy.files import write_strategy
from reshard.core.strategy.model import StageStrategy, Strategy
from reshard.core.tensor.layout import whole_layout
from reshard.core.verification.published import verify_target
from tests.support.checkpoints import case, read_ckpt, read_rank
from tests.support.ckpt_writer import checkpoint_bytes

CASE = case(7010)
INFO = {
    "epoch_num": ("Int64", (3).to_bytes(8, "little"), 3),
    "step_num": ("Int32", (1875).to_bytes(4, "little"), 1875),
    "lr": ("Float32", struct.pack("<f", 0.5), 0.5),
    "half": ("BFloat16", b"\x40\x40", 3.0),
    "flag": ("Bool", b"\1", True),
}


def information(path: Path) -> dict[str, InfoValue]:
    file = open_source(parse_url(str(path)))
    try:
        return read_scalars(file, read_index(file))
    finally:
        file.close()


def make_source(directory: Path, texts: Mapping[str, str] | None = None) -> Path:
    entries = [("w", "Float32", [2, 2], bytes(range(16)))]
    entries += [(name, dtype, [], content) for name, (dtype, content, _) in INFO.items()]
    entries += [(name, "str", [0], text.encode("utf-32-le")) for name, text in (texts or {}).items()]
    path = directory / "source" / "net.ckpt"
    path.parent.mkdir(parents=True)
    path.write_bytes(checkpoint_bytes(*entries))
    return path


class TestItSurvives:
    def test_from_format_to_format_and_back(self, tmp_path: Path) -> None:
        source = make_source(tmp_path, {"note": "héllo 昇思"})
        want = {name: value for name, (_, _, value) in INFO.items()} | {"note": "héllo 昇思"}
        at = str(source)
        for number, format in enumerate(["ckpt", "safetensors", "safetensors", "ckpt"]):
            target = tmp_path / f"{number}_{format}"
            convert(build_request(source=at, target=str(target), format=format))
            found = information(target / "rank_0" / f"checkpoint_0.{format}")
            assert found == want
            at = str(target)
        back = read_ckpt(tmp_path / "3_ckpt" / "rank_0" / "checkpoint_0.ckpt")
        assert {name: back[name] for name in (*INFO, "note")} == {
            **{name: (dtype, (), content) for name, (dtype, content, _) in INFO.items()},
            "note": ("str", (0,), "héllo 昇思".encode("utf-32-le")),
        }


GIVEN = ["epoch_num=7", "flag=true", "lr=0.1", "many=9223372036854775808", "note=text:5", "empty="]
WANT = {
    "epoch_num": ("Int64", (), (7).to_bytes(8, "little")),
    "flag": ("Bool", (), b"\1"),
    "lr": ("Float32", (), struct.pack("<f", 0.1)),
    "many": ("UInt64", (), (2**63).to_bytes(8, "little")),
}
"""As MindSpore's save_checkpoint(append_dict=…) has them."""


class TestItCanBeSet:
    @pytest.mark.parametrize("format", ["ckpt", "safetensors"])
    @pytest.mark.parametrize("write_crc", [False, True])
    def test_every_target_file_gets_it(self, tmp_path: Path, format: str, write_crc: bool) -> None:
        request = CASE.request(tmp_path / "out", format=format, append_info=GIVEN, write_crc=write_crc)
        report = convert(request)
        [note] = [note for note in report.notes if note.startswith("appended to every target file: ")]
        assert note.endswith(": epoch_num=7, flag=True, lr=0.1, many=9223372036854775808, note='5', empty=''")
        plain = tmp_path / "plain"
        convert(CASE.request(plain, format=format))
        for rank in range(report.target_world_size):
            found = read_rank(tmp_path / "out", rank)
            texts = {name: found.pop(name) for name in ("note", "empty") if name in found}
            assert found == read_rank(plain, rank) | WANT
            assert (len(texts) == 2) == (format == "ckpt")  # the safetensors library does not see them
            path = tmp_path / "out" / f"rank_{rank}" / f"checkpoint_{rank}.{format}"
            assert information(path).items() >= {"note": "5", "empty": "", "epoch_num": 7, "flag": True}.items()
        assert verify_target(str(tmp_path / "out"), VerifyLevel.CHECKSUM).problems == ()
        assert report.verified is VerifyLevel.CHECKSUM

    def test_in_place_of_what_the_source_has(self, tmp_path: Path) -> None:
        source = make_source(tmp_path, {"note": "old"})
        options = {"append_info": ["epoch_num=9", "step_num=text:many", "note=1.5"], "format": "safetensors"}
        report = convert(build_request(source=str(source), target=str(tmp_path / "out"), **options))
        found = information(tmp_path / "out" / "rank_0" / "checkpoint_0.safetensors")
        assert found == {"epoch_num": 9, "lr": 0.5, "note": 1.5, "half": 3.0, "flag": True, "step_num": "many"}
        assert report.carried == ("w", "lr", "half", "flag")
        assert (
            "appended to every target file: epoch_num=9 (in place of the source's Int64 []), step_num='many' "
            "(in place of the source's Int32 []), note=1.5 (in place of the source's str)"
        ) in report.notes

    def test_files_that_are_copied_have_it_too(self, tmp_path: Path) -> None:
        strategy = Strategy((StageStrategy(0, {"w": whole_layout(2, 4)}),), "four ranks that hold the same")
        write_strategy(strategy, str(tmp_path / "same.ckpt"))
        source = make_source(tmp_path)
        report = convert(
            build_request(
                source=str(source),
                target=str(tmp_path / "four"),
                target_strategy=str(tmp_path / "same.ckpt"),
                append_info=["epoch_num=7"],
                write_crc=True,
            )
        )
        assert [rank.outcome for rank in report.ranks] == [Outcome.WRITTEN, *3 * [Outcome.COPIED]]
        assert all(read_rank(tmp_path / "four", rank)["epoch_num"] == WANT["epoch_num"] for rank in range(4))

    def test_a_damaged_value_is_found(self, tmp_path: Path) -> None:
        request = CASE.request(tmp_path / "out", append_info=["epoch_num=72340172838076673"])
        convert(request)
        path = tmp_path / "out" / "rank_0" / "checkpoint_0.ckpt"
        path.chmod(0o600)
        data = path.read_bytes()
        assert data.count(b"\1" * 8) == 1
        path.write_bytes(data.replace(b"\1" * 8, b"\1" * 7 + b"\2"))
        [problem] = verify_target(str(tmp_path / "out"), VerifyLevel.CHECKSUM).problems
        assert "parameter 'epoch_num': its bytes are not those that were written" in problem


class TestWhatCannotBeAppended:
    def test_a_parameter_of_a_strategy(self, tmp_path: Path) -> None:
        name = next(iter(read_rank(CASE.directory / "src", 0)))
        with pytest.raises(PlanError, match=f"{name!r} cannot be appended: a strategy has a parameter of that name"):
            convert(CASE.request(tmp_path / "out", append_info=[f"{name}=5"]))
        assert not (tmp_path / "out").exists()

    def test_what_marks_files_without_redundancy(self, tmp_path: Path) -> None:
        with pytest.raises(PlanError, match="'redundancy_removed' cannot be appended: reshard itself marks files"):
            convert(CASE.request(tmp_path / "out", append_info=["redundancy_removed=true"]))

    def test_a_tensor_that_is_no_single_number(self, tmp_path: Path) -> None:
        source = make_source(tmp_path)
        message = r"'w' cannot be appended: the source has a parameter of that name, Float32 \[2, 2\] on rank_0"
        with pytest.raises(PlanError, match=message):
            convert(build_request(source=str(source), target=str(tmp_path / "out"), append_info=["w=5"]))

    def test_a_text_that_could_not_be_read_again(self, tmp_path: Path) -> None:
        source = make_source(tmp_path)
        text = "x" * (2**18 + 1)
        with pytest.raises(PlanError, match="'t' cannot be appended: a text of 1048580 bytes, more than 1048576"):
            convert(build_request(source=str(source), target=str(tmp_path / "out"), append_info=[f"t={text}"]))

    def test_a_name_that_safetensors_uses_itself(self, tmp_path: Path) -> None:
        source = make_source(tmp_path)
        options = {"format": "safetensors", "append_info": ["crc_num=5"]}
        with pytest.raises(InputError, match="'crc_num': .safetensors files use this name for something else"):
            convert(build_request(source=str(source), target=str(tmp_path / "out"), **options))


def test_the_identity_changes_with_it(tmp_path: Path) -> None:
    source = str(make_source(tmp_path))

    def identity(**options: object) -> str:
        return plan_identity(make_plan(build_request(source=source, target=str(tmp_path / "out"), **options)))

    given = [["a=1"], ["a=1.0"], ["a=true"], ["a=text:1"], ["a=1", "b=1"], []]
    found = [identity(append_info=each) for each in given] + [identity(write_crc=True)]
    assert len(set(found)) == len(found)


def test_the_plan_on_disk_has_it(tmp_path: Path) -> None:
    given = ["a=1", "b=1.0", "c=true", "d=text:1", "e=18446744073709551615"]
    source = str(make_source(tmp_path))
    plan = make_plan(build_request(source=source, target=str(tmp_path / "out"), append_info=given, write_crc=True))
    (tmp_path / "plan").write_bytes(dump_plan(plan))
    found = load_plan(str(tmp_path / "plan"), plan_identity(plan)).inputs
    assert [(name, type(value), value) for name, value in found.append_info] == [
        (name, type(value), value) for name, value in plan.inputs.append_info
    ]
    assert found.write_crc


def test_scalars_of_every_kind_are_read(tmp_path: Path) -> None:
    values = {"Int8": -1, "UInt16": 65535, "Float16": 1.5, "Float64": 0.1, "UInt64": 2**64 - 1, "Float32": -0.25}
    entries: list[tuple[str, str, list[int], bytes]] = [
        (name, name, [], np.array(value, name.lower()).tobytes()) for name, value in values.items()
    ]
    path = tmp_path / "net.ckpt"
    path.write_bytes(checkpoint_bytes(*entries, ("packed", "Int4", [], b"\x21"), ("v", "Int8", [1], b"\1")))
    assert information(path) == values
    path.write_bytes(checkpoint_bytes(*((f"s{number}", "Int8", [], b"\1") for number in range(100))))
    assert len(information(path)) == 64
