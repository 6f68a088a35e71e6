"""Stages converted one by one are joined to one checkpoint, or nothing is made."""

import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import xxhash

from reshard.core.checkpoint.manifest import dump_record, parse_manifest, parse_shard_record, read_manifest
from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.conversion.convert import convert
from reshard.core.conversion.join_stages import join_parts
from reshard.core.errors import InputError, StorageError, TargetBusyError, TargetError, VerificationError
from reshard.core.request.conversion import build_request
from reshard.core.runtime.progress import SilentProgress
from reshard.core.storage.lease import held_lease
from reshard.core.storage.lease_holder import new_holder
from reshard.core.storage.urls import parse_url
from reshard.core.strategy.files import read_strategy, write_strategy
from reshard.core.strategy.model import OperatorStrategy, StageStrategy, Strategy
from reshard.core.target.workspace import record_digest
from reshard.core.tensor.layout import ParameterLayout
from reshard.core.verification.published import verify_target
from tests.support.checkpoints import CONVERSIONS, read_ckpt, read_tree
from tests.support.ckpt_writer import checkpoint_bytes
from tests.support.loading import load_rank
from tests.support.places import FIXTURES
from tests.support.plans import make_strategy
from tests.support.records import change_record

CASE = CONVERSIONS / "case_7010"
PARTS = FIXTURES / "subnetwork_parts"
Make = Callable[..., str]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Converts one stage and returns where."""

    def make(stage: int, **options: object) -> str:
        target = tmp_path / f"stage{stage}{len(list(tmp_path.iterdir()))}"
        convert(
            build_request(
                **{
                    "source": str(CASE / "src"),
                    "target": str(target),
                    "source_strategy": str(CASE / f"src_stages/strategy_{4 * stage}.ckpt"),
                    "target_strategy": str(CASE / "dst_strategy.ckpt"),
                    **options,
                }
            )
        )
        return str(target)

    return make


@pytest.mark.parametrize("options", [{}, {"format": "safetensors", "write_crc": True}, {"write_crc": True}])
def test_parts_become_one_checkpoint(make: Make, tmp_path: Path, options: dict[str, object]) -> None:
    target = tmp_path / "joined"
    report = join_parts([make(1, **options), make(0, **options)], str(target))
    assert (report.stages, report.ranks, report.parameters) == ((0, 1), 2, 6)
    assert report.size_bytes == sum(path.stat().st_size for path in target.glob("rank_*/*"))
    assert {path.name for path in target.iterdir()} == {".reshard", "rank_0", "rank_1"}
    if not options:
        assert {str(path.relative_to(target)): read_ckpt(path) for path in target.glob("rank_*/*")} == {
            str(path.relative_to(PARTS)): read_ckpt(path) for path in PARTS.glob("rank_*/*")
        }
    assert not verify_target(str(target), VerifyLevel.CHECKSUM).problems
    strategy = str(CASE / "dst_strategy.ckpt")
    again = tmp_path / "again"
    convert(
        build_request(
            source=str(target), target=str(again), source_strategy=strategy, target_strategy=strategy, format="ckpt"
        )
    )
    assert read_tree(again) == read_tree(CASE / "want")


def test_what_was_joined_already_is_not_joined_again(make: Make, tmp_path: Path) -> None:
    parts = [make(0), make(1)]
    join_parts(parts, str(tmp_path / "joined"))
    before = (tmp_path / "joined/.reshard/manifest.json").stat()
    join_parts(parts, str(tmp_path / "joined"))
    assert (tmp_path / "joined/.reshard/manifest.json").stat().st_mtime_ns == before.st_mtime_ns


def test_a_part_of_the_joined_that_is_damaged_is_found(make: Make, tmp_path: Path) -> None:
    target = tmp_path / "joined"
    join_parts([make(0), make(1)], str(target))
    path = target / "rank_1/checkpoint_1_part1.ckpt"
    data = bytearray(path.read_bytes())
    data[-200] ^= 1
    path.chmod(0o600)
    path.write_bytes(data)
    (target / "rank_0/checkpoint_0_part2.ckpt").write_bytes(b"")
    problems = verify_target(str(target), VerifyLevel.CHECKSUM).problems
    assert len(problems) == 2
    assert "its bytes are not those that were written" in problems[0]
    assert "checkpoint_0_part2.ckpt: does not belong to this checkpoint" in problems[1]


def test_what_a_killed_run_left_is_not_in_the_joined(make: Make, tmp_path: Path) -> None:
    left = tmp_path / "joined.reshard-partial/rank_0/.checkpoint_0_part0.ckpt.0123abcd.tmp"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"half")
    join_parts([make(0), make(1)], str(tmp_path / "joined"))
    assert sorted(path.name for path in (tmp_path / "joined/rank_0").iterdir()) == [
        "checkpoint_0_part0.ckpt",
        "checkpoint_0_part1.ckpt",
    ]


def interrupted(make: Make, tmp_path: Path) -> list[str]:
    """Parts, and beside `joined` what a run leaves that was killed when it had joined rank 0."""
    parts = [make(0), make(1)]
    join_parts(parts, str(tmp_path / "other"))
    (tmp_path / "other/.reshard/manifest.json").unlink()
    (tmp_path / "other/.reshard/records/rank_1.json").unlink()
    (tmp_path / "other").rename(tmp_path / "joined.reshard-partial")
    return parts


def test_ranks_that_a_killed_run_has_joined_are_not_copied_again(make: Make, tmp_path: Path) -> None:
    parts, notes = interrupted(make, tmp_path), Notes()
    file = Path("rank_0/checkpoint_0_part0.ckpt"), Path("rank_1/checkpoint_1_part1.ckpt")
    left = [(tmp_path / "joined.reshard-partial" / each).stat().st_ino for each in file]
    join_parts(parts, str(tmp_path / "joined"), notes)
    found = [(tmp_path / "joined" / each).stat().st_ino for each in file]
    assert (found[0] == left[0], found[1] == left[1]) == (True, False)
    assert notes.notes == ["resuming: 1 of 2 ranks are joined already; checking them"]
    assert not verify_target(str(tmp_path / "joined"), VerifyLevel.CHECKSUM).problems


@pytest.mark.parametrize("damaged", ["rank_0/checkpoint_0_part1.ckpt", ".reshard/records/rank_0.json"])
def test_a_rank_whose_file_or_record_was_damaged_since_is_copied_again(
    make: Make, tmp_path: Path, damaged: str
) -> None:
    parts = interrupted(make, tmp_path)
    path = tmp_path / "joined.reshard-partial" / damaged
    path.chmod(0o600)
    path.write_bytes(path.read_bytes()[:-9])
    join_parts(parts, str(tmp_path / "joined"))
    assert not verify_target(str(tmp_path / "joined"), VerifyLevel.CHECKSUM).problems


def test_a_joined_checkpoint_that_lost_its_manifest_gets_it_back(make: Make, tmp_path: Path) -> None:
    parts = [make(0), make(1)]
    join_parts(parts, str(tmp_path / "joined"))
    (tmp_path / "joined/.reshard/manifest.json").unlink()
    join_parts(parts, str(tmp_path / "joined"))
    assert not verify_target(str(tmp_path / "joined"), VerifyLevel.CHECKSUM).problems


def test_parts_are_not_joined_where_one_is_being_converted(make: Make, tmp_path: Path) -> None:
    """What is unfinished there would count as this join's earlier work."""
    parts = [make(0), make(1)]
    shutil.copytree(parts[0], tmp_path / "joined.reshard-partial")
    (tmp_path / "joined.reshard-partial/.reshard/manifest.json").unlink()
    with pytest.raises(TargetError, match=r"something else is unfinished in .*joined\.reshard-partial\. Finish that"):
        join_parts(parts, str(tmp_path / "joined"))
    assert (tmp_path / "joined.reshard-partial/rank_0/checkpoint_0_part0.ckpt").exists()


def test_to_another_storage(make: Make) -> None:
    target = "memory://join-parts/joined"
    fs = fsspec.filesystem("memory")
    try:
        join_parts([make(0), make(1)], target)
        assert not verify_target(target, VerifyLevel.CHECKSUM).problems
        with pytest.raises(InputError, match=r"is not empty"):
            join_parts([make(0, prefix="x_"), make(1, prefix="x_")], target)
    finally:
        fs.rm("/join-parts", recursive=True)


def test_a_join_on_another_storage_goes_on_where_it_was_interrupted(make: Make) -> None:
    parts, target = [make(0), make(1)], "memory://join-parts/joined"
    fs = fsspec.filesystem("memory")
    try:
        join_parts(parts, target)
        files = [f"/join-parts/joined/rank_{rank}/checkpoint_{rank}_part0.ckpt" for rank in (0, 1)]
        written = [fs.created(file) for file in files]
        fs.rm("/join-parts/joined/.reshard/manifest.json")
        fs.rm("/join-parts/joined/.reshard/records/rank_1.json")
        join_parts(parts, target)
        assert [fs.created(file) == before for file, before in zip(files, written, strict=True)] == [True, False]
        assert not verify_target(target, VerifyLevel.CHECKSUM).problems
        fs.pipe("/join-parts/joined/.reshard/manifest.json", b"{")
        with pytest.raises(TargetError, match=r"manifest\.json: not a readable manifest: (?!.*overwrite)"):
            join_parts(parts, target)
    finally:
        fs.rm("/join-parts", recursive=True)


OF_STAGE_1 = ["layers.0.*", "layers.2.*", "layers.3.*", "adam_m.*"]
"""Its parameters; stage 0 has layers 1 and 5."""
RENAMED = {"layers.1.weight_1": "tied", "adam_m.layers.4.weight_4": "adam_m.new"}


def contents(directory: Path) -> dict[str, dict[str, Any]]:
    """Rank folder -> all parameters of its files."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(directory.glob("rank_*/*.ckpt")):
        found.setdefault(path.parent.name, {}).update(read_ckpt(path))
    return found


@pytest.mark.parametrize(
    "options",
    [
        {"select": "weights-only"},
        {"exclude": ["adam_*"]},
        {"exclude": ["layers.5.*"]},
        {"include": ["layers.*"]},
        {"include": ["layers.1.*", "layers.2.*"]},
        {"cast": ["*=bfloat16"]},
        {"cast": ["adam_*=float16"], "select": "all"},
        {"cast": ["layers.1.*=float16"], "exclude": ["layers.0.*"]},
    ],
    ids=str,
)
def test_parts_with_a_selection_and_casts_are_joined_as_the_whole_is_converted(
    make: Make, tmp_path: Path, options: dict[str, Any]
) -> None:
    """A rule may fit nothing in a stage if it fits what another one has."""
    whole = make(0, source_strategy=str(CASE / "src_stages"), **options)
    join_parts([make(0, **options), make(1, **options)], str(tmp_path / "joined"))
    assert contents(tmp_path / "joined") == contents(Path(whole))
    assert not verify_target(str(tmp_path / "joined"), VerifyLevel.CHECKSUM).problems
    manifest, converted = (read_manifest(parse_url(str(place))) for place in (tmp_path / "joined", whole))
    assert manifest
    assert converted
    assert (manifest.changes, set(manifest.excluded)) == (converted.changes, set(converted.excluded))


def test_renamed_parameters_of_several_stages(make: Make, tmp_path: Path) -> None:
    whole = read_strategy(str(CASE / "dst_strategy.ckpt"))
    layouts = {RENAMED.get(name, name): layout for name, layout in whole.stages[0].layouts.items()}
    write_strategy(Strategy((StageStrategy(0, layouts),), "a test", merged=False), str(tmp_path / "renamed.ckpt"))
    options = {
        "target_strategy": str(tmp_path / "renamed.ckpt"),
        "rename": [r"re:layers\.1\.(.*)=tied", r"re:(adam_m\.).*=\1new"],
    }
    converted = make(0, source_strategy=str(CASE / "src_stages"), **options)
    join_parts([make(0, **options), make(1, **options)], str(tmp_path / "joined"))
    assert contents(tmp_path / "joined") == contents(Path(converted))
    weights = {**options, "select": "weights-only", "rename": options["rename"]}
    parts = [make(0, **weights), make(1, **weights)]
    join_parts(parts, str(tmp_path / "weights"))
    assert "adam_m.new" not in contents(tmp_path / "weights")["rank_0"]


def test_a_stage_of_which_no_sharded_parameter_is_selected(make: Make, tmp_path: Path) -> None:
    options = {"exclude": OF_STAGE_1}
    whole = make(0, source_strategy=str(CASE / "src_stages"), **options)
    join_parts([make(0, **options), make(1, **options)], str(tmp_path / "joined"))
    assert contents(tmp_path / "joined") == contents(Path(whole))
    join_parts([make(0, **options)], str(tmp_path / "alone"))
    assert contents(tmp_path / "alone") == contents(Path(whole))


@pytest.mark.parametrize("options", [{"exclude": ["adan_*"]}, {"cast": ["adan_*=float16"]}, {"rename": ["adan=adan2"]}])
def test_a_rule_that_fits_no_stage_is_a_mistake(make: Make, options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="matches no parameter"):
        make(0, **options)


@pytest.mark.parametrize("options", [{"select": "weights-only"}, {"exclude": ["adam_*"]}])
def test_parts_with_different_selections_are_not_joined(make: Make, tmp_path: Path, options: dict[str, object]) -> None:
    """The moments of one stage only would be in the result."""
    with pytest.raises(
        InputError, match=r"different selections, .* of one of them only: adam_m\.layers\.4\.weight_4\. "
    ):
        join_parts([make(0), make(1, **options)], str(tmp_path / "joined"))


OF_LAYER_0 = {"transpose": {"parameters": "layers.0.{x:*}"}}
OF_LAYER_1 = {"transpose": {"parameters": "layers.1.{x:*}", "axes": [0, 2, 1]}}
OF_ALL_LAYERS = {"transpose": {"parameters": "layers.{n}.{x:*}"}}


@pytest.fixture
def of_steps(tmp_path: Path) -> Callable[..., dict[str, str]]:
    """Options with a document of these steps."""

    def write(*steps: object) -> dict[str, str]:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.json"
        path.write_text(json.dumps({"steps": steps}))
        return {"changes": str(path)}

    return write


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ({"cast": ["layers.*=bfloat16"]}, {}, r"different casts, and those of .* of parameters in .*: layers\.1\."),
        ({}, {"cast": ["*=float16"]}, r"different casts, and those of "),
        ({"cast": ["*=float16"]}, {"cast": ["*=bfloat16"]}, r"different casts, "),
        ({"cast": ["*.weight_5=float16", "*=bfloat16"]}, {"cast": ["*=float16"]}, r"different casts, "),
        ({}, {"transpose": ["layers.*"]}, r"different transpositions, "),
        ({"cast": ["*=float16"]}, {"transpose": ["layers.*"]}, r"different transpositions and casts, "),
    ],
    ids=str,
)
def test_parts_that_were_changed_differently_are_not_joined(
    make: Make, tmp_path: Path, first: dict[str, Any], second: dict[str, Any], message: str
) -> None:
    parts = [make(0, **first), make(1, **second)]
    with pytest.raises(InputError, match=rf"do not go together: they were converted with {message}") as caught:
        join_parts(parts, str(tmp_path / "joined"))
    assert all(part in str(caught.value) for part in parts)
    assert not (tmp_path / "joined").exists()


def test_parts_that_were_changed_by_different_steps_are_not_joined(
    make: Make, tmp_path: Path, of_steps: Callable[..., dict[str, str]]
) -> None:
    parts = [make(0), make(1, **of_steps(OF_ALL_LAYERS))]
    with pytest.raises(
        InputError, match=r"with different steps, and those of .* parameters in .*: layers\.1\.weight_1"
    ):
        join_parts(parts, str(tmp_path / "joined"))


def test_parts_with_steps_for_their_own_parameters_are_joined(
    make: Make, tmp_path: Path, of_steps: Callable[..., dict[str, str]]
) -> None:
    converted = make(0, source_strategy=str(CASE / "src_stages"), **of_steps(OF_LAYER_0, OF_LAYER_1))
    join_parts([make(0, **of_steps(OF_LAYER_1)), make(1, **of_steps(OF_LAYER_0))], str(tmp_path / "joined"))
    assert contents(tmp_path / "joined") == contents(Path(converted))


@pytest.mark.parametrize(
    ("first", "second", "whole"),
    [
        ({"cast": ["layers.1.*=float16"]}, {}, {"cast": ["layers.1.*=float16"]}),
        (
            {"cast": ["layers.1.*=float16"]},
            {"cast": ["layers.0.*=bfloat16"]},
            {"cast": ["layers.1.*=float16", "layers.0.*=bfloat16"]},
        ),
        (
            {"cast": ["adam_*=float16", "*=bfloat16"]},
            {"cast": ["*=bfloat16", "adam_*=float16"]},
            {"cast": ["*=bfloat16"]},
        ),
        ({}, {"transpose": ["layers.0.*"]}, {"transpose": ["layers.0.*"]}),
        ({"cast_overflow": "allow"}, {}, {}),
    ],
    ids=str,
)
def test_parts_with_rules_of_their_own_are_joined_if_the_whole_would_be_the_same(
    make: Make, tmp_path: Path, first: dict[str, Any], second: dict[str, Any], whole: dict[str, Any]
) -> None:
    converted = make(0, source_strategy=str(CASE / "src_stages"), **whole)
    join_parts([make(0, **first), make(1, **second)], str(tmp_path / "joined"))
    assert contents(tmp_path / "joined") == contents(Path(converted))
    assert not verify_target(str(tmp_path / "joined"), VerifyLevel.CHECKSUM).problems


class TestRefusals:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"format": "safetensors"}, "different formats"),
            ({"prefix": "other_"}, "different prefixes"),
            ({"remove_redundancy": True}, "different numbers of copies"),
            ({"target_strategy": str(CASE / "dst_strategy.json")}, ""),
        ],
    )
    def test_parts_of_different_kinds(
        self, make: Make, tmp_path: Path, options: dict[str, object], message: str
    ) -> None:
        parts = [make(0), make(1, **options)]
        if not message:
            join_parts(parts, str(tmp_path / "joined"))
            return
        with pytest.raises(InputError, match=rf"do not go together: they have {message}"):
            join_parts(parts, str(tmp_path / "joined"))
        assert not (tmp_path / "joined").exists()

    def test_a_stage_twice(self, make: Make, tmp_path: Path) -> None:
        message = r"are both of stage 1, and their files have the same names: .* Name each stage once"
        with pytest.raises(InputError, match=message):
            join_parts([make(1), make(1), make(0)], str(tmp_path / "joined"))

    def test_two_first_stages_of_different_parameters(self, tmp_path: Path) -> None:
        layout = ParameterLayout((1,), ((),), nested=True)
        write_strategy(make_strategy({"a": layout, "b": layout}), str(tmp_path / "target.ckpt"))
        for name in ("a", "b"):
            own = Strategy((StageStrategy(0, {name: layout}),), "own", merged=False)
            write_strategy(own, str(tmp_path / f"{name}.ckpt"))
            for rank in (0, 1):  # the latter is another stage's
                (tmp_path / f"source_{name}/rank_{rank}").mkdir(parents=True)
                held = name if rank == 0 else "other"
                (tmp_path / f"source_{name}/rank_{rank}/x.ckpt").write_bytes(
                    checkpoint_bytes((held, "Int8", (4,), b"four"))
                )
            convert(
                build_request(
                    source=str(tmp_path / f"source_{name}"),
                    target=str(tmp_path / f"part_{name}"),
                    source_strategy=str(tmp_path / f"{name}.ckpt"),
                    target_strategy=str(tmp_path / "target.ckpt"),
                )
            )
        parts = [str(tmp_path / f"part_{name}") for name in ("a", "b")]
        with pytest.raises(InputError, match=r"part_a and .*part_b are both of stage 0, and their files have the same"):
            join_parts(parts, str(tmp_path / "joined"))

    def test_a_stage_that_is_missing(self, make: Make, tmp_path: Path) -> None:
        message = r"no part has 4 parameters of the target's strategy .*: there are the parts of stages 0; name"
        with pytest.raises(InputError, match=message):
            join_parts([make(0)], str(tmp_path / "joined"))

    def test_what_is_no_part(self, make: Make, tmp_path: Path) -> None:
        with pytest.raises(InputError, match=r"is not a finished conversion"):
            join_parts([str(CASE / "src")], str(tmp_path / "joined"))
        whole = make(0, source_strategy=str(CASE / "src_strategy.ckpt"))
        with pytest.raises(InputError, match=r"is not a part: it was not converted with one pipeline stage's own"):
            join_parts([whole], str(tmp_path / "joined"))

    def test_an_occupied_target(self, make: Make, tmp_path: Path) -> None:
        parts = [make(0), make(1)]
        (tmp_path / "joined").mkdir()
        (tmp_path / "joined/x").touch()
        with pytest.raises(InputError, match=r"joined: is not empty\. Name another target"):
            join_parts(parts, str(tmp_path / "joined"))
        with pytest.raises(InputError, match=r"is the source itself"):
            join_parts(parts, parts[0])
        state = parse_url(str(tmp_path / "new.reshard-partial/.reshard"))
        with held_lease(state.child("leases"), new_holder([0, 1])), pytest.raises(TargetBusyError):
            join_parts(parts, str(tmp_path / "new"))
        (tmp_path / "new.reshard-partial/.reshard/identity").write_text("another")
        with pytest.raises(InputError, match=r"something else is unfinished in .*new\.reshard-partial"):
            join_parts(parts, str(tmp_path / "new"))

    def test_parts_of_different_runs(self, make: Make, tmp_path: Path) -> None:
        parts = [make(0, append_info=["epoch_num=1"]), make(1, append_info=["epoch_num=2"])]
        with pytest.raises(InputError, match=r"parameter 'epoch_num' of rank_0, which no strategy knows, has other"):
            join_parts(parts, str(tmp_path / "joined"))
        assert not (tmp_path / "joined").exists()

    def test_a_damaged_part(self, make: Make, tmp_path: Path) -> None:
        parts = [make(0), make(1)]
        path = Path(parts[0], "rank_1/checkpoint_1_part0.ckpt")
        data = bytearray(path.read_bytes())
        data[-200] ^= 1
        path.write_bytes(data)
        with pytest.raises(VerificationError, match=r"its bytes are not those that were written"):
            join_parts(parts, str(tmp_path / "joined"))
        assert not (tmp_path / "joined").exists()
        manifest = Path(parts[1], ".reshard/manifest.json")
        text = manifest.read_text()
        change_record(manifest, ranks=json.loads(text)["ranks"][:1])
        with pytest.raises(InputError, match=r"the record of rank_1 is not the one that its manifest was written for"):
            join_parts(parts, str(tmp_path / "joined"))
        manifest.write_text(text)
        shutil.copyfile(Path(parts[0], ".reshard/records/rank_0.json"), Path(parts[0], ".reshard/records/rank_1.json"))
        with pytest.raises(InputError, match=r"is of another conversion"):
            join_parts(parts, str(tmp_path / "joined"))


def rewrite_record(part: str, rank: int, **changes: object) -> None:
    """What somebody may do who makes a part: its manifest goes with its records."""
    state = Path(part) / ".reshard"
    record = parse_shard_record((state / f"records/rank_{rank}.json").read_bytes(), "").model_copy(update=changes)
    (state / f"records/rank_{rank}.json").write_bytes(dump_record(record))
    manifest = parse_manifest((state / "manifest.json").read_bytes(), "")
    ranks = [
        each.model_copy(update={"file": record.file, "record_digest": record_digest(record)})
        if each.rank == rank
        else each
        for each in manifest.ranks
    ]
    (state / "manifest.json").write_bytes(dump_record(manifest.model_copy(update={"ranks": tuple(ranks)})))


def plan_document(part: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(gzip.decompress((Path(part) / ".reshard/plan.json.gz").read_bytes()))
    return document


def rewrite_plan(part: str, document: dict[str, Any]) -> None:
    """What somebody may do who makes a part: its manifest goes with its plan."""
    plan = gzip.compress(json.dumps(document).encode())
    (Path(part) / ".reshard/plan.json.gz").write_bytes(plan)
    change_record(Path(part) / ".reshard/manifest.json", plan_digest=xxhash.xxh3_128_hexdigest(plan))


@pytest.mark.parametrize("file", ["../../precious", "rank_0/../../precious", "{tmp_path}/precious", "../precious"])
def test_a_part_that_names_files_elsewhere_overwrites_nothing(make: Make, tmp_path: Path, file: str) -> None:
    parts = [make(0), make(1)]
    (tmp_path / "precious").write_text("mine")
    for path in (Path(parts[0]) / "rank_0").iterdir():
        for place in (tmp_path / "precious_of_the_part", tmp_path.parent / "precious_of_the_part"):
            shutil.copy(path, place)
    rewrite_record(parts[0], 0, file=file.format(tmp_path=tmp_path))
    with pytest.raises(TargetError, match="says that the file of rank_0 is .*, where no conversion writes it"):
        join_parts(parts, str(tmp_path / "joined"))
    assert (tmp_path / "precious").read_text() == "mine"
    assert not (tmp_path / "joined").exists()


def test_a_part_whose_record_and_plan_name_other_files(make: Make, tmp_path: Path) -> None:
    parts = [make(0), make(1)]
    rewrite_record(parts[0], 0, file="rank_0/checkpoint_0_part1.ckpt")
    with pytest.raises(TargetError, match="says that its file is 'rank_0/checkpoint_0_part1.ckpt', its plan says"):
        join_parts(parts, str(tmp_path / "joined"))
    assert not (tmp_path / "joined").exists()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("prefix", "../../precious"),
        ("prefix", "a/b"),
        ("shared_parameters", "9" * 5000),
        ("allow_missing", [1]),
    ],
)
def test_a_part_whose_plan_was_changed(make: Make, tmp_path: Path, field: str, value: object) -> None:
    parts = [make(0), make(1)]
    rewrite_plan(parts[0], plan_document(parts[0]) | {field: value})
    with pytest.raises(InputError, match="plan.json.gz: not a readable plan"):
        join_parts(parts, str(tmp_path / "joined"))
    assert not (tmp_path / "joined").exists()


@pytest.mark.parametrize("stage", ["/../../precious", -1, True, 0.5])
def test_a_part_whose_plan_has_odd_stages(make: Make, tmp_path: Path, stage: object) -> None:
    parts = [make(0), make(1)]
    document = plan_document(parts[0])
    document["source_strategy"]["stages"][0]["stage"] = stage
    rewrite_plan(parts[0], document)
    with pytest.raises(InputError, match="plan.json.gz: not a readable plan: .* is not a pipeline stage"):
        join_parts(parts, str(tmp_path / "joined"))


def test_links_where_parts_are_joined(make: Make, tmp_path: Path) -> None:
    parts = [make(0), make(1)]
    (tmp_path / "joined.reshard-partial").symlink_to(parts[0])
    with pytest.raises(TargetError, match="joined.reshard-partial: is a link to"):
        join_parts(parts, str(tmp_path / "joined"))
    assert not verify_target(parts[0], VerifyLevel.CHECKSUM).problems


def test_a_device_in_the_place_of_a_parts_file(make: Make, tmp_path: Path) -> None:
    parts = [make(0), make(1)]
    [file] = (Path(parts[0]) / "rank_0").iterdir()
    file.unlink()
    file.symlink_to("/dev/zero")
    with pytest.raises(StorageError, match="a device, not a regular file"):
        join_parts(parts, str(tmp_path / "joined"))


# ---- parameters that stages share ----

SHARED = {"tied": ParameterLayout((2,), ((0,), ()), nested=True), "norm": ParameterLayout((2,), ((),), nested=True)}
OWN = ParameterLayout((2,), ((0,),), nested=True)
TARGET_LAYOUTS = {
    "tied": ParameterLayout((4,), ((), (0,)), nested=True),
    "norm": ParameterLayout((4,), ((),), nested=True),
    "a": ParameterLayout((4,), ((0,),), nested=True),
    "b": ParameterLayout((4,), ((),), nested=True),
}
STEP = "global_step"
TIED = [bytes(range(start, start + 8)) for start in (0, 8)]


class Notes(SilentProgress):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


class Job:
    """Two stages of two ranks each, which share `tied` and `norm`; of their own they have `a` and `b`.

    No strategy knows the step, which all files have if there is any training state in them.
    """

    def __init__(self, directory: Path, *, state: bool = True) -> None:
        self.directory = directory
        self.state = state
        self.target = str(directory / "target.ckpt")
        write_strategy(make_strategy(TARGET_LAYOUTS), self.target)
        for stage in (0, 1):
            layouts = SHARED | {"ab"[stage]: OWN}
            operators = (OperatorStrategy("op", stage, ((2, 1),)),)
            strategy = Strategy((StageStrategy(stage, layouts, operators),), "own", merged=False)
            write_strategy(strategy, self.strategy(stage))
            for rank in (0, 1):
                self.write(stage, rank, TIED[rank])

    def strategy(self, stage: int) -> str:
        return str(self.directory / f"strategies/{stage}.ckpt")

    def write(self, stage: int, rank: int, tied: bytes) -> None:
        messages = [("tied", "Int8", [2, 4], tied), ("norm", "Int8", [4], b"norm")]
        messages += [("ab"[stage], "Int8", [4], b"own" + bytes([rank]))]
        messages += [(STEP, "Int32", [1], bytes(4))] if self.state else []
        file = self.directory / f"src/rank_{2 * stage + rank}/net-1_2.ckpt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(checkpoint_bytes(*messages))

    def convert(self, name: str, source_strategy: str, **options: object) -> str:
        target = str(self.directory / name)
        paths = {"source": str(self.directory / "src"), "target": target, "target_strategy": self.target}
        convert(build_request(**{**paths, "source_strategy": source_strategy, **options}))
        return target

    def parts(self, **options: object) -> list[str]:
        return [self.convert(f"part{stage}", self.strategy(stage), **options) for stage in (0, 1)]

    def at_once(self, **options: object) -> dict[str, object]:
        return self.loaded(self.convert("at_once", str(self.directory / "strategies"), **options))

    def loaded(self, directory: str) -> dict[str, object]:
        """Whole tensors, read from the files of a checkpoint."""
        return {name: np.asarray(value).tolist() for name, value in load_rank(directory, self.target)}


@pytest.mark.parametrize(
    "options", [{}, {"format": "safetensors", "write_crc": True}, {"write_crc": True}, {"remove_redundancy": True}]
)
@pytest.mark.parametrize("choice", ["fail", "1"])
def test_shared_parameters_that_are_alike_are_joined(tmp_path: Path, options: dict[str, object], choice: str) -> None:
    job, target = Job(tmp_path), str(tmp_path / "joined")
    report = join_parts(job.parts(**options), target, shared_parameters=choice)
    assert (report.parameters, report.ranks) == (4, 4)
    assert report.size_bytes == sum(path.stat().st_size for path in Path(target).glob("rank_*/*"))
    assert not verify_target(target, VerifyLevel.CHECKSUM).problems
    assert job.loaded(target) == job.at_once(**options)
    if not options:  # MindSpore would load the last of several
        taken, other = (1, 0) if choice == "1" else (0, 1)
        assert read_ckpt(Path(target, f"rank_3/checkpoint_3_part{taken}.ckpt")).keys() == {*SHARED, "ab"[taken], STEP}
        assert read_ckpt(Path(target, f"rank_3/checkpoint_3_part{other}.ckpt")).keys() == {"ab"[other], STEP}


def test_shared_parameters_that_differ_are_named(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.write(1, 1, TIED[1][::-1])
    parts = job.parts()
    with pytest.raises(InputError) as caught:
        join_parts(parts, str(tmp_path / "joined"))
    assert str(caught.value) == (
        f"{parts[0]}, {parts[1]}: have different copies of parameters that their stages share: tied (stage 0's is "
        "used; it differs from that of stage 1). Name the stage whose copies are right: --shared-parameters STAGE, "
        "or first"
    )
    assert not (tmp_path / "joined").exists()
    for choice, half in (("first", TIED[1]), ("0", TIED[1]), ("1", TIED[1][::-1])):
        target, notes = str(tmp_path / choice), Notes()
        join_parts(parts, target, notes, shared_parameters=choice)
        assert not verify_target(target, VerifyLevel.CHECKSUM).problems
        assert job.loaded(target)["tied"] == np.frombuffer(TIED[0] + half, np.int8).reshape(4, 4).tolist()
        [note] = [each for each in notes.notes if "stages hold DIFFERENT copies of tied parameters: ti" in each]
        manifest = read_manifest(parse_url(target))
        assert manifest is not None
        assert manifest.notes[1] == note


def test_joined_again_with_another_choice(tmp_path: Path) -> None:
    parts, target = Job(tmp_path).parts(), str(tmp_path / "joined")
    join_parts(parts, target)
    join_parts(parts, target, shared_parameters="first")  # they are alike: that is the same
    with pytest.raises(InputError, match="joined: is not empty"):
        join_parts(parts, target, shared_parameters="1")


def test_a_part_that_has_nothing_else_for_a_rank(tmp_path: Path) -> None:
    job, target = Job(tmp_path, state=False), str(tmp_path / "joined")
    parts = job.parts(remove_redundancy=True)  # of what it shares, each rank has something, of its own not all have
    with pytest.raises(InputError, match=r"part1: has nothing for rank_. but what .*--shared-parameters 1,"):
        join_parts(parts, target)
    join_parts(parts, target, shared_parameters="1")
    assert not verify_target(target, VerifyLevel.CHECKSUM).problems
    assert job.loaded(target) == job.at_once()


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ("2", r"the copies of stage 2 are to be taken .* but there are the parts of stages 0, 1"),
        ("9" * 5000, "must be first, fail, or the number of a stage"),
        ("last", r"--shared-parameters last: must be first, fail, or the number of a stage"),
    ],
)
def test_choices_that_are_none(tmp_path: Path, choice: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        join_parts(Job(tmp_path).parts(), str(tmp_path / "joined"), shared_parameters=choice)
