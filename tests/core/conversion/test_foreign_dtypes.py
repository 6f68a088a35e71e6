"""Parameters of dtypes that MindSpore's files cannot hold: they can be left out, and do not affect the others."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.conversion.convert import convert
from reshard.core.conversion.load import plan_load
from reshard.core.conversion.planning import make_plan
from reshard.core.errors import InputError
from reshard.core.mindspore_api.loading import load_checkpoint
from reshard.core.records.catalog_json import catalog_from_json, catalog_to_json
from reshard.core.request.comparison import build_comparison
from reshard.core.request.conversion import build_request
from reshard.core.request.source import FingerprintRequest, SourceRequest
from reshard.core.source.recovery import StepState, assess_recovery
from reshard.core.strategy.files import write_strategy
from reshard.core.verification.compare import compare_checkpoints, fingerprint_checkpoint
from reshard.core.verification.published import verify_target
from tests.support.checkpoints import read_tree
from tests.support.ckpt_writer import checkpoint_bytes
from tests.support.diagnosed import diagnose
from tests.support.loading import load_rank
from tests.support.plans import as_layout, make_strategy
from tests.support.reference import RandomLayout

HALF = np.arange(8, dtype=np.float32)


@dataclass(frozen=True)
class Odd:
    """A dtype as a file spells it, and the size of eight elements; `item_bytes` if each takes whole bytes."""

    format: str
    dtype: str
    content: bytes
    item_bytes: int = 0

    def __str__(self) -> str:
        return f"{self.format}-{self.dtype}"


ODD = [
    Odd("safetensors", "F8_E4M3", bytes(range(8)), 1),
    Odd("safetensors", "C64", bytes(range(64)), 8),
    Odd("safetensors", "C128", bytes(range(128)), 16),
    Odd("safetensors", "F4", bytes(range(4))),
    Odd("safetensors", "F6_E2M3", bytes(range(6))),
    Odd("safetensors", "X32", bytes(range(32)), 4),
    Odd("safetensors", "Float32", bytes(range(32)), 4),  # as .ckpt files spell it
    Odd("ckpt", "Complex64", bytes(range(64)), 8),
    Odd("ckpt", "Complex128", bytes(range(128)), 16),
    Odd("ckpt", "Float8E4M3FN", bytes(range(8)), 1),
    Odd("ckpt", "Float4", bytes(range(4))),
    Odd("ckpt", "F32", bytes(range(32)), 4),
]
FLOAT8 = ODD[0]
each_odd = pytest.mark.parametrize("odd", ODD, ids=str)


def file_bytes(odd: Odd) -> bytes:
    """A file of half of `w`, eight elements of `odd`, and a step number."""
    if odd.format == "ckpt":
        return checkpoint_bytes(
            ("w", "Float32", (8,), HALF.tobytes()),
            ("odd", odd.dtype, (2, 4), odd.content),
            ("global_step", "Int32", (), b"\7\0\0\0"),
        )
    header: dict[str, Any] = {}
    data = b""
    for name, dtype, shape, content in (
        ("w", "F32", [8], HALF.tobytes()),
        ("odd", odd.dtype, [2, 4], odd.content),
        ("global_step", "I32", [], b"\7\0\0\0"),
    ):
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    encoded = json.dumps(header).encode()
    return len(encoded).to_bytes(8, "little") + encoded + data


@pytest.fixture
def sharded(tmp_path: Path) -> Callable[[Odd], dict[str, str]]:
    """Writes two ranks, each with half of `w` and of the odd parameter; returns the options that name them."""

    def write(odd: Odd) -> dict[str, str]:
        for rank in range(2):
            folder = tmp_path / f"src/rank_{rank}"
            folder.mkdir(parents=True)
            data = file_bytes(odd)
            if rank == 1:
                data = data.replace(HALF.tobytes(), (HALF + 1).tobytes()).replace(odd.content, odd.content[::-1])
            (folder / f"net.{odd.format}").write_bytes(data)
        layouts = {
            "w": as_layout(RandomLayout((2,), ((0,),), ())),
            "odd": as_layout(RandomLayout((2,), ((0,), ()), ())),
        }
        write_strategy(make_strategy(layouts), str(tmp_path / "strategy.ckpt"))
        return {"source": str(tmp_path / "src"), "source_strategy": str(tmp_path / "strategy.ckpt")}

    return write


def shown_name(odd: Odd) -> str:
    return "'Float32'" if odd.format == "safetensors" and odd.dtype == "Float32" else odd.dtype


@each_odd
def test_inspect_shows_what_cannot_be_converted(odd: Odd, tmp_path: Path) -> None:
    from reshard.core.source.description import describe

    path = tmp_path / f"net.{odd.format}"
    path.write_bytes(file_bytes(odd))
    document = describe(str(path))
    [found] = [each for each in document["parameters"] if each["name"] == "odd"]
    assert found == {"name": "odd", "dtype": shown_name(odd), "shape": [2, 4], "size_bytes": len(odd.content)}
    assert document["information"] == {"global_step": 7}


@each_odd
@pytest.mark.parametrize("layout", ["ranks", "unified"])
def test_a_conversion_names_file_parameter_dtype_and_what_helps(
    odd: Odd, layout: str, sharded: Callable[[Odd], dict[str, str]], tmp_path: Path
) -> None:
    given = sharded(odd)
    if odd is FLOAT8 and layout == "unified":
        return
    why = (
        "only layout='unified', layout='torch_dist' and layout='dcp' can hold; choose one of these, or,"
        if odd is FLOAT8
        else "reshard cannot convert;"
    )
    with pytest.raises(InputError) as caught:
        make_plan(build_request(target=str(tmp_path / "out"), layout=layout, **given))
    assert str(caught.value) == (
        f"{given['source']}: cannot be converted\n"
        f"  - parameter 'odd' has dtype {shown_name(odd)}, which {why} if the model does without it, leave it out: "
        "exclude=['odd'] "
        f"(it is in {given['source']}/rank_0/net.{odd.format})"
    )
    with pytest.raises(InputError, match=r"leave it out: exclude=\['odd'\]"):
        next(load_rank(given["source"], given["source_strategy"]))


def test_floats_of_8_bits_are_carried_as_they_are(sharded: Callable[[Odd], dict[str, str]], tmp_path: Path) -> None:
    given, one, parts = sharded(FLOAT8), str(tmp_path / "one"), str(tmp_path / "parts")
    convert(build_request(target=one, layout="unified", verify="content", **given))
    assert read_raw(Path(one) / "model.safetensors")["odd"] == (
        "F8_E4M3",
        (4, 4),
        bytes([*range(8), *range(7, -1, -1)]),
    )
    convert(build_request(source=one, target=parts, layout="unified", max_shard_size="20", verify="content"))
    assert verify_target(parts, VerifyLevel.CONTENT).problems == ()
    assert compare_checkpoints(build_comparison(a=one, b=parts)).same
    assert compare_checkpoints(build_comparison(a=given["source"], b=parts, strategy_a=given["source_strategy"])).same


def read_raw(path: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Tag, shape and bytes of the tensors in a file."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header, content = json.loads(data[8 : 8 + length]), data[8 + length :]
    header.pop("__metadata__", None)
    return {
        name: (each["dtype"], tuple(each["shape"]), content[slice(*each["data_offsets"])])
        for name, each in header.items()
    }


@each_odd
@pytest.mark.parametrize("layout", ["ranks", "unified"])
def test_all_else_is_converted_and_verified_without_it(
    odd: Odd, layout: str, sharded: Callable[[Odd], dict[str, str]], tmp_path: Path
) -> None:
    given = sharded(odd)
    target = tmp_path / "out"
    request = build_request(
        target=str(target), layout=layout, verify="content", check_replicas=True, exclude=["odd"], **given
    )
    convert(request)
    assert verify_target(str(target), VerifyLevel.CONTENT).problems == ()
    whole = np.concatenate([HALF, HALF + 1]).tobytes()
    if layout == "ranks":
        assert read_tree(target)[0]["w"][2] == whole
        assert read_tree(target)[0].keys() == {"w", "global_step"}
    # by the plan that was stored
    for path in target.rglob("*.safetensors" if layout == "unified" else f"*.{odd.format}"):
        path.unlink()
    convert(request)
    assert verify_target(str(target), VerifyLevel.CONTENT).problems == ()
    loaded = dict(load_rank(given["source"], given["source_strategy"], exclude=["odd"]))
    assert loaded.keys() == {"w", "global_step"}
    assert loaded["w"].tobytes() == whole  # type: ignore[union-attr]


@each_odd
def test_a_stored_plan_has_the_same_dtype(odd: Odd, sharded: Callable[[Odd], dict[str, str]], tmp_path: Path) -> None:
    request = build_request(target=str(tmp_path / "out"), exclude=["odd"], **sharded(odd))
    catalog = make_plan(request).inputs.catalog
    again = catalog_from_json(json.loads(json.dumps(catalog_to_json(catalog))))
    assert again.records == catalog.records
    entries = [record.index.entries["odd"] for record in (*catalog.records.values(), *again.records.values())]
    assert len({id(entry.dtype) for entry in entries}) == 1


@each_odd
def test_doctor_and_recover_see_no_fault_in_it(odd: Odd, sharded: Callable[[Odd], dict[str, str]]) -> None:
    given = sharded(odd)
    diagnosis = diagnose(given["source"], given["source_strategy"])
    assert [each.found for each in diagnosis.findings if each.severity == "problem"] == []
    report = assess_recovery(SourceRequest.model_validate(given))
    assert report.state is StepState.WHOLE


@each_odd
def test_fingerprints_and_diff_take_what_has_whole_elements(
    odd: Odd, sharded: Callable[[Odd], dict[str, str]], tmp_path: Path
) -> None:
    given = sharded(odd)
    request = FingerprintRequest.model_validate(given)
    sides = {"a": given["source"], "strategy_a": given["source_strategy"]}
    both = build_comparison(**sides, b=given["source"], strategy_b=given["source_strategy"])
    if odd.item_bytes not in (1, 2, 4, 8):
        message = (
            rf"parameter 'odd' \({given['source']}/rank_0/net.{odd.format}\) has dtype {odd.dtype}, which reshard "
            r"cannot compare; leave it out: exclude=\['odd'\]"
        )
        with pytest.raises(InputError, match=message):
            fingerprint_checkpoint(request)
        with pytest.raises(InputError, match=message):
            compare_checkpoints(both)
    else:
        document = fingerprint_checkpoint(request)
        assert [each.dtype for each in document.parameters if each.name == "odd"] == [shown_name(odd)]
        assert compare_checkpoints(both).same
        (tmp_path / "there.json").write_text(document.model_dump_json())
        assert compare_checkpoints(build_comparison(**sides, b=str(tmp_path / "there.json"))).same
    without = fingerprint_checkpoint(FingerprintRequest.model_validate({**given, "exclude": ["odd"]}))
    assert [each.name for each in without.parameters] == ["global_step", "w"]
    assert compare_checkpoints(both.model_copy(update={"exclude": ["odd"]})).same


@pytest.mark.parametrize("odd", [odd for odd in ODD if odd.format == "ckpt"], ids=str)
def test_remote_files_of_it_are_read(odd: Odd, sharded: Callable[[Odd], dict[str, str]], tmp_path: Path) -> None:
    given = sharded(odd)
    memory = fsspec.filesystem("memory")
    for rank in range(2):
        memory.pipe_file(f"/odd/rank_{rank}/net.ckpt", (tmp_path / f"src/rank_{rank}/net.ckpt").read_bytes())
    convert(build_request(target=str(tmp_path / "out"), exclude=["odd"], **(given | {"source": "memory://odd"})))
    memory.rm("/odd", recursive=True)
    assert read_tree(tmp_path / "out")[0]["w"][2] == np.concatenate([HALF, HALF + 1]).tobytes()


def test_a_difference_in_it_is_found(sharded: Callable[[Odd], dict[str, str]], tmp_path: Path) -> None:
    given = sharded(ODD[7])
    path = tmp_path / "src/rank_1/net.ckpt"
    other = tmp_path / "other"
    (tmp_path / "src").rename(other)
    given = sharded_again(tmp_path, given)
    path.write_bytes(path.read_bytes().replace(ODD[7].content[::-1], bytes(64)))
    found = compare_checkpoints(
        build_comparison(
            a=str(other), b=given["source"], strategy_a=given["source_strategy"], strategy_b=given["source_strategy"]
        )
    )
    assert [(each.name, each.kind.value, each.dtypes) for each in found.differences] == [
        ("odd", "content", ("Complex64", "Complex64"))
    ]


def sharded_again(tmp_path: Path, given: dict[str, str]) -> dict[str, str]:
    for rank in range(2):
        folder = tmp_path / f"src/rank_{rank}"
        folder.mkdir(parents=True)
        (folder / "net.ckpt").write_bytes((tmp_path / f"other/rank_{rank}/net.ckpt").read_bytes())
    return given


@each_odd
def test_a_single_file_is_loaded_without_it(odd: Odd, tmp_path: Path) -> None:
    path = tmp_path / f"net.{odd.format}"
    path.write_bytes(file_bytes(odd))
    with pytest.raises(
        ValueError, match=f"net.{odd.format}: parameter 'odd': .*{odd.dtype}.* cannot be read as an arr"
    ):
        load_checkpoint(str(path), format=odd.format)
    loaded = load_checkpoint(str(path), format=odd.format, choice_func=lambda name: name != "odd")
    assert loaded.keys() == {"w", "global_step"}
    assert plan_load(str(path), exclude=["odd"]).names(0) == ("w", "global_step")


@pytest.mark.parametrize("odd", [ODD[2], ODD[8]], ids=str)
def test_it_cannot_be_changed_either(odd: Odd, tmp_path: Path) -> None:
    path = tmp_path / f"net.{odd.format}"
    path.write_bytes(file_bytes(odd))
    request = build_request(source=str(path), target=str(tmp_path / "out"), transpose=["odd"])
    with pytest.raises(InputError, match=r"leave it out: exclude=\['odd'\]"):
        make_plan(request)
