"""metadata.json of Checkpoint 2.0: what is read from it, and what is refused."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from reshard.core.errors import InputError, LimitError, StrategyError
from reshard.core.layouts.checkpoint2.metadata import Metadata, parse_metadata
from reshard.core.runtime.metadata import metadata_limited
from reshard.core.tensor.layout import ParameterLayout
from tests.support.iterations import iteration_case

NAME = "w"
KEY = "('w', (0,))"


def document() -> dict[str, Any]:
    """Two ranks, each with half of the rows of one tensor."""
    return {
        "state_dict_metadata": {
            NAME: {
                "properties": {"dtype": "BFloat16", "replica_id": [0, 0]},
                "global_shape": [4, 3],
                "axis_fragmentations": [2, 1],
                "layout": {
                    "device_matrix": [2],
                    "tensor_map": [0, -1],
                    "interleaved_parallel": False,
                    "alias_name": ["a"],
                    "rank_list": [0, 1],
                },
                "chunk": [{"global_offset": [k], "local_shape": [2, 3]} for k in (0, 1)],
            }
        },
        "storage_data": {
            f"('w', ({k},))": [
                {"file_name": f"model-000000{k}-0000002.safetensors", "storage_rank": k, "rank_group": [k]}
            ]
            for k in (0, 1)
        },
    }


def parsed(content: dict[str, Any]) -> Metadata:
    return parse_metadata(json.dumps(content).encode(), "m")


def test_layouts_and_files() -> None:
    found = parsed(document())
    tensor = found.tensors[NAME]
    assert (tensor.dtype, tensor.shape, tensor.local_shape, tensor.ranks) == ("BFloat16", (4, 3), (2, 3), range(2))
    assert tensor.layout == ParameterLayout((2,), ((0,), ()))
    assert found.files["model-0000001-0000002.safetensors"].rank == 1
    assert found.files["model-0000001-0000002.safetensors"].tensors == (NAME,)
    [stage] = found.strategy.stages
    assert (stage.device_count, found.strategy.origin) == (2, "m")
    assert stage.layouts[NAME].tensor_shape == (4, 3)


def test_names_that_python_escapes() -> None:
    content = document()
    for name in ("it's", 'a"b', "back\\slash", "é\n", "(0,)"):
        content["state_dict_metadata"][name] = content["state_dict_metadata"][NAME]
        content["storage_data"][str((name, (1,)))] = content["storage_data"]["('w', (1,))"]
    assert set(parsed(content).files["model-0000001-0000002.safetensors"].tensors) == set(
        content["state_dict_metadata"]
    )


def test_a_later_stage_with_the_same_slices_has_the_layout() -> None:
    content = document()
    for k in (0, 1):
        content["storage_data"][f"('w', ({k},))"].append(
            {"file_name": f"model-000000{k + 2}-0000004.safetensors", "storage_rank": k + 2}
        )
    assert [list(stage.layouts) for stage in parsed(content).strategy.stages] == [[NAME], [NAME]]


@pytest.mark.parametrize("first", [0, 1])
def test_a_later_stage_has_the_layout_only_if_all_of_its_slices_fit(first: int) -> None:
    content = document()
    # ranks 2 and 3 both have the first half, or both the second
    content["storage_data"][f"('w', ({first},))"] += [
        {"file_name": f"model-000000{rank}-0000004.safetensors", "storage_rank": rank} for rank in (2, 3)
    ]
    assert [list(stage.layouts) for stage in parsed(content).strategy.stages] == [[NAME], []]


def test_a_later_stage_has_no_layout_if_shards_of_another_shape_are_listed() -> None:
    content = document()
    content["state_dict_metadata"][NAME]["chunk"].append({"global_offset": [0], "local_shape": [4, 3]})
    for k in (0, 1):
        content["storage_data"][f"('w', ({k},))"].append(
            {"file_name": f"model-000000{k + 2}-0000004.safetensors", "storage_rank": k + 2}
        )
    assert [list(stage.layouts) for stage in parsed(content).strategy.stages] == [[NAME], []]


def test_ranks_beyond_the_layouts_are_further_stages() -> None:
    content = document()
    whole = {"global_shape": [2], "axis_fragmentations": [1], "layout": None, "properties": {"dtype": "Float32"}}
    content["state_dict_metadata"]["b"] = whole | {"chunk": [{"global_offset": [0], "local_shape": [2]}]}
    content["storage_data"]["('b', (0,))"] = [{"file_name": "model-0000003-0000004.safetensors", "storage_rank": 3}]
    strategy = parsed(content).strategy
    assert [stage.device_count for stage in strategy.stages] == [2, 2]
    assert strategy.parameters == {NAME}


def _layout(**changes: object) -> Callable[[dict[str, Any]], object]:
    return lambda content: content["state_dict_metadata"][NAME]["layout"].update(changes)


def _tensor(**changes: object) -> Callable[[dict[str, Any]], object]:
    return lambda content: content["state_dict_metadata"][NAME].update(changes)


def _entry(**changes: object) -> Callable[[dict[str, Any]], object]:
    return lambda content: content["storage_data"][KEY][0].update(changes)


def _key(key: str) -> Callable[[dict[str, Any]], object]:
    return lambda content: content["storage_data"].update({key: content["storage_data"].pop(KEY)})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content.pop("storage_data"), "is not the metadata of a Checkpoint 2.0: Object missing"),
        (_layout(interleaved_parallel=True), "parameter 'w': its layout is interleaved (interleaved_parallel)"),
        (_layout(device_matrix=[2, 0]), "its device_matrix is [2, 0]"),
        (_layout(device_matrix=[2**40, 2**40]), "its device_matrix is [1099511627776, 1099511627776]"),
        (_layout(device_matrix=[-2]), "its device_matrix is [-2]"),
        (_layout(tensor_map=[0]), "its tensor_map has 1 entries, its global_shape 2"),
        (_layout(tensor_map=[5, -1]), "its tensor map names device axis 5"),
        (_layout(tensor_map=[0, 0]), "names a device axis twice"),
        (_layout(rank_list=[1, 0]), "its rank_list is not the ranks of one pipeline stage of 2 devices: [1, 0]"),
        (_layout(rank_list=[1, 2]), "its rank_list is not the ranks of one pipeline stage of 2 devices: [1, 2]"),
        (_layout(rank_list=[]), "its rank_list is not the ranks of one pipeline stage"),
        (_layout(rank_list="01"), "parameter 'w': Expected `array`"),
        (_tensor(axis_fragmentations=[1, 2]), "its axis_fragmentations are [1, 2], its layout gives [2, 1]"),
        (_tensor(global_shape=[5, 3]), "axis 0 has 5 elements, which 2 shards cannot share evenly"),
        (_tensor(global_shape=[-4, 3]), "its global_shape is [-4, 3]"),
        (_tensor(global_shape=[8, 3]), "none of its chunks has the local_shape that its layout gives, [4, 3]"),
        (_tensor(chunk=[]), "none of its chunks has the local_shape"),
        (_tensor(chunk=[{"global_offset": [0, 0], "local_shape": [2, 3]}]), "the global_offset of a chunk is [0, 0]"),
        (_tensor(chunk=[{"global_offset": [-1], "local_shape": [2, 3]}]), "the global_offset of a chunk is [-1]"),
        (_tensor(layout=None), "its axis_fragmentations are [2, 1], its layout gives [1, 1]"),
        (_tensor(layout=None, axis_fragmentations=[1, 1]), "it has no layout, but a chunk that is not all of it"),
        (_key("('w', (1,))"), "places shard 1 of 'w' on rank_0, to which its layout gives shard 0"),
        (_key("('v', (0,))"), "storage_data places parameter 'v', which state_dict_metadata lacks"),
        (_key("w"), "storage_data has the key 'w', which is not"),
        (_key("__import__('os').system('true')"), "which is not \"('NAME', (INDEX,))\""),
        (_key("(" * 5000), "storage_data has the key"),
        (_key("('w', (-1,))"), "storage_data has the key"),
        (_key("('w', (True,))"), "storage_data has the key"),
        (_entry(file_name="../model-0000000-0000002.safetensors"), "is not the name of a file beside it"),
        (_entry(file_name="/etc/passwd"), "places parameter 'w' in '/etc/passwd', which is not the name of a file"),
        (_entry(file_name="model-1-2.safetensors"), "is not the name of a file beside it"),
        (_entry(file_name="model-0000001-0000002.safetensors"), "says that both rank_"),
        (_entry(storage_rank=-1), "says that rank -1 wrote model-0000000-0000002.safetensors"),
        (_entry(storage_rank=2**30), "says that rank 1073741824 wrote"),
        (_entry(storage_rank="0"), "storage_data of 'w': Expected `int`"),
    ],
)
def test_refusals(change: Callable[[dict[str, Any]], object], message: str) -> None:
    content = document()
    change(content)
    with pytest.raises(StrategyError) as caught:
        parsed(content)
    assert str(caught.value).startswith("m: ")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "key", ["state_dict_metadata", NAME, "global_shape", "device_matrix", KEY, "storage_rank", "storage_data"]
)
def test_a_key_that_is_there_twice_is_refused(key: str) -> None:
    text = json.dumps(document())
    member = json.dumps(key) + ": "
    with pytest.raises(
        StrategyError, match="m: is not the metadata of a Checkpoint 2.0: .* occurs twice in one object"
    ):
        parse_metadata(text.replace(member, f"{member}0, {member}", 1).encode(), "m")


def test_layouts_of_different_device_counts() -> None:
    content = document()
    other = json.loads(json.dumps(content["state_dict_metadata"][NAME]))
    other["layout"] |= {"device_matrix": [2, 2], "rank_list": [0, 1, 2, 3]}
    content["state_dict_metadata"]["v"] = other
    with pytest.raises(StrategyError, match="the layout of 'w' is over 2 devices, that of 'v' over 4"):
        parsed(content)


@pytest.mark.parametrize("data", [b"", b"[]", b"\xff", b'{"state_dict_metadata": {}', b"[" * 100_000, b"{}", b"null"])
def test_what_is_no_metadata(data: bytes) -> None:
    with pytest.raises(StrategyError, match="m: is not the metadata of a Checkpoint 2.0"):
        parse_metadata(data, "m")


def test_memory_is_limited() -> None:
    data = b'{"storage_data": {}, "state_dict_metadata": {' + b'"":1,' * 8_000_000 + b'"":1}}'
    with metadata_limited(1), pytest.raises(LimitError, match="more than the limit of"):
        parse_metadata(data, "m")


def test_truncation_anywhere_is_refused() -> None:
    data = (iteration_case(4).iteration / "metadata.json").read_bytes()
    for length in range(0, len(data) - 1, 97):
        with pytest.raises(InputError):
            parse_metadata(data[:length], "m")
