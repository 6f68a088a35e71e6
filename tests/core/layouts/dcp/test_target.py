"""Conversions to directories of PyTorch's Distributed Checkpoint, read back without torch and without reshard."""

import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.conversion.convert import convert
from reshard.core.conversion.planning import describe_plan, make_plan
from reshard.core.conversion.report import Outcome
from reshard.core.errors import InputError, TargetError, VerificationError
from reshard.core.layouts.dcp.metadata import DcpMetadata, parse_dcp_metadata
from reshard.core.layouts.dcp.metadata_writing import build_dcp_metadata
from reshard.core.plan.plan import ConversionPlan
from reshard.core.records.plan_file import dump_plan, load_plan, plan_identity
from reshard.core.request.conversion import ConversionRequest, build_request
from reshard.core.request.source import FingerprintRequest
from reshard.core.source.description import describe
from reshard.core.strategy.files import write_strategy
from reshard.core.strategy.model import StageStrategy, Strategy
from reshard.core.target.documents import documents_of
from reshard.core.tensor.layout import ParameterLayout, whole_layout
from reshard.core.verification.compare import fingerprint_checkpoint
from reshard.core.verification.published import verify_target
from tests.support.checkpoints import Contents, read_safetensors, read_tree, write_safetensors
from tests.support.checkpoints import case as rank_case
from tests.support.ckpt_writer import checkpoint_bytes
from tests.support.conversions import damage, stop_before_commit
from tests.support.dcp import CASES, DCP_FIXTURES, FOREIGN, DcpCase, dcp_case, read_dcp, read_written, torch_names
from tests.support.diagnosed import diagnose
from tests.support.loading import load_rank

UNEVEN = dcp_case("fsdp_uneven")
DTYPES = dcp_case("dtypes")
RANKS = rank_case(7009)
ORDINARY = [name for name in CASES if name != FOREIGN]


def dcp_request(source: Path | str, target: Path | str, **options: object) -> ConversionRequest:
    given: dict[str, object] = {"source": str(source), "target": str(target), "layout": "dcp", "workers": 2}
    return build_request(**given | options)


@pytest.mark.parametrize(("name", "shards"), [*((name, 3) for name in ORDINARY), ("case_dtypes", 1), ("case_dp_tp", 7)])
def test_any_number_of_shards_holds_the_same_tensors(name: str, shards: int, tmp_path: Path) -> None:
    case = DcpCase(DCP_FIXTURES / name)
    report = convert(dcp_request(case.source, tmp_path / "out", shards=shards, verify="content"))
    assert read_dcp(tmp_path / "out") == case.whole
    assert len(list((tmp_path / "out").glob("*.distcp"))) == shards
    assert (report.target_kind, report.target_world_size) == ("file", shards)


def test_rows_are_divided_as_fsdp_divides_them(tmp_path: Path) -> None:
    rows = np.arange(10 * 3, dtype=np.float32).reshape(10, 3)
    tensors = {"rows": rows, "few": rows[:2].copy(), "scalar": np.array(5, np.float32), "none": rows[:0].copy()}
    save_file(tensors, tmp_path / "model.safetensors")
    convert(dcp_request(tmp_path / "model.safetensors", tmp_path / "out", shards=4, verify="content"))
    found = {
        name: [(each.file, each.offsets, each.sizes) for each in chunks]
        for name, (_, _, chunks) in read_written(tmp_path / "out").items()
    }
    assert found["rows"] == [
        (f"__{number}_0.distcp", (3 * number, 0), (min(3, 10 - 3 * number), 3)) for number in range(4)
    ]
    # ranks without rows have no chunk, a tensor without elements has one
    assert found["few"] == [(f"__{number}_0.distcp", (number, 0), (1, 3)) for number in range(2)]
    assert [each[1:] for each in found["none"]] == [((0, 0), (0, 3))]
    assert [each[1:] for each in found["scalar"]] == [((), ())]


def test_from_ranks_of_mindspore_and_back(tmp_path: Path) -> None:
    convert(RANKS.request(tmp_path / "dcp", layout="dcp", verify="content"))
    report = convert(RANKS.request(tmp_path / "back", source=str(tmp_path / "dcp"), source_strategy=""))
    # the metadata lists them as any others, so the target's strategy lacks them
    beyond = ("global_step", "learning_rate")
    assert report.dropped == beyond
    wanted = {
        rank: {name: each for name, each in contents.items() if name not in beyond}
        for rank, contents in RANKS.want.items()
    }
    assert read_tree(tmp_path / "back") == wanted


def test_every_slice_is_in_one_file_and_files_are_alike(tmp_path: Path) -> None:
    """Of 4 ranks, each pair shares its shards."""
    names = [f"layers.{number}.weight" for number in range(8)]
    save_file(
        {name: np.full((8, 16), number, np.float32) for number, name in enumerate(names)}, tmp_path / "w.safetensors"
    )
    halves = ParameterLayout((2, 2), ((1,), ()), nested=True)
    write_strategy(Strategy((StageStrategy(0, dict.fromkeys(names, halves)),), "made"), str(tmp_path / "s.json"))
    request = dcp_request(tmp_path / "w.safetensors", tmp_path / "out", target_strategy=str(tmp_path / "s.json"))
    report = convert(request)
    written = read_written(tmp_path / "out")
    assert all(len(chunks) == 2 for _, _, chunks in written.values())
    assert read_dcp(tmp_path / "out") == read_safetensors(tmp_path / "w.safetensors")
    assert len({rank.size_bytes for rank in report.ranks}) == 1


def test_what_stages_share_is_written_once(tmp_path: Path) -> None:
    tensors = {name: np.arange(64, dtype=np.float32).reshape(8, 8) for name in ("tied", "a", "b")}
    save_file(tensors, tmp_path / "w.safetensors")
    rows, columns = (ParameterLayout((2,), axes, nested=True) for axes in (((0,), ()), ((), (0,))))
    stages = (StageStrategy(0, {"tied": rows, "a": rows}), StageStrategy(1, {"tied": columns, "b": columns}))
    write_strategy(Strategy(stages, "made"), str(tmp_path / "s.ckpt"))
    request = dcp_request(
        tmp_path / "w.safetensors", tmp_path / "out", target_strategy=str(tmp_path / "s.ckpt"), verify="content"
    )
    convert(request)
    written = read_written(tmp_path / "out")
    assert [each.file for each in written["tied"][2]] == ["__0_0.distcp", "__1_0.distcp"]
    assert [each.file for each in written["b"][2]] == ["__2_0.distcp", "__3_0.distcp"]
    assert read_dcp(tmp_path / "out") == read_safetensors(tmp_path / "w.safetensors")


def test_a_rank_that_gets_nothing_has_an_empty_file(tmp_path: Path) -> None:
    save_file({"a": np.ones(4, np.float32)}, tmp_path / "w.safetensors")
    whole = StageStrategy(0, {"a": whole_layout(1, 3)})
    write_strategy(Strategy((whole,), "made"), str(tmp_path / "s.json"))
    request = dcp_request(
        tmp_path / "w.safetensors", tmp_path / "out", target_strategy=str(tmp_path / "s.json"), verify="content"
    )
    convert(request)
    sizes = [(tmp_path / "out" / f"__{number}_0.distcp").stat().st_size for number in range(3)]
    assert sizes[1:] == [22, 22]
    assert read_dcp(tmp_path / "out").keys() == {"a"}
    assert verify_target(str(tmp_path / "out"), VerifyLevel.CONTENT).problems == ()
    (tmp_path / "out" / "__2_0.distcp").chmod(0o600)
    (tmp_path / "out" / "__2_0.distcp").write_bytes(b"x" * 22)
    [problem] = verify_target(str(tmp_path / "out"), VerifyLevel.STRUCTURE).problems
    assert "is not the empty file that it should be" in problem


def test_names_and_values_are_changed_on_the_way(tmp_path: Path) -> None:
    options = {"rename": [r"re:model\.(.*)=\1"], "cast": ["embed.*=bfloat16"], "exclude": ["*.bias"]}
    convert(dcp_request(UNEVEN.source, tmp_path / "out", verify="content", **options))
    made = read_dcp(tmp_path / "out")
    assert made.keys() == {name.removeprefix("model.") for name in UNEVEN.whole if not name.endswith(".bias")}
    assert made["embed.weight"][0] == "BFloat16"


def planner_data(directory: Path) -> dict[str, tuple[str | int, ...]]:
    with torch_names():
        found: dict[str, tuple[str | int, ...]] = pickle.loads((directory / ".metadata").read_bytes()).planner_data
    return found


def test_the_state_dict_stays_nested(tmp_path: Path) -> None:
    case = dcp_case("optimizer")
    convert(dcp_request(case.source, tmp_path / "out", rename=["re:model\\.(.*)bias=model.\\1offset"], shards=2))
    made, saved = planner_data(tmp_path / "out"), planner_data(case.source)
    assert len({len(path) for path in made.values()}) > 1
    for name, path in made.items():
        assert path == saved.get(name, (name,))
    convert(dcp_request(tmp_path / "out", tmp_path / "again", shards=3))
    assert planner_data(tmp_path / "again") == made


def test_the_state_dict_is_nested_as_in_the_step_that_is_named(tmp_path: Path) -> None:
    old, new = dcp_case("optimizer").copied(tmp_path / "a/step-1"), dcp_case("optimizer").copied(tmp_path / "a/step-2")
    shutil.copytree(old.source, tmp_path / "steps/step-1")
    new.change_metadata(lambda metadata: setattr(metadata, "planner_data", None))
    shutil.copytree(new.source, tmp_path / "steps/step-2")
    convert(dcp_request(tmp_path / "steps", tmp_path / "old", step="1"))
    convert(dcp_request(tmp_path / "steps", tmp_path / "new"))
    convert(dcp_request(old.source, tmp_path / "alone"))
    assert planner_data(tmp_path / "old") == planner_data(tmp_path / "alone")
    assert {len(path) for path in planner_data(tmp_path / "new").values()} == {1}
    assert max(len(path) for path in planner_data(tmp_path / "old").values()) > 1


def test_a_tensor_with_the_name_of_a_dict_takes_its_place(tmp_path: Path) -> None:
    case = dcp_case("optimizer")
    inside = {name: path for name, path in planner_data(case.source).items() if name in case.whole}
    moved = next(name for name in inside if name.startswith("optim."))
    convert(dcp_request(case.source, tmp_path / "out", rename=[f"{moved}=model"], shards=2))
    made = planner_data(tmp_path / "out")
    assert made["model"] == ("model",)
    for name in inside.keys() - {moved}:
        assert made[name] == ((name,) if inside[name][0] == "model" else inside[name])


HOSTILE_NAMES = (
    "a.b..c",
    ".",
    "../../etc/passwd",
    "model.0.1",
    "with space\n",
    "名前",
    "q" * 300,
    "__class__",
    "cos\nsystem",
)


def test_strange_names_are_kept(tmp_path: Path) -> None:
    contents: Contents = {name: ("Int32", (2,), bytes([number] * 8)) for number, name in enumerate(HOSTILE_NAMES)}
    write_safetensors(tmp_path / "w.safetensors", contents)
    convert(dcp_request(tmp_path / "w.safetensors", tmp_path / "out", verify="content"))
    assert read_dcp(tmp_path / "out") == contents
    convert(build_request(source=str(tmp_path / "out"), target=str(tmp_path / "back"), layout="unified"))
    assert read_safetensors(tmp_path / "back" / "model.safetensors") == contents


def test_the_default_is_eight_files(tmp_path: Path) -> None:
    convert(dcp_request(UNEVEN.source, tmp_path / "out"))
    assert len(list((tmp_path / "out").glob("*.distcp"))) == 8


def test_little_memory_is_enough(tmp_path: Path) -> None:
    convert(dcp_request(DTYPES.source, tmp_path / "out", memory_limit="16MiB", workers=1))
    assert read_dcp(tmp_path / "out") == DTYPES.whole


def test_many_blocks_have_one_crc(tmp_path: Path) -> None:
    """With the least memory a tensor is written in many blocks; places of CRCs fall anywhere in them."""
    noise = np.random.default_rng(1)
    tensors = {f"t{number}": noise.standard_normal((700 + number, 1024), dtype=np.float32) for number in range(4)}
    save_file(tensors, tmp_path / "w.safetensors")
    convert(dcp_request(tmp_path / "w.safetensors", tmp_path / "out", memory_limit="16MiB", workers=4, shards=2))
    assert read_dcp(tmp_path / "out") == read_safetensors(tmp_path / "w.safetensors")
    assert verify_target(str(tmp_path / "out"), VerifyLevel.CHECKSUM).problems == ()


def test_it_is_a_source_as_any_other(tmp_path: Path) -> None:
    convert(dcp_request(UNEVEN.source, tmp_path / "out", shards=3))
    before, after = (
        fingerprint_checkpoint(FingerprintRequest(source=str(source))) for source in (UNEVEN.source, tmp_path / "out")
    )
    assert {each.name: each for each in after.parameters} == {each.name: each for each in before.parameters}
    diagnosis = diagnose(str(tmp_path / "out"))
    assert diagnosis.fits
    assert "DCP, 3 files" in diagnosis.facts[0][1]
    assert describe(str(tmp_path / "out"))["manifest"]["layout"] == "dcp"
    (tmp_path / "out" / ".metadata").rename(tmp_path / "metadata")
    with pytest.raises(InputError, match=r"has files of a DCP checkpoint, but no \.metadata"):
        diagnose(str(tmp_path / "out"))
    (tmp_path / "metadata").rename(tmp_path / "out" / ".metadata")
    loaded = dict(load_rank(str(tmp_path / "out"), "", "", 0))
    assert {name: value.tobytes() for name, value in loaded.items() if isinstance(value, np.ndarray)} == {
        name: data for name, (_, _, data) in UNEVEN.whole.items()
    }


class TestRuns:
    def test_a_killed_run_is_resumed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        request = dcp_request(UNEVEN.source, tmp_path / "out", shards=3)
        stop_before_commit(monkeypatch, request)
        report = convert(request)
        assert {rank.outcome for rank in report.ranks} == {Outcome.RESUMED}
        assert read_dcp(tmp_path / "out") == UNEVEN.whole

    def test_some_files_here_the_rest_elsewhere(self, tmp_path: Path) -> None:
        first = convert(dcp_request(UNEVEN.source, tmp_path / "out", shards=4, ranks="0,3"))
        assert (first.committed, first.missing_ranks) == (False, (1, 2))
        assert not (tmp_path / "out").exists()
        assert convert(dcp_request(UNEVEN.source, tmp_path / "out", shards=4, ranks="1-2")).committed
        assert read_dcp(tmp_path / "out") == UNEVEN.whole

    def test_what_torch_saved_is_replaced_only_if_asked(self, tmp_path: Path) -> None:
        shutil.copytree(UNEVEN.source, tmp_path / "out")
        (tmp_path / "out").chmod(0o755)
        with pytest.raises(TargetError, match=r"is not empty. Name another target, or pass overwrite=True"):
            convert(dcp_request(DTYPES.source, tmp_path / "out"))
        convert(dcp_request(DTYPES.source, tmp_path / "out", overwrite=True, shards=2))
        assert read_dcp(tmp_path / "out") == DTYPES.whole

    def test_another_number_of_shards_is_another_plan(self, tmp_path: Path) -> None:
        convert(dcp_request(UNEVEN.source, tmp_path / "out", shards=2))
        with pytest.raises(TargetError, match="is not empty"):
            convert(dcp_request(UNEVEN.source, tmp_path / "out", shards=3))
        convert(dcp_request(UNEVEN.source, tmp_path / "out", shards=3, overwrite=True))
        assert read_dcp(tmp_path / "out") == UNEVEN.whole

    def test_planning_writes_nothing(self, tmp_path: Path) -> None:
        plan, summary = describe_plan(dcp_request(UNEVEN.source, tmp_path / "out", shards=2))
        assert [plan.file_name(rank) for rank in plan.target_ranks] == ["__0_0.distcp", "__1_0.distcp"]
        assert (summary.layout, summary.format) == ("dcp", "distcp")
        assert not (tmp_path / "out").exists()

    def test_the_metadata_of_the_source_is_parsed_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        parsed: list[str] = []

        def parse(data: bytes, origin: str) -> DcpMetadata:
            parsed.append(origin)
            return parse_dcp_metadata(data, origin)

        monkeypatch.setattr("reshard.core.layouts.dcp.checkpoint.parse_dcp_metadata", parse)
        make_plan(dcp_request(UNEVEN.source, tmp_path / "out", shards=2))
        assert parsed == [str(UNEVEN.source / ".metadata")]

    def test_a_plan_is_stored_and_restored(self, tmp_path: Path) -> None:
        plan = make_plan(dcp_request(DTYPES.source, tmp_path / "out", shards=5))
        (tmp_path / "plan").write_bytes(dump_plan(plan))
        restored = load_plan(str(tmp_path / "plan"), plan_identity(plan))
        assert documents_of(restored) == documents_of(plan)


class TestRefusals:
    def test_what_torch_has_no_dtype_for(self, tmp_path: Path) -> None:
        note = ("note", "str", (8,), "hi".encode("utf-32-le"))
        file = checkpoint_bytes(("packed", "Int4", (2,), b"12"), ("rest", "Int8", (1,), b"1"), note)
        (tmp_path / "w.ckpt").write_bytes(file)
        with pytest.raises(InputError) as refused:
            convert(dcp_request(tmp_path / "w.ckpt", tmp_path / "out"))
        assert "'packed' is a Int4, for which PyTorch has no dtype; if the model" in str(refused.value)
        assert "'note' is a text, for which" in str(refused.value)
        convert(dcp_request(tmp_path / "w.ckpt", tmp_path / "out", exclude=["packed", "note"]))
        assert read_dcp(tmp_path / "out").keys() == {"rest"}


def test_floats_of_8_bits_are_carried(tmp_path: Path) -> None:
    case = dcp_case("foreign_dtypes")
    options = {"include": ["float8_e4m3fn", "float8_e5m2", "plain"], "verify": "content", "shards": 2}
    convert(dcp_request(case.source, tmp_path / "out", **options))
    made = read_dcp(tmp_path / "out")
    assert {name: each[0] for name, each in made.items() if name != "plain"} == {
        "float8_e4m3fn": "F8_E4M3",
        "float8_e5m2": "F8_E5M2",
    }
    assert verify_target(str(tmp_path / "out"), VerifyLevel.CONTENT).problems == ()
    convert(build_request(source=str(tmp_path / "out"), target=str(tmp_path / "back"), layout="dcp", shards=1))
    assert read_dcp(tmp_path / "back") == made


class TestVerification:
    @pytest.fixture
    def target(self, tmp_path: Path) -> Path:
        convert(dcp_request(UNEVEN.source, tmp_path / "out", shards=3))
        return tmp_path / "out"

    @pytest.mark.parametrize("level", [VerifyLevel.STRUCTURE, VerifyLevel.CHECKSUM, VerifyLevel.CONTENT])
    def test_what_was_written_is_right(self, target: Path, level: VerifyLevel) -> None:
        assert verify_target(str(target), level).problems == ()

    @pytest.mark.parametrize("place", [0.03, 0.5, 0.97])
    def test_any_changed_byte_is_found(self, target: Path, place: float) -> None:
        path = target / "__1_0.distcp"
        path.chmod(0o600)
        data = bytearray(path.read_bytes())
        data[int(len(data) * place)] ^= 1
        path.write_bytes(data)
        problems = verify_target(str(target), VerifyLevel.CHECKSUM).problems
        assert problems
        assert all(str(path) in problem for problem in problems)

    def test_a_truncated_file_is_found(self, target: Path) -> None:
        path = target / "__1_0.distcp"
        path.chmod(0o600)
        path.write_bytes(path.read_bytes()[:-1])
        [problem] = verify_target(str(target), VerifyLevel.STRUCTURE).problems
        assert "bytes, its tensors take" in problem

    def test_changed_metadata_is_found(self, target: Path) -> None:
        damage(target / ".metadata")
        [problem] = verify_target(str(target), VerifyLevel.STRUCTURE).problems
        assert problem == f"{target / '.metadata'}: is not the metadata that was written"

    def test_it_is_no_source_with_other_metadata(self, target: Path) -> None:
        """Two tensors' places changed with each other: nothing in the files would contradict."""
        with torch_names():
            metadata = pickle.loads((target / ".metadata").read_bytes())
            first, second = (f"model.layers.{number}.up.weight" for number in range(2))
            for index in metadata.storage_data:
                index.fqn = {first: second, second: first}.get(index.fqn, index.fqn)
            (target / ".metadata").chmod(0o600)
            (target / ".metadata").write_bytes(pickle.dumps(metadata, protocol=2))
        with pytest.raises(
            InputError, match=r"\.metadata: is not the metadata that the conversion wrote.*remove .*\.reshard"
        ):
            convert(dcp_request(target, target.parent / "again"))
        shutil.rmtree(target / ".reshard")
        convert(dcp_request(target, target.parent / "again"))
        assert read_dcp(target.parent / "again")[first] == UNEVEN.whole[second]

    def test_metadata_with_two_equal_shards_in_each_others_place_is_not_committed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Their files have the same tensors, of the same shapes, at the same bytes."""

        def swapped(plan: ConversionPlan, paths: Any) -> bytes:
            metadata = build_dcp_metadata(plan, paths)
            marked = metadata.replace(b"__0_0", b"__X_0").replace(b"__1_0", b"__0_0")
            return marked.replace(b"__X_0", b"__1_0")

        monkeypatch.setattr("reshard.core.layouts.dcp.metadata_writing.build_dcp_metadata", swapped)
        source = tmp_path / "w.safetensors"
        save_file({"w": np.arange(8, dtype=np.int8).reshape(4, 2)}, source)
        with pytest.raises(VerificationError, match="is wrong about parameter 'w', of which __0_0.distcp has"):
            convert(dcp_request(source, tmp_path / "out", shards=2))
        assert not (tmp_path / "out").exists()
        monkeypatch.undo()
        convert(dcp_request(source, tmp_path / "out", shards=2))
        assert verify_target(str(tmp_path / "out"), VerifyLevel.STRUCTURE).problems == ()

    def test_a_file_that_does_not_belong_to_it_is_found(self, target: Path) -> None:
        shutil.copy(target / "__1_0.distcp", target / "__7_0.distcp")
        [problem] = verify_target(str(target), VerifyLevel.STRUCTURE).problems
        assert "__7_0.distcp: does not belong to this checkpoint" in problem
