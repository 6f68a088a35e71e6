from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from reshard.core.conversion.report import PlanSummary
from reshard.core.runtime.wording import size_text
from reshard.core.strategy.files import write_strategy
from reshard.core.tensor.layout import ParameterLayout
from tests.support.checkpoints import case
from tests.support.places import FIXTURES
from tests.support.plans import make_strategy

CASE = case(7010)
SOURCE = CASE.directory / "src"
STRATEGIES = (
    "--source-strategy",
    CASE.directory / "src_strategy.ckpt",
    "--target-strategy",
    CASE.directory / "dst_strategy.ckpt",
)


def test_table(reshard: Callable[..., Any]) -> None:
    shown = reshard("plan", SOURCE, *STRATEGIES)
    assert (shown.code, shown.err) == (0, "")
    assert "ranks       8 -> 2" in shown.out
    assert shown.out.splitlines()[-1].split() == ["1", "rank_1/checkpoint_1.ckpt", "166.6", "KiB", "0-7"]


def test_table_of_chosen_ranks(reshard: Callable[..., Any]) -> None:
    rows = reshard("plan", SOURCE, *STRATEGIES, "--ranks", "1").out.partition("\nrank ")[2].splitlines()[1:]
    assert [row.split()[0] for row in rows] == ["1"]


def test_json(reshard: Callable[..., Any]) -> None:
    shown = reshard("plan", SOURCE, *STRATEGIES, "--json")
    assert set(shown.json) == set(PlanSummary.model_fields) - {"chosen_ranks"}
    assert [rank.source_ranks for rank in PlanSummary.model_validate(shown.json).ranks] == [tuple(range(8))] * 2


def test_a_unified_target(reshard: Callable[..., Any]) -> None:
    given = case(7010).directory
    options = ("--source-strategy", given / "src_strategy.ckpt", "--layout", "unified", "--max-shard-size", "100KB")
    shown = reshard("plan", given / "src", *options).out
    assert any(line.split() == ["ranks", "8", "ranks", "->", "5", "files"] for line in shown.splitlines())
    assert any(line.split() == ["parameters", "8", "made", "whole"] for line in shown.splitlines())
    assert any(line.split()[:2] == ["4", "model-00005-of-00005.safetensors"] for line in shown.splitlines())


def test_a_named_target_must_lie_apart(reshard: Callable[..., Any]) -> None:
    assert reshard("plan", SOURCE, SOURCE.parent / "elsewhere", *STRATEGIES).code == 0
    inside = reshard("plan", SOURCE, SOURCE / "out", *STRATEGIES)
    assert inside.code == 2
    assert "lies inside the source" in inside.err


def test_table_of_reads(reshard: Callable[..., Any]) -> None:
    shown = reshard("plan", SOURCE, *STRATEGIES, "--rank", 1, "--param", "layers.1.weight_1")
    assert shown.code == 0
    assert "box        [48:96, 0:8, 0:4] of the whole tensor, 6144 bytes" in shown.out
    assert shown.out.splitlines()[-1].split() == [
        *("3", "layers.1.weight_1", "[48:96,", "0:4,", "0:2]", "[0:48,", "4:8,", "2:4]", "1536", "1", "1579", "3115"),
    ]


def test_reads_of_a_text_have_no_offsets(reshard: Callable[..., Any]) -> None:
    names = reshard("inspect", FIXTURES / "formats/plain.ckpt", "--json").json["parameters"]
    text = next(each["name"] for each in names if "text" in each)
    [read] = reshard("plan", FIXTURES / "formats/plain.ckpt", "--rank", 0, "--param", text, "--json").json["reads"]
    assert (read["runs"], read["file_offsets"]) == (0, None)
    assert reshard("plan", FIXTURES / "formats/plain.ckpt", "--rank", 0, "--param", text).code == 0


def test_a_parameter_that_is_not_there(reshard: Callable[..., Any]) -> None:
    shown = reshard("plan", SOURCE, *STRATEGIES, "--rank", 1, "--param", "layers.1.weight")
    assert (shown.code, shown.out) == (2, "")
    assert "target rank 1 has no parameter 'layers.1.weight'; did you mean layers.1.weight_1" in shown.err


def test_a_rank_that_is_not_there(reshard: Callable[..., Any]) -> None:
    shown = reshard("plan", SOURCE, *STRATEGIES, "--rank", 2, "--param", "layers.1.weight_1")
    assert (shown.code, shown.err) == (2, "reshard: error: the target has ranks 0 to 1, not 2\n")


def test_the_picture_is_for_terminals_unless_asked_for(
    reshard: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    heading = "Bytes from source rank (across) to target rank (down)"
    assert heading not in reshard("plan", SOURCE, *STRATEGIES).out
    shown = reshard("plan", SOURCE, *STRATEGIES, "--picture").out
    assert "0 |   14K   14K   14K   14K   37K   25K   25K   25K|" in shown.partition(heading)[2].splitlines()
    assert heading not in reshard("plan", SOURCE, *STRATEGIES, "--picture", "--json").out
    monkeypatch.setattr("reshard.cli.plan._is_terminal", lambda: True)
    assert heading in reshard("plan", SOURCE, *STRATEGIES).out
    assert heading not in reshard("plan", SOURCE, *STRATEGIES, "--no-picture").out


def test_page(reshard: Callable[..., Any], tmp_path: Path) -> None:
    page = tmp_path / "plan.html"
    shown = reshard("plan", SOURCE, *STRATEGIES, "--html", page)
    assert (shown.code, shown.err) == (0, f"reshard: the plan is shown in {page}\n")
    assert shown.out == reshard("plan", SOURCE, *STRATEGIES).out
    assert page.read_text().count("<svg ") == 1
    with_parameter = reshard("plan", SOURCE, *STRATEGIES, "--html", page, "--param", "layers.1.weight_1", "--json")
    assert with_parameter.json["parameter"] == "layers.1.weight_1"
    assert page.read_text().count("<svg ") == 2


def test_a_page_that_cannot_be_written(reshard: Callable[..., Any], tmp_path: Path) -> None:
    shown = reshard("plan", SOURCE, *STRATEGIES, "--html", tmp_path / "missing" / "plan.html")
    assert (shown.code, shown.out) == (2, "")
    assert f"there is no directory {tmp_path / 'missing'}; create it" in shown.err
    shown = reshard("plan", SOURCE, *STRATEGIES, "--html", "x", "--rank", 1, "--param", "layers.1.weight_1")
    assert shown.code == 2
    assert "--html and --rank cannot be combined: --html shows all ranks" in shown.err


def test_cells_of_a_parameter(reshard: Callable[..., Any]) -> None:
    shown = reshard("plan", SOURCE, *STRATEGIES, "--param", "layers.1.weight_1")
    assert (shown.code, shown.err) == (0, "")
    lines = shown.out.splitlines()
    assert "source: layers.1.weight_1, Float32 [96, 8, 4], 4 shards" in lines
    assert "3      [0:96, 4:8, 2:4]" in lines
    assert "target: stage 0, 2 shards" in lines
    assert lines[-4].split(maxsplit=1) == ["1", "[48:96, 0:8, 0:4]          0  [48:96, 0:4, 0:2]  1.5 KiB"]
    assert lines[-1].strip() == "3  [48:96, 4:8, 2:4]  1.5 KiB"


def test_cells_of_a_parameter_as_json(reshard: Callable[..., Any]) -> None:
    shown = reshard("plan", SOURCE, *STRATEGIES, "--param", "layers.1.weight_1", "--json").json
    assert [cell["ranks"] for cell in shown["sources"][0]["cells"]] == [[0], [1], [2], [3]]
    [stage] = shown["stages"]
    assert stage["cells"][1]["takes"][3] == {
        "source": "layers.1.weight_1",
        "source_rank": 3,
        "source_box": "[48:96, 4:8, 2:4]",
        "target_box": "[48:96, 4:8, 2:4]",
        "size_bytes": 1536,
    }


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("layers.1.weight", "the target has no parameter 'layers.1.weight'; did you mean layers.1.weight_1"),
        (
            "global_step",
            "no strategy knows 'global_step': every target rank gets a whole copy; --rank R shows its source",
        ),
    ],
)
def test_no_cells(reshard: Callable[..., Any], name: str, message: str) -> None:
    shown = reshard("plan", SOURCE, *STRATEGIES, "--param", name)
    assert (shown.code, shown.out) == (2, "")
    assert message in shown.err


def test_what_is_not_converted_has_no_cells_and_it_is_said_why(reshard: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "hf").mkdir()
    save_file({name: np.ones((2, 2), np.float32) for name in ("w", "v", "u")}, tmp_path / "hf/model.safetensors")
    layouts = {name: ParameterLayout((2,), ((0,), ())) for name in ("w", "v")}
    write_strategy(make_strategy(layouts), str(tmp_path / "two.json"))
    plan = ("plan", tmp_path / "hf", "--target-strategy", tmp_path / "two.json", "--exclude", "v")
    for name, reason in (
        ("u", "is dropped: the target's strategy does not have it"),
        ("v", "is left out by exclude v"),
    ):
        assert f"reshard: error: '{name}' {reason}" in reshard(*plan, "--param", name, "--allow-missing", "v").err


def test_a_rank_without_a_parameter(reshard: Callable[..., Any]) -> None:
    shown = reshard("plan", SOURCE, *STRATEGIES, "--rank", 1)
    assert shown.code == 2
    assert "--rank: only valid with --param" in shown.err


def fact(shown: str, name: str) -> str:
    return next(line.removeprefix(name).strip() for line in shown.splitlines() if line.startswith(f"{name} "))


def test_the_time_at_a_rate(reshard: Callable[..., Any]) -> None:
    planned = reshard("plan", SOURCE, *STRATEGIES, "--json").json
    moved_bytes = planned["read_bytes"] + 2 * planned["written_bytes"]
    assert planned["assumed_rate_bytes"] == 2**30
    assert planned["estimated_seconds"] == round(moved_bytes / 2**30, 3)
    slow = reshard("plan", SOURCE, *STRATEGIES, "--rate", "1.5 KiB/s", "--json").json
    assert slow["estimated_seconds"] == pytest.approx(moved_bytes / 1536, abs=0.001)
    shown = reshard("plan", SOURCE, *STRATEGIES, "--rate", f"{moved_bytes / 90:.1f}B").out
    assert fact(shown, "time").startswith("about 1 min 30 s at ")


def test_the_time_depends_on_the_ranks_and_on_how_closely_they_are_verified(
    reshard: Callable[..., Any], tmp_path: Path
) -> None:
    options = ("plan", SOURCE, *STRATEGIES, "--json")
    moved = {}
    for verify in ("none", "structure", "checksum", "content"):
        planned = reshard(*options, "--verify", verify).json
        traffic = moved[verify] = planned["traffic"]
        assert traffic["read_bytes"] == planned["read_bytes"]
        assert traffic["written_bytes"] == planned["written_bytes"]
        assert planned["estimated_seconds"] == round(sum(traffic.values()) / 2**30, 3)
    written_bytes = moved["none"]["written_bytes"]
    assert {verify: traffic["read_back_bytes"] for verify, traffic in moved.items()} == {
        "none": 0,
        "structure": 0,
        "checksum": written_bytes,
        "content": written_bytes,
    }
    whole = reshard("convert", SOURCE, tmp_path / "out", *STRATEGIES, "--verify", "content", "--json").json
    assert moved["content"]["compared_bytes"] == whole["compared_bytes"] > 0
    each = [reshard(*options, "--ranks", rank, "--verify", "content").json for rank in (0, 1)]
    # values are compared when all ranks are there
    assert [planned["traffic"]["compared_bytes"] for planned in each] == [0, 0]
    assert sum(planned["traffic"]["written_bytes"] for planned in each) == written_bytes
    shown = reshard("plan", SOURCE, *STRATEGIES, "--ranks", "1", "--verify", "none").out
    assert fact(shown, "time").endswith(": read and written")
    shown = reshard("convert", SOURCE, tmp_path / "new", *STRATEGIES, "--verify", "content", "--dry-run").out
    assert fact(shown, "time").endswith(": read, written and read back, and the source read again to compare values")


def test_it_tells_what_sha256_costs(reshard: Callable[..., Any], tmp_path: Path) -> None:
    options = ("plan", SOURCE, *STRATEGIES, "--rate", "1MiB")
    plain, target, source = (
        reshard(*options, "--sha256", level, "--json").json for level in ("none", "target", "source")
    )
    assert (plain["hashed_bytes"], target["hashed_bytes"]) == (0, target["written_bytes"])
    files = sum(path.stat().st_size for path in Path(SOURCE).glob("rank_*/*.ckpt"))
    assert source["traffic"] == plain["traffic"] | {"source_files_bytes": files}
    assert source["estimated_seconds"] > target["estimated_seconds"] == plain["estimated_seconds"]
    shown = reshard(*options, "--sha256", "source").out
    written, whole = size_text(target["written_bytes"]), size_text(files)
    assert fact(shown, "SHA-256").startswith(f"{written} hashed while written, and {whole} of source files: about ")
    assert fact(shown, "time").endswith("read, written and read back, and source files read whole for their SHA-256")
    assert "SHA-256" not in reshard(*options).out


def test_a_copy_whose_primary_is_not_converted_is_read(reshard: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "hf").mkdir()
    save_file({"w": np.ones((2, 2), np.float32)}, tmp_path / "hf/model.safetensors")
    write_strategy(make_strategy({"w": ParameterLayout((2,), ((), ()))}), str(tmp_path / "two.json"))
    plan = ("plan", tmp_path / "hf", "--target-strategy", tmp_path / "two.json", "--json")
    read = [reshard(*plan, "--ranks", ranks).json["traffic"]["read_bytes"] for ranks in ("0-1", "0", "1")]
    assert read == [16, 16, 16]


@pytest.mark.parametrize(("rate", "why"), [("fast", "must be a size such as"), ("0", "must be greater than 0")])
def test_an_impossible_rate(reshard: Callable[..., Any], rate: str, why: str) -> None:
    shown = reshard("plan", SOURCE, *STRATEGIES, "--rate", rate)
    assert (shown.code, why in shown.err) == (2, True)


def test_the_room_at_the_target(reshard: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere = reshard("plan", SOURCE, *STRATEGIES, "--json").json
    assert nowhere["free_bytes"] is None
    named = ("plan", SOURCE, tmp_path / "out", *STRATEGIES)
    planned = reshard(*named, "--json").json
    assert planned["free_bytes"] > planned["needed_bytes"] == nowhere["needed_bytes"] > planned["written_bytes"]
    assert reshard(*named, "--ranks", "1", "--json").json["needed_bytes"] == planned["needed_bytes"] / 2
    assert " needed, " in fact(reshard(*named).out, "room")
    # the same measure as that of the conversion's own refusal
    for free_bytes, code in ((planned["needed_bytes"] - 1, 3), (planned["needed_bytes"], 0)):
        monkeypatch.setattr("shutil.disk_usage", lambda path, free=free_bytes: SimpleNamespace(free=free))
        warned = "WARNING" in reshard(*named).out
        converted = reshard("convert", *named[1:], "--engine", "direct")
        assert (converted.code, warned) == (code, code != 0)
        assert code == 0 or "has no room: " in converted.err
