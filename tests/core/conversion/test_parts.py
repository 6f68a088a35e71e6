"""Parts that make one checkpoint together, and those that do not."""

import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import xxhash

from reshard.core.checkpoint.manifest import dump_record
from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.conversion.convert import convert
from reshard.core.errors import InputError, TargetBusyError, TargetError, VerificationError
from reshard.core.layouts.manifests import parse_manifest, parse_shard_record, read_manifest
from reshard.core.request.conversion import build_request
from reshard.core.storage.leases.lease import held_lease
from reshard.core.storage.leases.lease_holder import new_holder
from reshard.core.storage.urls import parse_url
from reshard.core.strategy.files import read_strategy, write_strategy
from reshard.core.strategy.model import StageStrategy, Strategy
from reshard.core.target.workspace import record_digest
from reshard.core.tensor.layout import ParameterLayout
from reshard.core.verification.published import verify_target
from tests.support.ckpt_writer import checkpoint_bytes
from tests.support.joining import join_parts
from tests.support.plans import make_strategy
from tests.support.records import change_record
from tests.support.stage_parts import CASE, Make, contents, maker_of_parts


@pytest.fixture
def make(tmp_path: Path) -> Make:
    return maker_of_parts(tmp_path)


OF_STAGE_1 = ["layers.0.*", "layers.2.*", "layers.3.*", "adam_m.*"]
"""Its parameters; stage 0 has layers 1 and 5."""
RENAMED = {"layers.1.weight_1": "tied", "adam_m.layers.4.weight_4": "adam_m.new"}


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
