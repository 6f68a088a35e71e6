"""Findings: checkpoints and strategies that belong together, and each way in which they may not."""

import dataclasses
import shutil
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from reshard.core.conversion.convert import convert
from reshard.core.errors import CatalogError, StrategyError
from reshard.core.request.conversion import build_request
from reshard.core.source.diagnosis import Diagnosis, diagnose
from reshard.core.source.findings import Finding
from reshard.core.strategy.files import write_strategy
from reshard.core.strategy.merging import split_strategy
from reshard.core.strategy.model import Strategy
from reshard.core.tensor.layout import ParameterLayout, whole_layout
from tests.support.checkpoints import ALL_CASES, Case
from tests.support.ckpt_writer import checkpoint_bytes
from tests.support.places import FIXTURES
from tests.support.two_stages import COLUMNS, NORM, ROWS, STAGES, Layouts, put, strategy, whole, write

SLOWER_NORM = ParameterLayout((2, 2), ((1,),))
CUT_NORM = ParameterLayout((2, 2), ((0,),))


def looked_at(tmp_path: Path, stages: Layouts | Strategy = STAGES, name: str = "strategy.ckpt") -> Diagnosis:
    """What is said of the checkpoint in `src` and a strategy."""
    path = tmp_path / name
    write_strategy(stages if isinstance(stages, Strategy) else strategy(stages), str(path))
    return diagnose(str(tmp_path / "src"), str(path))


def problems(diagnosis: Diagnosis) -> list[Finding]:
    return [finding for finding in diagnosis.findings if finding.severity == "problem"]


def only(diagnosis: Diagnosis, check: str, severity: str = "problem") -> Finding:
    """The one finding of a severity, which is of a check."""
    [finding] = [finding for finding in diagnosis.findings if finding.severity == severity]
    assert finding.check == check
    assert diagnosis.fits == (severity == "note")
    return finding


def renamed(stages: Layouts, old: str, new: str) -> list[dict[str, ParameterLayout]]:
    return [{name.replace(old, new): layout for name, layout in layouts.items()} for layouts in stages]


def shaped(stages: Layouts) -> list[dict[str, ParameterLayout]]:
    """The same layouts, with the shapes that JSON tells."""
    return [
        {name: dataclasses.replace(layout, tensor_shape=whole(name).shape) for name, layout in each.items()}
        for each in stages
    ]


# ---- they fit ----


def test_they_belong_together(tmp_path: Path) -> None:
    write(tmp_path / "src")
    diagnosis = looked_at(tmp_path)
    assert (diagnosis.fits, diagnosis.findings, diagnosis.not_checked) == (True, (), ())
    assert ("strategy", f"{tmp_path}/strategy.ckpt: 2 stages of 4 devices, 8 parameters") in diagnosis.facts
    assert looked_at(tmp_path, shaped(STAGES), "strategy.json").findings == ()


@pytest.mark.parametrize("conversion", ALL_CASES, ids=lambda conversion: conversion.directory.name)
def test_all_fixtures_fit(conversion: Case) -> None:
    for checkpoint, side in (("src", "src"), ("want", "dst")):
        path = conversion.directory / f"{side}_strategy.ckpt"
        diagnosis = diagnose(str(conversion.directory / checkpoint), str(path))
        assert (diagnosis.fits, diagnosis.findings) == (True, ())


# ---- ranks and files ----


def test_half_of_the_ranks(tmp_path: Path) -> None:
    write(tmp_path / "src", STAGES[:1])
    doubled = looked_at(tmp_path, STAGES)
    finding = problems(doubled)[0]
    assert finding.check == "ranks"
    assert finding.found == ("the checkpoint has 4 ranks, the strategy 8; missing: rank_4, rank_5, rank_6, rank_7")
    assert "a job of 2 times as many devices" in finding.means


def test_missing_ranks(tmp_path: Path) -> None:
    shutil.rmtree(write(tmp_path / "src") / "rank_2")
    finding = only(looked_at(tmp_path), "ranks")
    assert "missing: rank_2" in finding.found
    assert "were not copied" in finding.means
    assert "'reshard recover'" in finding.advice


def test_too_many_ranks(tmp_path: Path) -> None:
    write(tmp_path / "src", [*STAGES, {"net.l.2.wq": ROWS}, {"net.l.3.wq": ROWS}])
    found = problems(looked_at(tmp_path))
    assert found[0].found.startswith("the checkpoint has 16 ranks, the strategy 8; too many: rank_8, rank_9")
    assert "a job of 2 times as many devices saved it" in found[0].means


@pytest.mark.parametrize("sizes", [(2, 1), (2, 4)])
def test_contents_are_not_judged_by_a_strategy_of_another_world_size(tmp_path: Path, sizes: tuple[int, int]) -> None:
    write(tmp_path / "src", STAGES[:1])
    resized = [
        {name: dataclasses.replace(lay, device_matrix=sizes) for name, lay in each.items()}
        for each in sharded(STAGES[:1])
    ]
    diagnosis = looked_at(tmp_path, resized)
    assert diagnosis.findings[0].check == "ranks"
    assert not [finding for finding in diagnosis.findings if finding.check == "contents"]
    assert diagnosis.not_checked == ("contents",)
    assert "makes" not in dict(diagnosis.facts)


def test_contents_are_judged_without_a_rank_in_between(tmp_path: Path) -> None:
    shutil.rmtree(write(tmp_path / "src") / "rank_2")
    diagnosis = looked_at(tmp_path, sharded(STAGES))
    assert [finding.check for finding in problems(diagnosis)] == ["ranks", "contents"]
    assert diagnosis.not_checked == ()


def test_one_stage_of_its_own(tmp_path: Path) -> None:
    write(tmp_path / "src")
    [_, own] = split_strategy(strategy())
    finding = only(looked_at(tmp_path, own), "ranks", "note")
    assert finding.found == "the strategy is stage 1's own, of 4 ranks; the other 4 ranks hold other parameters"
    assert "name the directory" in finding.advice


def test_a_damaged_file(tmp_path: Path) -> None:
    file = write(tmp_path / "src") / "rank_5/net.ckpt"
    file.write_bytes(file.read_bytes()[:-9])
    finding = only(looked_at(tmp_path), "files")
    assert finding.found.startswith("rank_5's file cannot be used: ")
    assert "convert --recover" in finding.advice


def test_files_that_are_wrong_alike_are_told_together(tmp_path: Path) -> None:
    write(tmp_path / "src")
    for rank in (1, 5, 6):
        (tmp_path / f"src/rank_{rank}/net.ckpt").write_bytes(b"")
    finding = only(looked_at(tmp_path), "files")
    assert finding.found == "the files of ranks 1,5-6 cannot be used: the file is empty"


def test_a_file_cut_off_between_parameters(tmp_path: Path) -> None:
    write(tmp_path / "src")
    whole_file = (tmp_path / "src/rank_2/net.ckpt").read_bytes()
    first = checkpoint_bytes(("global_step", "Int32", (1,), np.int32(7).tobytes()))
    assert whole_file.startswith(first)
    (tmp_path / "src/rank_2/net.ckpt").write_bytes(first)
    found = problems(looked_at(tmp_path))
    assert found[0].found.startswith("rank_2's file cannot be used: seems to have been cut off after 1 parameter")


def test_a_stage_alone(tmp_path: Path) -> None:
    write(tmp_path / "src")
    for rank in range(4):
        shutil.rmtree(tmp_path / f"src/rank_{rank}")
    [_, own] = split_strategy(strategy())
    diagnosis = looked_at(tmp_path, own)
    assert (diagnosis.fits, diagnosis.findings) == (True, ())
    assert dict(diagnosis.facts)["no files"] == "ranks 0-3, which come before others"


def test_files_of_different_steps(tmp_path: Path) -> None:
    write(tmp_path / "src")
    other = [("global_step", "Int32", (1,), np.int32(8).tobytes())]
    stage = STAGES[0]
    for name, layout in stage.items():
        tensor = whole(name)
        shard = tensor[layout.shard_grid(tensor.ndim).box_of(0, tensor.shape).as_index()]
        other.append((name, "Float32", shard.shape, shard.tobytes()))
    put(tmp_path / "src", 0, *other)
    assert "DIFFERENT STEPS, says their 'global_step'" in only(looked_at(tmp_path), "files").found


def test_redundancy_removed(tmp_path: Path) -> None:
    source = write(tmp_path / "full")
    write_strategy(strategy(), str(tmp_path / "strategy.ckpt"))
    same = {"source_strategy": str(tmp_path / "strategy.ckpt"), "target_strategy": str(tmp_path / "strategy.ckpt")}
    for format in ("ckpt", "safetensors"):
        shutil.rmtree(tmp_path / "src", ignore_errors=True)
        options = {"remove_redundancy": True, "format": format}
        convert(build_request(source=str(source), target=str(tmp_path / "src"), **same, **options))
        assert only(looked_at(tmp_path), "files", "note").found.startswith("redundancy was removed")


def test_a_slice_that_no_rank_has(tmp_path: Path) -> None:
    write(tmp_path / "src")
    for rank in (0, 2):
        entries = [
            (name, "Float32", whole(name)[layout.shard_grid(whole(name).ndim).box_of(0, whole(name).shape).as_index()])
            for name, layout in STAGES[0].items()
            if name != "net.l.0.wo"
        ]
        put(tmp_path / "src", rank, *((name, dtype, shard.shape, shard.tobytes()) for name, dtype, shard in entries))
    finding = problems(looked_at(tmp_path))[-1]
    assert finding.found == "'net.l.0.wo': [0:8, 0:4] of the whole tensor has no holder; it should be on rank_0, rank_2"


# ---- stages ----


def test_stages_swapped(tmp_path: Path) -> None:
    write(tmp_path / "src")
    finding = problems(looked_at(tmp_path, STAGES[::-1]))[0]
    assert finding.check == "stages"
    assert finding.found == (
        "stages are in another order: ranks 0-3 hold what stage 1's layouts name; "
        "ranks 4-7 hold what stage 0's layouts name"
    )


def test_layers_in_other_stages(tmp_path: Path) -> None:
    write(tmp_path / "src")
    moved = [{**STAGES[0], "net.l.1.wq": ROWS}, {name: lay for name, lay in STAGES[1].items() if name != "net.l.1.wq"}]
    found = problems(looked_at(tmp_path, moved))
    assert found[0].found == "stage 1 (ranks 4-7) holds 'net.l.1.wq', which the strategy gives to stage 0 only"
    assert found[1].found == "stage 0 (ranks 0-3) lacks 'net.l.1.wq', which other stages' ranks hold"
    assert "assigned layers to stages in another way" in found[0].means


def test_a_shared_parameter_in_one_stage_only(tmp_path: Path) -> None:
    write(tmp_path / "src")
    tied = [STAGES[0], {**STAGES[1], "net.embed.w": ROWS}]
    assert "lacks 'net.embed.w'" in only(looked_at(tmp_path, tied), "stages", "note").found


# ---- names ----


def test_a_prefix(tmp_path: Path) -> None:
    write(tmp_path / "src", renamed(STAGES, "net.", "network.net."))
    finding = only(looked_at(tmp_path), "names")
    assert finding.found == (
        "8 of the 8 names that only the strategy has are in the files, all with 'network.' before them: 'net.embed.w'"
    )
    assert "wrapped in another cell" in finding.means


def test_a_component(tmp_path: Path) -> None:
    write(tmp_path / "src", renamed(STAGES, ".l.", ".layers."))
    finding = only(looked_at(tmp_path), "names")
    assert "6 of the 6 names" in finding.found
    assert "all with 'layers' in the place of 'l'" in finding.found


def test_parameters_on_one_side_only(tmp_path: Path) -> None:
    write(tmp_path / "src", [{**STAGES[0], "lora.a": NORM_OF_TWO}, STAGES[1]])
    diagnosis = looked_at(tmp_path, [{**STAGES[0], "extra": ROWS, "adam_m.net.embed.w": ROWS}, STAGES[1]])
    assert [(finding.severity, finding.found) for finding in diagnosis.findings] == [
        ("problem", "in the strategy, and in no file: 'extra', 'adam_m.net.embed.w'"),
        ("note", "in files, and not in the strategy: 'lora.a'"),
    ]


NORM_OF_TWO = ParameterLayout((2, 2), ((), ()))


def test_optimizer_states_were_not_saved(tmp_path: Path) -> None:
    write(tmp_path / "src")
    states = [{**layouts, **{f"adam_m.{name}": lay for name, lay in layouts.items()}} for layouts in STAGES]
    finding = only(looked_at(tmp_path, states), "names", "note")
    assert finding.means == "optimizer states were not saved"


def test_some_optimizer_states_were_lost(tmp_path: Path) -> None:
    states = [{**layouts, **{f"adam_m.{name}": lay for name, lay in layouts.items()}} for layouts in STAGES]
    write(tmp_path / "src", [{name: lay for name, lay in states[0].items() if name != "adam_m.net.l.0.wq"}, states[1]])
    finding = only(looked_at(tmp_path, states), "names")
    assert finding.found == "in the strategy, and in no file: 'adam_m.net.l.0.wq'"


def test_cut_and_in_no_strategy(tmp_path: Path) -> None:
    uneven = ParameterLayout((2, 2), ((0,), ()), param_split_shape=(3, 5), indices_offset=(0, 3))
    write(tmp_path / "src", [{**STAGES[0], "lora.a": uneven}, STAGES[1]])
    assert "their shapes differ between ranks ('lora.a')" in only(looked_at(tmp_path), "names").means


# ---- shapes ----


def test_unequal_shards(tmp_path: Path) -> None:
    uneven = ParameterLayout((2, 2), ((0,), ()), param_split_shape=(3, 5), indices_offset=(0, 3))
    write(tmp_path / "src", [{**STAGES[0], "net.l.0.wq": uneven}, STAGES[1]])
    finding = only(looked_at(tmp_path), "shapes")
    assert finding.found == "parameter 'net.l.0.wq' is Float32 [3, 8] on rank_0, but Float32 [5, 8] on rank_1"


def test_another_number_of_axes(tmp_path: Path) -> None:
    write(tmp_path / "src")
    finding = problems(looked_at(tmp_path, [{**STAGES[0], "net.l.0.wq": NORM}, STAGES[1]]))[0]
    assert "shards that their layouts do not fit: 'net.l.0.wq' Float32 [4, 8]: its layout has 1" in finding.found


def test_another_shape(tmp_path: Path) -> None:
    write(tmp_path / "src")
    other = [{**shaped(STAGES)[0], "net.l.0.wq": dataclasses.replace(ROWS, tensor_shape=(12, 8))}, shaped(STAGES)[1]]
    finding = only(looked_at(tmp_path, other, "strategy.json"), "shapes")
    assert finding.found == (
        "shards of other shapes than the strategy's: 'net.l.0.wq' is [4, 8] on rank_0, of [12, 8] in the strategy: "
        "it would make [8, 8]"
    )


def sharded(stages: Layouts) -> list[dict[str, ParameterLayout]]:
    shard = partial(dataclasses.replace, optimizer_shard_step=2, optimizer_shard_size=2)
    return [{name: lay if lay is NORM else shard(lay) for name, lay in each.items()} for each in stages]


def test_optimizer_parallel_was_off(tmp_path: Path) -> None:
    write(tmp_path / "src")
    found = problems(looked_at(tmp_path, shaped(sharded(STAGES)), "strategy.json"))
    assert [finding.check for finding in found] == ["shapes", "contents"]
    assert found[0].found.startswith(
        "shards that the optimizer shard does not cut, though the strategy says so: 'net.embed.w' is [4, 8] on rank_0"
    )
    by_contents = only(looked_at(tmp_path, sharded(STAGES)), "contents")
    assert by_contents.found.startswith("the optimizer shard does not cut what ranks hold: 'net.embed.w' is the same")
    assert "optimizer parallel was off" in by_contents.means
    assert "without --optimizer-parallel" in by_contents.advice


def test_optimizer_parallel_was_on(tmp_path: Path) -> None:
    write(tmp_path / "src", sharded(STAGES))
    found = problems(looked_at(tmp_path, shaped(STAGES), "strategy.json"))
    assert found[0].found.startswith("shards that are cut by optimizer parallel, unlike the strategy's")
    by_contents = only(looked_at(tmp_path), "contents")
    assert by_contents.found.startswith("replicas differ as if optimizer parallel cut them: 'net.embed.w'")
    assert "optimizer parallel was on" in by_contents.means


def test_stages_of_different_jobs(tmp_path: Path) -> None:
    tied = [STAGES[0], {**STAGES[1], "net.embed.w": ROWS}]
    write(tmp_path / "src", tied)
    found = problems(looked_at(tmp_path, [STAGES[0], {**STAGES[1], "net.embed.w": COLUMNS}]))
    assert found[0].found == (
        "shards of several stages make wholes of different shapes: 'net.embed.w': [4, 16] and [8, 8]"
    )


# ---- contents ----


def test_saved_whole(tmp_path: Path) -> None:
    one = [{name: whole_layout(whole(name).ndim, 4) for name in layouts} for layouts in STAGES]
    write(tmp_path / "src", one)
    finding = only(looked_at(tmp_path), "contents")
    assert finding.found.startswith("ranks hold the same although the strategy cuts it: 'net.embed.w' is the same on")
    assert "integrated_save" in finding.means


def test_a_replica_that_differs(tmp_path: Path) -> None:
    write(tmp_path / "src", seeds={2: 0.5})
    finding = only(looked_at(tmp_path), "contents")
    assert finding.found.startswith("ranks do not hold what the strategy says they share: ")
    assert "'net.embed.w' differs on rank_0, rank_2, which should hold the same" in finding.found


def test_devices_in_another_order(tmp_path: Path) -> None:
    other = ParameterLayout((2, 2), ((1,), ()))
    write(tmp_path / "src", [{**STAGES[0], "net.l.0.wq": other}, STAGES[1]])
    finding = only(looked_at(tmp_path), "contents")
    assert "'net.l.0.wq' differs on rank_0, rank_2, which should hold the same" in finding.found
    assert "'net.l.0.wq' is the same on rank_0, rank_1, which should hold different slices" in finding.found


def test_other_sizes_of_as_many_devices(tmp_path: Path) -> None:
    write(tmp_path / "src")
    for sizes in ((1, 4), (4, 1)):
        stages = [
            {name: dataclasses.replace(lay, device_matrix=sizes) for name, lay in each.items()} for each in STAGES
        ]
        finding = only(looked_at(tmp_path, stages), "contents")
        assert finding.found.startswith("ranks do not hold what the strategy says they share: ")
        assert "another arrangement of devices" in finding.means
        of_shapes = problems(looked_at(tmp_path, shaped(stages), "strategy.json"))
        assert of_shapes[0].found.startswith("shards of other shapes than the strategy's: 'net.embed.w' is [4, 8] on")


def test_all_zeros_tell_nothing(tmp_path: Path) -> None:
    write(tmp_path / "src")
    for rank in range(4):
        entries = [("net.l.0.wq", "Float32", (4, 8), bytes(128)), ("net.embed.w", "Float32", (4, 8), bytes(128))]
        put(tmp_path / "src", rank, *entries)
    assert all(finding.check == "names" for finding in looked_at(tmp_path).findings)


LAYERS = {f"l.{n}.{name}": lay for n in range(4) for name, lay in (("wq", ROWS), ("wo", COLUMNS), ("norm", NORM))}
SLOWER = ParameterLayout((2, 2), ((1,), ()))


@pytest.mark.parametrize(
    ("saved", "strategy_says"),
    [({}, {"l.3.wq": SLOWER}), ({"l.3.norm": SLOWER_NORM}, {}), ({"l.2.norm": SLOWER_NORM}, {"l.2.norm": CUT_NORM})],
    ids=["order of devices", "cut, not whole", "order of devices of a small one"],
)
def test_one_layer_of_many(
    tmp_path: Path, saved: Mapping[str, ParameterLayout], strategy_says: Mapping[str, ParameterLayout]
) -> None:
    write(tmp_path / "src", [{**LAYERS, **saved}])
    for name, stages in (("s.ckpt", [{**LAYERS, **strategy_says}]), ("s.json", shaped([{**LAYERS, **strategy_says}]))):
        found = problems(looked_at(tmp_path, stages, name))
        assert any(repr([*saved, *strategy_says][0]) in finding.found for finding in found)


@pytest.mark.parametrize("names", [["l.3.wq"], ["adam_m.l.3.wq"], ["l.3.wq", "adam_m.l.3.wq"]])
def test_one_layer_along_another_axis(tmp_path: Path, names: Sequence[str]) -> None:
    layers = {**LAYERS, **{f"adam_m.{name}": layout for name, layout in LAYERS.items()}}
    write(tmp_path / "src", [layers])
    diagnosis = looked_at(tmp_path, [{**layers, **dict.fromkeys(names, COLUMNS)}])
    finding = only(diagnosis, "shapes")
    assert "parameters that should be alike make wholes of other shapes" in finding.found
    assert "'adam_m.l.3.wq'" in finding.found or "'l.3.wq' [4, 16] but 'l.0.wq' [8, 8]" in finding.found


def test_layers_that_are_all_unlike_tell_nothing(tmp_path: Path) -> None:
    unlike = {"l.0.wq": ROWS, "l.1.wq": COLUMNS, "l.2.wq": ROWS}
    write(tmp_path / "src", [unlike])
    told = looked_at(tmp_path, [{"l.0.wq": ROWS, "l.1.wq": COLUMNS, "l.2.wq": COLUMNS}])
    assert (told.fits, told.findings) == (True, ())


@pytest.mark.parametrize("name", ["net.l.0.wq", "net.l.0.norm"])
def test_one_parameter_was_saved_whole(tmp_path: Path, name: str) -> None:
    stages = [{**STAGES[0], "net.l.0.norm": CUT_NORM}, STAGES[1]]
    write(tmp_path / "src", [{**stages[0], name: whole_layout(whole(name).ndim, 4)}, stages[1]])
    finding = only(looked_at(tmp_path, stages), "contents")
    assert finding.found.startswith(
        f"ranks hold the same, as if it were whole, although the strategy cuts it: {name!r}"
    )
    of_shapes = problems(looked_at(tmp_path, shaped(stages), "strategy.json"))[0]
    assert of_shapes.found.startswith(
        "ranks hold the whole of what the strategy cuts, though they hold slices of others"
    )


def test_slices_that_are_the_same(tmp_path: Path) -> None:
    stages = [{**STAGES[0], "net.l.0.wo": ParameterLayout((2, 2), ((1,), (0,)))}, STAGES[1]]
    write(tmp_path / "src", stages)
    for rank in range(4):
        entries = [("net.embed.w", "Float32", (4, 8), np.arange(32, dtype=np.float32).tobytes())]
        entries += [
            (name, "Float32", shard.shape, shard.tobytes())
            for name, layout in stages[0].items()
            if name != "net.embed.w"
            for shard in [whole(name)[layout.shard_grid(whole(name).ndim).box_of(rank, whole(name).shape).as_index()]]
        ]
        put(tmp_path / "src", rank, *entries)
    # shapes prove that these are slices
    assert looked_at(tmp_path, shaped(stages), "strategy.json").fits
    assert "(experts copied of one)" in only(looked_at(tmp_path, stages), "contents").means


def test_rank_folders_swapped_among_many(tmp_path: Path) -> None:
    many = ParameterLayout((64, 2), ((0,), ()))
    write(tmp_path / "src", [{"l.0.wq": many}])
    (tmp_path / "src/rank_50").rename(tmp_path / "src/kept")
    (tmp_path / "src/rank_51").rename(tmp_path / "src/rank_50")
    (tmp_path / "src/kept").rename(tmp_path / "src/rank_51")
    finding = only(looked_at(tmp_path, [{"l.0.wq": many}]), "contents")
    assert "'l.0.wq' differs on rank_0, rank_50, which should hold the same" in finding.found
    assert "rank folders that were swapped" in finding.means


def test_what_a_strategy_without_shapes_makes_is_told(tmp_path: Path) -> None:
    write(tmp_path / "src", [LAYERS])
    facts = dict(looked_at(tmp_path, [LAYERS]).facts)
    assert facts["makes"].startswith("l.0.wq [8, 8], l.0.wo [8, 8]; see that they are the network's")
    assert "makes" not in dict(looked_at(tmp_path, shaped([LAYERS]), "s.json").facts)


# ---- no strategy, and no checkpoint ----


def test_what_a_checkpoint_needs(tmp_path: Path) -> None:
    write(tmp_path / "src")
    diagnosis = diagnose(str(tmp_path / "src"))
    assert (diagnosis.fits, diagnosis.strategy) == (None, "")
    assert dict(diagnosis.facts) == {
        "checkpoint": f"{tmp_path}/src: 8 ranks, 9 parameters",
        "holding": "ranks 0-3: 5 parameters; ranks 4-7: 5 parameters",
        "needs": "a strategy of 8 ranks, of 2 stages it seems: --source-strategy, the directory that the job's ranks "
        "wrote",
    }


def test_one_rank_needs_none() -> None:
    diagnosis = diagnose(str(FIXTURES / "formats/plain.ckpt"))
    assert "no strategy" in dict(diagnosis.facts)["needs"]
    assert diagnosis.fits


def test_unified_needs_none(tmp_path: Path) -> None:
    source = write(tmp_path / "full")
    write_strategy(strategy(), str(tmp_path / "strategy.ckpt"))
    options = {"source_strategy": str(tmp_path / "strategy.ckpt"), "layout": "unified"}
    convert(build_request(source=str(source), target=str(tmp_path / "src"), **options))
    assert dict(diagnose(str(tmp_path / "src")).facts)["needs"] == "no strategy: its tensors are whole"
    assert "leave out --source-strategy" in only(looked_at(tmp_path), "ranks").advice
    with pytest.raises(CatalogError, match="it has no steps or prefixes"):
        diagnose(str(tmp_path / "src"), step="3_4")


def test_an_index_that_is_not_of_its_files_is_no_all_clear(tmp_path: Path) -> None:
    write_strategy(strategy(), str(tmp_path / "strategy.ckpt"))
    options = {"source_strategy": str(tmp_path / "strategy.ckpt"), "layout": "unified", "max_shard_size": "300B"}
    convert(build_request(source=str(write(tmp_path / "full")), target=str(tmp_path / "src"), **options))
    assert dict(diagnose(str(tmp_path / "src")).facts)["checkpoint"].endswith("unified, 6 files, 9 parameters")
    (tmp_path / "src/model-00002-of-00006.safetensors").unlink()
    with pytest.raises(CatalogError, match=r"model-00002-of-00006\.safetensors is not there, where the index says"):
        diagnose(str(tmp_path / "src"))


def test_neither_can_be_read(tmp_path: Path) -> None:
    with pytest.raises(CatalogError):
        diagnose(str(tmp_path / "nothing"))
    with pytest.raises(StrategyError):
        diagnose(str(write(tmp_path / "src")), str(tmp_path / "nothing"))
