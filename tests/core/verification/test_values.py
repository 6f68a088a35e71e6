"""Values of both sides compared: right conversions pass, and whatever is wrong on either side is named."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reshard.core.checkpoint.manifest import ShardRecord
from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.conversion.convert import convert
from reshard.core.errors import VerificationError
from reshard.core.files.any_format import read_index
from reshard.core.files.digests import file_digests
from reshard.core.layouts.manifests import read_manifest
from reshard.core.plan.plan import ConversionPlan
from reshard.core.request.conversion import build_request
from reshard.core.request.source import FingerprintRequest
from reshard.core.storage.reading import open_source
from reshard.core.storage.urls import parse_url
from reshard.core.strategy.files import write_strategy
from reshard.core.target.workspace import Workspace
from reshard.core.tensor.fingerprint import box_fingerprint, fingerprint_text
from reshard.core.tensor.layout import ParameterLayout
from reshard.core.transfer import fetches, reader
from reshard.core.transfer.writer import transform_ranks
from reshard.core.verification.compare import fingerprint_checkpoint
from reshard.core.verification.published import verify_target
from reshard.core.verification.shard_fingerprints import FileFingerprints
from reshard.core.verification.values import ContentCheck, target_starts
from tests.support.buffers import Buffers
from tests.support.changed_values import SOURCE_DEVICES, TARGET_DEVICES, draw_job
from tests.support.checkpoints import ALL_CASES, case
from tests.support.ckpt_writer import checkpoint_bytes
from tests.support.phases import Phases
from tests.support.plans import make_strategy
from tests.support.records import change_record
from tests.support.reference import RandomLayout, shard_of
from tests.support.spoiling import copied, file_of, spoil

FOUR_TO_THREE = case(7009)
PIPELINES = case(7011)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "out"


def content(url: Path) -> tuple[str, ...]:
    return verify_target(str(url), VerifyLevel.CONTENT).problems


# ---- what is right ----


@pytest.mark.parametrize(
    ("number", "options"),
    [
        *((int(each.directory.name[5:]), {}) for each in ALL_CASES[::3]),
        (7011, {"layout": "unified", "target_strategy": ""}),
        (7001, {"remove_redundancy": True, "format": "safetensors"}),
        (7009, {"cast": ["*=bfloat16"], "append_info": ["step_num=3", "note=yes"]}),
    ],
)
def test_conversions_are_their_sources(number: int, options: Mapping[str, Any], target: Path) -> None:
    found = case(number)
    report = convert(found.request(target, verify="content", **options))
    assert report.verified is VerifyLevel.CONTENT
    assert report.compared >= len(found.want[0])
    assert report.compared_bytes > 0
    manifest = read_manifest(parse_url(str(target)))
    assert manifest is not None
    assert manifest.verified is VerifyLevel.CONTENT
    assert content(target) == ()
    assert report.fingerprint == fingerprint_checkpoint(FingerprintRequest(source=str(target))).fingerprint


def test_an_encrypted_target_reports_no_fingerprint(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", "1234567890123456")
    report = convert(FOUR_TO_THREE.request(target, verify="content", encrypt_key="env:KEY"))
    assert (report.verified, report.fingerprint) == (VerifyLevel.CONTENT, None)


def test_values_that_were_not_compared_have_no_fingerprint(target: Path) -> None:
    assert convert(FOUR_TO_THREE.request(target)).fingerprint is None


def test_what_was_converted_before_is_compared_later(target: Path) -> None:
    convert(PIPELINES.request(target, verify="none"))
    report = convert(PIPELINES.request(target, verify="content"))
    assert (report.written_bytes, report.compared) == (0, 8)
    assert json.loads((target / ".reshard/manifest.json").read_text())["verified"] == "content"
    assert verify_target(str(target), VerifyLevel.CHECKSUM).problems == ()


def test_values_are_compared_when_all_ranks_are_there(target: Path) -> None:
    first = convert(FOUR_TO_THREE.request(target, verify="content", ranks="0-1"))
    assert (first.committed, first.compared, first.verified) == (False, 0, VerifyLevel.CHECKSUM)
    last = convert(FOUR_TO_THREE.request(target, verify="content", ranks="2"))
    assert (last.committed, last.compared) == (True, 7)


def test_ranks_that_another_run_only_wrote_do_not_count(target: Path) -> None:
    convert(FOUR_TO_THREE.request(target, verify="checksum", ranks="0-1"))
    last = convert(FOUR_TO_THREE.request(target, verify="content", ranks="2"))
    assert (last.committed, last.missing_ranks) == (False, (0, 1))
    assert convert(FOUR_TO_THREE.request(target, verify="content")).committed


def test_records_have_the_parts_of_the_whole(target: Path) -> None:
    convert(FOUR_TO_THREE.request(target, verify="content", layout="unified", target_strategy=""))
    workspace = Workspace(
        parse_url(str(target)), json.loads((target / ".reshard/manifest.json").read_text())["identity"]
    )
    record = workspace.read_record(0)
    file = open_source(parse_url(str(target / record.file)))
    entries = read_index(file).entries
    data = (target / record.file).read_bytes()
    for parameter, part in zip(record.parameters, record.parts, strict=True):
        entry = entries[parameter.name]
        values = np.frombuffer(data, f"<u{entry.dtype.itemsize}", int(np.prod(entry.shape)), entry.extents[0].offset)
        assert part == fingerprint_text(box_fingerprint(values.reshape(entry.shape), (0,) * len(entry.shape)))
    file.close()


# ---- what is wrong with the source ----


@pytest.mark.parametrize("parts", [["x" * 16], ["0"], [1], []], ids=str)
def test_a_record_of_damaged_parts_counts_as_none(target: Path, parts: list[object]) -> None:
    convert(FOUR_TO_THREE.request(target, verify="content", ranks="0"))
    [path] = target.parent.glob("*/.reshard/records/rank_0.json")
    change_record(path, parts=parts * len(json.loads(path.read_text())["parts"]))
    assert not convert(FOUR_TO_THREE.request(target, verify="content", ranks="1-2")).committed
    assert convert(FOUR_TO_THREE.request(target, verify="content")).committed


@pytest.fixture
def differing(tmp_path: Path) -> Path:
    """A source of which one rank has another copy of a parameter that four ranks share."""
    source = copied(PIPELINES, tmp_path / "src")
    spoil(file_of(source, 3), "layers.1.weight_1")
    return source


def test_a_copy_that_differs_is_found_although_it_was_not_read(target: Path, differing: Path) -> None:
    with pytest.raises(VerificationError) as caught:
        convert(PIPELINES.request(target, source=str(differing), verify="content"))
    reason = "source: parameter 'layers.1.weight_1', [0:96]: one content on rank_0, rank_1, rank_2, another on rank_3"
    assert reason in str(caught.value)
    assert "recover=True and fault_ranks='RANKS'" in str(caught.value)
    assert not target.exists()


def test_a_failed_comparison_is_not_forgotten_by_a_run_that_looks_less_closely(target: Path, differing: Path) -> None:
    with pytest.raises(VerificationError):
        convert(PIPELINES.request(target, source=str(differing), verify="content"))
    convert(PIPELINES.request(target, source=str(differing), verify="checksum"))
    assert json.loads((target / ".reshard/manifest.json").read_text())["verified"] == "checksum"


def test_of_a_stale_replica_a_few_parameters_are_looked_into(tmp_path: Path) -> None:
    names = [f"w{number}" for number in range(6)]
    layouts = {name: ParameterLayout((3,), ((),), nested=True) for name in names}
    write_strategy(make_strategy(layouts), str(tmp_path / "strategy.ckpt"))
    for rank in range(3):
        folder = tmp_path / "src" / f"rank_{rank}"
        folder.mkdir(parents=True)
        values = np.zeros(20_000, np.float32)
        values[-1] = rank // 2  # planning looks at the first ones
        tensors = ((name, "Float32", values.shape, values.tobytes()) for name in names)
        (folder / "m.ckpt").write_bytes(checkpoint_bytes(*tensors))
    request = build_request(
        source=str(tmp_path / "src"),
        source_strategy=str(tmp_path / "strategy.ckpt"),
        target=str(tmp_path / "out"),
        layout="unified",
        verify="content",
        workers=1,
    )
    phases = Phases()
    with pytest.raises(VerificationError) as caught:
        convert(request, phases)
    for name in names[:4]:
        assert f"source: parameter '{name}', [0:20000]: one content on rank_0, rank_1, another on rank_2" in str(
            caught.value
        )
    for name in names[4:]:
        assert f"parameter '{name}': differs, too; its replicas in the source were not read" in str(caught.value)
    assert "recover=True and fault_ranks='RANKS'" in str(caught.value)
    # ranks 0 and 1 are read once more, for four parameters; nothing is located in the target
    assert phases.found[-1] == ("comparing replicas", 2 * 4 * 80_000, 2 * 4 * 80_000)


# ---- what is wrong with the target ----


def test_ranks_with_wrong_values_are_named_and_done_again(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill = reader.LocalBlockReader.fill
    spoiled: list[str] = []

    def zeroing(self: reader.LocalBlockReader, blocks: Sequence[fetches.RankBlock]) -> None:
        fill(self, blocks)
        parts = [part for part in blocks[0].chunks if part.name == "layers.1.weight_1"]
        if parts and not spoiled:
            spoiled.append(parts[0].name)
            blocks[0].buffer[parts[0].position : parts[0].position + 8] = 0

    monkeypatch.setattr(reader.LocalBlockReader, "fill", zeroing)
    request = FOUR_TO_THREE.request(target, verify="content", workers=1)
    phases = Phases()
    with pytest.raises(VerificationError) as caught:
        convert(request, phases)
    reason = (
        "parameter 'layers.1.weight_1', [0:16, 0:8, 0:8, 0:4]: on rank_0 of the target: other values than in the "
        "source's files: fingerprint "
    )
    assert reason in str(caught.value)
    assert "The same command converts the target's ranks named here again" in str(caught.value)
    assert not target.exists()
    phase, total_bytes, done_bytes = phases.found[-1]
    assert phase == "locating differences"
    assert done_bytes == total_bytes > 0
    assert [rank.outcome.value for rank in convert(request).ranks] == ["written", "resumed", "resumed"]


# ---- random layouts, and parameters that are split, joined, turned and cast ----


def parts_of_file(plan: ConversionPlan, path: Path, record: ShardRecord) -> ShardRecord:
    """A record with what the file has now, digests apart."""
    file = open_source(parse_url(str(path)))
    index = read_index(file)
    found = FileFingerprints(index, target_starts(plan, record.rank))
    file_digests(file, index, 2999, take=found.add)  # elements are cut off at its ends
    file.close()
    parts = found.fingerprints()
    return record.model_copy(update={"parts": tuple(fingerprint_text(parts[each.name]) for each in record.parameters)})


def problems_of(
    plan: ConversionPlan, out: Path, records: tuple[ShardRecord, ...], *, all_replicas: bool = False
) -> list[tuple[str, tuple[int, ...]]]:
    check = ContentCheck(plan, all_replicas=all_replicas)
    for record in records:
        check.add_target(parts_of_file(plan, out / record.file, record))
    for rank in check.source_ranks:
        check.add_source(rank, check.source_parts(rank))
    # ranks that are given twice count once
    check.add_target(parts_of_file(plan, out / records[0].file, records[0]))
    check.add_source(check.source_ranks[0], check.source_parts(check.source_ranks[0]))
    return [(problem.message, problem.ranks) for problem in check.problems(workers=2)]


@settings(max_examples=4)
@given(st.data())
def test_any_change_on_either_side_is_found(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    directory = tmp_path_factory.mktemp("work")
    job = draw_job(data, directory, remote=False)
    plan = job.plan()
    budget = Buffers(scratch_bytes=1000, a_block_bytes=1000, wide_bytes=1000)
    out = directory / "out"
    records = transform_ranks(
        plan,
        range(TARGET_DEVICES),
        parse_url(str(out)),
        identity="i",
        budget=budget,
        prefetch=1,
        advance=lambda _: None,
    )
    assert problems_of(plan, out, records) == []

    rank = data.draw(st.integers(0, TARGET_DEVICES - 1))
    name = data.draw(st.sampled_from(sorted(job.target)))
    size = shard_bytes(job.target[name][1], job.target_cuts[name], rank)
    byte = data.draw(st.integers(0, size - 1))
    spoil(out / records[rank].file, name, byte)
    [(message, ranks), *_] = problems_of(plan, out, records)
    assert f"parameter {name!r}" in message
    assert rank in ranks
    spoil(out / records[rank].file, name, byte)

    rank = data.draw(st.integers(0, SOURCE_DEVICES - 1))
    name = data.draw(st.sampled_from(sorted(job.source)))
    size = shard_bytes(job.source[name][1], job.source_cuts[name], rank)
    # the highest bytes of values: a cast may round others away
    itemsize = job.source[name][1].itemsize
    byte = data.draw(st.integers(0, size // itemsize - 1)) * itemsize + itemsize - 1
    spoil(directory / "src" / f"rank_{rank}" / "m.ckpt", name, byte)
    assert problems_of(job.plan(), out, records, all_replicas=True)
    places = np.arange(job.source[name][1].size).reshape(job.source[name][1].shape)
    here = shard_of(places, job.source_cuts[name], rank)
    others = (shard_of(places, job.source_cuts[name], other) for other in range(rank + 1, SOURCE_DEVICES))
    is_read = not any(np.array_equal(here, other) for other in others)
    assert bool(problems_of(job.plan(), out, records)) == is_read


def shard_bytes(tensor: np.ndarray, cut: RandomLayout, rank: int) -> int:
    return shard_of(tensor, cut, rank).nbytes
