import pytest

from reshard.core.checkpoint.catalog import CatalogRecord
from reshard.core.errors import CatalogError
from reshard.core.files.model import CheckpointFormat, FileIndex, TensorEntry, text_entry
from reshard.core.layouts.indexed_tensors import WeightIndex, check_index, file_order, names_outside
from reshard.core.layouts.weight_maps import OTHERS_NAME
from reshard.core.storage.urls import parse_url
from reshard.core.tensor.dtypes import dtype_from_name
from reshard.core.tensor.slices import Extent


def tensor(name: str) -> TensorEntry:
    return TensorEntry(name, dtype_from_name("Int8"), (1,), (Extent(0, 1),))


def records(**files: list[TensorEntry]) -> dict[int, CatalogRecord]:
    return {
        rank: CatalogRecord(
            rank,
            f"/ck/{name}.safetensors",
            10,
            "1",
            FileIndex(CheckpointFormat.SAFETENSORS, 10, {entry.name: entry for entry in entries}),
        )
        for rank, (name, entries) in enumerate(files.items())
    }


def index(**files: str) -> WeightIndex:
    return WeightIndex(
        parse_url("/ck/model.safetensors.index.json"), {name: f"{file}.safetensors" for name, file in files.items()}
    )


def test_numbers_in_names_order_files_and_what_no_strategy_covers_comes_last() -> None:
    names = [OTHERS_NAME, "model-10.safetensors", "model-9.safetensors"]
    assert sorted(names, key=file_order) == ["model-9.safetensors", "model-10.safetensors", OTHERS_NAME]


def test_texts_and_mindspores_separate_file_are_outside_strategies() -> None:
    others = OTHERS_NAME.removesuffix(".safetensors")
    found = records(x=[tensor("w"), text_entry("note", "hi")], **{others: [tensor("step")]})
    assert names_outside(found) == ("note", "step")


def test_an_index_that_matches() -> None:
    assert check_index("/ck", index(a="x", b="y"), records(x=[tensor("a")], y=[tensor("b")])) == ()


def test_tensors_that_an_index_leaves_out_are_a_note() -> None:
    (note,) = check_index("/ck", index(a="x"), records(x=[tensor("a"), tensor("b")]))
    assert "not in model.safetensors.index.json, used anyway: b" in note


def test_all_differences_are_one_error() -> None:
    with pytest.raises(CatalogError) as refusal:
        check_index("/ck", index(a="y", c="z", d="x"), records(x=[tensor("a"), tensor("b")], y=[tensor("b")]))
    heading, *problems = str(refusal.value).splitlines()
    assert heading == "/ck/model.safetensors.index.json: does not match the files beside it:"
    assert problems == [
        "  - parameter 'b' is in x.safetensors and in y.safetensors",
        "  - z.safetensors is missing, where the index places c",
        "  - parameter 'a' is not in y.safetensors, where the index places it; it is in x.safetensors",
        "  - parameter 'd' is not in x.safetensors, where the index places it",
    ]


def test_a_parameter_in_two_files_is_refused_without_an_index_too() -> None:
    with pytest.raises(CatalogError, match=r"^/ck: does not match .*\n  - parameter 'a' is in x"):
        check_index("/ck", None, records(x=[tensor("a")], y=[tensor("a")]))
