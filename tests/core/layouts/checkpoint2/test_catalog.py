"""Conversions of Checkpoint 2.0 directories that MindFormers wrote."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reshard.core.conversion.convert import convert
from reshard.core.conversion.planning import make_plan
from reshard.core.errors import InputError
from reshard.core.layouts.any_layout import read_any_strategy
from reshard.core.request.conversion import build_request
from reshard.core.request.source import FingerprintRequest, SourceRequest
from reshard.core.source.recovery import assess_recovery
from reshard.core.verification.compare import fingerprint_checkpoint
from tests.support.checkpoints import read_safetensors, read_tree
from tests.support.diagnosed import diagnose
from tests.support.iterations import CASES, IterationCase, iteration_case
from tests.support.loading import load_rank
from tests.support.places import FIXTURES

TWO_BY_TWO = iteration_case(2)
PIPELINE = iteration_case(4)
DEDUPLICATED = iteration_case(5)
SEVERAL = iteration_case(6)
OPTIMIZER = "adam_*"


@pytest.mark.parametrize("name", CASES)
def test_targets_are_what_the_loader_of_mindformers_gives(name: str, tmp_path: Path) -> None:
    case = IterationCase(FIXTURES / "checkpoint2" / name)
    report = convert(case.request(tmp_path / "out", verify="content"))
    assert read_tree(tmp_path / "out") == case.want
    assert report.step == str(int(case.iteration.name.removeprefix("iteration_")))


@pytest.mark.parametrize("name", CASES)
def test_whole_tensors(name: str, tmp_path: Path) -> None:
    case = IterationCase(FIXTURES / "checkpoint2" / name)
    convert(case.request(tmp_path / "out", target_strategy="", layout="unified"))
    made = read_safetensors(tmp_path / "out" / "model.safetensors")
    assert {name: each for name, each in made.items() if name != "global_step"} == case.whole


def test_any_way_to_name_an_iteration(tmp_path: Path) -> None:
    places: list[Path | str] = [SEVERAL.source, SEVERAL.iteration, SEVERAL.iteration / "metadata.json"]
    for number, source in enumerate([*places, f"{SEVERAL.source}/"]):
        convert(SEVERAL.request(tmp_path / str(number), source))
        assert read_tree(tmp_path / str(number)) == SEVERAL.want


def test_another_iteration_is_chosen_by_its_number(tmp_path: Path) -> None:
    report = convert(SEVERAL.request(tmp_path / "out", step="33"))
    assert (report.step, report.source) == ("33", str(SEVERAL.source))
    assert report.notes[0] == (
        "in common.json of the source, and not in the result: epoch_num 1, step_num 33, global_batch_size 16, "
        "ckpt_status 0"
    )
    assert report.notes[1].startswith("not in any strategy")
    assert read_tree(tmp_path / "out") != SEVERAL.want


def test_newer_iterations_are_named_and_passed_over(tmp_path: Path) -> None:
    report = convert(SEVERAL.request(tmp_path / "out"))
    assert report.notes[0] == (
        "iteration 45 is newer, but skipped: it is incomplete: it has no metadata.json, but by their names its "
        "files are of 2 ranks"
    )


def test_without_a_tracker_the_newest_complete_iteration_counts(tmp_path: Path) -> None:
    case = SEVERAL.copied(tmp_path / "case")
    (case.source / "latest_checkpointed_iteration.txt").unlink()
    report = convert(case.request(tmp_path / "out"))
    assert report.step == "40"
    assert "there is no latest_checkpointed_iteration.txt: iteration 40 is the newest complete one" in report.notes


def test_one_file_of_an_iteration_is_not_taken_for_all_of_it(tmp_path: Path) -> None:
    iteration = SEVERAL.source / "iteration_00000040"
    file = next(iteration.glob("*model-0000000-*.safetensors"))
    with pytest.raises(InputError, match="a part of a Checkpoint 2.0: name the directory of its iteration, or name"):
        convert(build_request(source=str(file), target=str(tmp_path / "out")))


def test_a_stage_that_shards_a_shared_parameter_differently_keeps_its_own_slices(tmp_path: Path) -> None:
    """The key of a shard then names shards of different shapes; only the layout's own stage fits the layout."""
    case = PIPELINE.copied(tmp_path / "case")
    name, key = "embedding.word_embeddings.weight", "('embedding.word_embeddings.weight', (0,))"

    def shard_in_stage_one(document: dict[str, dict[str, object]]) -> None:
        tensor = document["state_dict_metadata"][name]
        assert isinstance(tensor, dict)
        tensor["chunk"] += [{"global_offset": [index], "local_shape": [24, 12]} for index in (0, 1)]
        entries = document["storage_data"][key]
        assert isinstance(entries, list)
        document["storage_data"][key] = [entry for entry in entries if entry["storage_rank"] != 3]
        document["storage_data"][key.replace("(0,)", "(1,)")] = [
            entry for entry in entries if entry["storage_rank"] == 3
        ]

    case.change_metadata(shard_in_stage_one)
    strategy = read_any_strategy(str(case.source))
    assert [name in stage.layouts for stage in strategy.stages] == [True, False]
    convert(case.request(tmp_path / "out", verify="content"))
    assert read_tree(tmp_path / "out") == case.want


class TestUnsavedOptimizer:
    @pytest.fixture
    def case(self, tmp_path: Path) -> IterationCase:
        case = TWO_BY_TWO.copied(tmp_path / "case")
        for file in case.iteration.glob("opt-*"):
            file.unlink()
        return case

    def test_weights_alone_are_converted(self, case: IterationCase, tmp_path: Path) -> None:
        convert(case.request(tmp_path / "out", select="weights-only"))
        for rank, contents in read_tree(tmp_path / "out").items():
            want = {name: each for name, each in case.want[rank].items() if not name.startswith(("adam", "global"))}
            assert contents == want

    def test_the_plan_notes_what_is_in_no_file(self, case: IterationCase, tmp_path: Path) -> None:
        report = convert(case.request(tmp_path / "out", allow_missing=[OPTIMIZER]))
        assert "the optimizer's files were not saved, or are not there: its parameters are missing" in report.notes
        assert "listed in the metadata, but in NO file: adam_m.* (4), adam_v.* (4)" in report.notes

    def test_all_of_it_is_refused(self, case: IterationCase, tmp_path: Path) -> None:
        whole: Any = {"target_strategy": "", "layout": "unified"}
        with pytest.raises(InputError) as caught:
            convert(case.request(tmp_path / "out", **whole))
        assert str(caught.value) == (
            f"{case.iteration}/metadata.json: lists 8 parameters that no file holds: adam_m.* (4), adam_v.* (4). "
            "Convert without them: select='weights-only', or allow_missing=['PATTERN'] for each kind"
        )
        assert convert(case.request(tmp_path / "out", **whole, allow_missing=[OPTIMIZER])).committed


class TestMissingFiles:
    @pytest.fixture
    def case(self, tmp_path: Path) -> IterationCase:
        case = TWO_BY_TWO.copied(tmp_path / "case")
        (case.iteration / "opt-0000001-0000004.safetensors").unlink()
        return case

    def test_one_is_named(self, case: IterationCase, tmp_path: Path) -> None:
        with pytest.raises(InputError) as caught:
            convert(case.request(tmp_path / "out"))
        assert str(caught.value) == (
            f"{case.source}: files that metadata.json lists are missing: opt-0000001-0000004.safetensors. Get them as "
            "well, or recover=True, if other ranks hold what was in them ('reshard recover' tells)"
        )

    def test_other_ranks_replace_it(self, case: IterationCase, tmp_path: Path) -> None:
        report = assess_recovery(SourceRequest(source=str(case.source)))
        assert [(each.rank, each.why) for each in report.lost_ranks] == [
            (1, "missing: opt-0000001-0000004.safetensors; unused without that: model-0000001-0000004.safetensors")
        ]
        assert report.recoverable
        convert(case.request(tmp_path / "out", recover=True))
        assert read_tree(tmp_path / "out") == case.want


class TestFilesWithoutWeights:
    """Of rank 1, the optimizer's file cannot be read."""

    FILE = "opt-0000001-0000004.safetensors"

    @pytest.fixture(params=["missing", "damaged"])
    def problem(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)

    @pytest.fixture
    def case(self, problem: str, tmp_path: Path) -> IterationCase:
        case = TWO_BY_TWO.copied(tmp_path / "case")
        file = case.iteration / self.FILE
        if problem == "missing":
            file.unlink()
        else:
            os.truncate(file, file.stat().st_size - 4)
        return case

    @pytest.mark.parametrize(
        "changes", [{"select": "weights-only"}, {"exclude": ["adam_*", "global_step"]}], ids=["selected", "excluded"]
    )
    def test_they_are_not_needed_for_weights(
        self, case: IterationCase, problem: str, changes: dict[str, Any], tmp_path: Path
    ) -> None:
        report = convert(case.request(tmp_path / "out", verify="content", **changes))
        for rank, contents in read_tree(tmp_path / "out").items():
            want = {name: each for name, each in case.want[rank].items() if not name.startswith(("adam", "global"))}
            assert contents == want
        assert (
            f"{problem}, but by metadata.json without any parameter that is selected, so left out: {self.FILE}"
        ) in report.notes

    def test_they_are_if_they_may_hold_what_the_metadata_never_lists(self, case: IterationCase, tmp_path: Path) -> None:
        with pytest.raises(InputError, match=self.FILE):
            convert(case.request(tmp_path / "out", exclude=["adam_*"]))

    def test_they_are_if_the_metadata_places_a_weight_in_them(self, case: IterationCase, tmp_path: Path) -> None:
        def move(document: dict[str, Any]) -> None:
            stored = document["storage_data"]
            key = next(key for key, entries in stored.items() if entries[0]["file_name"].startswith("model-0000001"))
            stored[key][0]["file_name"] = self.FILE

        case.change_metadata(move)
        with pytest.raises(InputError, match=self.FILE):
            convert(case.request(tmp_path / "out", select="weights-only"))

    def test_a_damaged_file_of_weights_is_refused(self, case: IterationCase, tmp_path: Path) -> None:
        file = case.iteration / "model-0000001-0000004.safetensors"
        os.truncate(file, file.stat().st_size - 4)
        with pytest.raises(InputError, match=file.name):
            convert(case.request(tmp_path / "out", select="weights-only"))


def test_a_rank_that_wrote_nothing_but_a_file_without_weights(tmp_path: Path) -> None:
    case = DEDUPLICATED.copied(tmp_path / "case")

    def move(document: dict[str, Any]) -> None:
        for [entry] in document["storage_data"].values():
            if entry["file_name"] == "model-0000003-0000004.safetensors":
                entry["storage_rank"] = 1

    case.change_metadata(move)
    file = case.iteration / "opt-0000003-0000004.safetensors"
    os.truncate(file, file.stat().st_size - 4)
    want = {
        rank: {name: each for name, each in contents.items() if not name.startswith(("adam", "global"))}
        for rank, contents in case.want.items()
    }
    for state in ("damaged", "missing"):
        report = convert(case.request(tmp_path / state, select="weights-only"))
        assert read_tree(tmp_path / state) == want
        [note] = [note for note in report.notes if note.startswith(state)]
        assert file.name in note
        file.unlink(missing_ok=True)


class TestOtherIterations:
    def test_they_are_assessed_by_their_own_metadata(self, tmp_path: Path) -> None:
        case = SEVERAL.copied(tmp_path / "case")
        next(case.iteration.glob("*-model-0000001-*")).unlink()
        metadata = case.source / "iteration_00000033" / "metadata.json"
        report = assess_recovery(SourceRequest(source=str(case.source)))
        assert (report.step, report.recoverable) == ("40", False)
        assert [(each.step, each.state) for each in report.other_steps] == [("45", "lost"), ("33", "whole")]
        assert "it has no metadata.json" in report.other_steps[0].message
        metadata.write_text("{}")
        report = assess_recovery(SourceRequest(source=str(case.source)))
        assert [(each.step, each.state) for each in report.other_steps] == [("45", "lost"), ("33", "lost")]
        assert report.other_steps[1].message.startswith(f"{metadata}: is not the metadata of a Checkpoint 2.0")

    def test_one_is_asked_for(self) -> None:
        report = assess_recovery(SourceRequest(source=str(SEVERAL.source), step="33"))
        assert (report.step, report.recoverable) == ("33", True)
        assert [(each.step, each.state) for each in report.other_steps] == [("45", "lost"), ("40", "whole")]

    def test_an_iteration_named_itself_has_none(self) -> None:
        assert assess_recovery(SourceRequest(source=str(SEVERAL.iteration))).other_steps == ()


def test_groups_of_ranks_have_to_be_those_of_the_metadata(tmp_path: Path) -> None:
    groups, request = tmp_path / "groups.json", SourceRequest(source=str(TWO_BY_TWO.source), fault_ranks="1")
    groups.write_text("[[0, 1], [2, 3]]")
    with pytest.raises(InputError, match="group info says that rank_0 and rank_1 hold the same, but the source"):
        assess_recovery(request, [str(groups)])
    groups.write_text("[[0, 2], [1, 3]]")
    assert assess_recovery(request, [str(groups)]).recoverable


def test_ranks_that_hold_nothing(tmp_path: Path) -> None:
    case = DEDUPLICATED.copied(tmp_path / "case")
    moved = "3"
    document = json.loads((case.iteration / "metadata.json").read_text())
    of_rank = {
        key: entries for key, entries in document["storage_data"].items() if entries[0]["storage_rank"] == int(moved)
    }
    # the files of rank 3 are said to be rank 1's: both hold the same slices
    assert all(set(entries[0]["rank_group"]) >= {1, 3} for entries in of_rank.values())
    for entries in of_rank.values():
        entries[0]["storage_rank"] = 1
    (case.iteration / "metadata.json").write_text(json.dumps(document))
    convert(case.request(tmp_path / "out", verify="content"))
    assert read_tree(tmp_path / "out") == case.want


def test_single_ranks_are_loaded(tmp_path: Path) -> None:
    loaded = load_rank(str(PIPELINE.source), target_strategy=str(PIPELINE.target_strategy), rank=1)
    assert {name: value.tobytes() for name, value in loaded if isinstance(value, np.ndarray)} == {
        name: data for name, (_, _, data) in PIPELINE.want[1].items()
    }


def test_the_doctor_finds_nothing_wrong() -> None:
    for name in CASES:
        case = IterationCase(FIXTURES / "checkpoint2" / name)
        assert diagnose(str(case.source)).fits


def test_fingerprints_do_not_depend_on_the_form(tmp_path: Path) -> None:
    convert(PIPELINE.request(tmp_path / "ranks"))
    one = fingerprint_checkpoint(FingerprintRequest(source=str(PIPELINE.source)))
    other = fingerprint_checkpoint(FingerprintRequest(source=str(tmp_path / "ranks")))
    assert one.fingerprint == other.fingerprint


def test_metadata_is_a_strategy(tmp_path: Path) -> None:
    """From the old form, under the strategy of a Checkpoint 2.0."""
    convert(TWO_BY_TWO.request(tmp_path / "ranks"))
    strategies = [TWO_BY_TWO.source, TWO_BY_TWO.iteration, TWO_BY_TWO.iteration / "metadata.json"]
    for number, strategy in enumerate(strategies):
        request = TWO_BY_TWO.request(tmp_path / f"back{number}", tmp_path / "ranks", target_strategy=str(strategy))
        convert(request)
        for rank, contents in read_tree(tmp_path / f"back{number}").items():
            files = sorted(TWO_BY_TWO.iteration.glob(f"*-{rank:07d}-*.safetensors"))
            assert contents == {name: each for file in files for name, each in read_safetensors(file).items()}


def refusal(case: IterationCase, target: Path, **options: Any) -> str:
    """The message that a conversion ends with."""
    with pytest.raises(InputError) as caught:
        convert(case.request(target, **options))
    return str(caught.value)


def test_a_strategy_cannot_be_named(tmp_path: Path) -> None:
    message = refusal(TWO_BY_TWO, tmp_path / "out", source_strategy=str(TWO_BY_TWO.directory / "src_strategy.ckpt"))
    assert message == (
        f"{TWO_BY_TWO.source}: is a Checkpoint 2.0: metadata.json says how it is sharded, so leave out "
        "'source_strategy'"
    )


def test_unknown_iterations(tmp_path: Path) -> None:
    assert refusal(SEVERAL, tmp_path / "out", step="7").endswith("src: has no iteration 7; it has 45, 40, 33")
    assert "iteration_00000045: it has no metadata.json" in refusal(SEVERAL, tmp_path / "out", step="45")
    message = refusal(SEVERAL, tmp_path / "out", source=SEVERAL.iteration, step="33")
    assert message.endswith("is iteration 40, not 33: leave out 'step'")
    message = refusal(SEVERAL, tmp_path / "out", source_prefix="llama")
    assert message.endswith("whose metadata names its files: leave out 'source_prefix'")


def test_trackers_that_lead_nowhere(tmp_path: Path) -> None:
    case = SEVERAL.copied(tmp_path / "case")
    tracker = case.source / "latest_checkpointed_iteration.txt"
    tracker.write_text(" 41\n")
    assert "names iteration 41, which is not there; there are 45, 40, 33" in refusal(case, tmp_path / "out")
    tracker.write_text("../40")
    assert refusal(case, tmp_path / "out").endswith("is not the number of an iteration: '../40'")
    tracker.write_text("4" * 100)
    assert refusal(case, tmp_path / "out").endswith(f"{tracker}: is not the number of an iteration")


def test_several_cards_without_metadata(tmp_path: Path) -> None:
    case = TWO_BY_TWO.copied(tmp_path / "case")
    (case.iteration / "metadata.json").unlink()
    assert "it has no metadata.json, but by their names its files are of 4 ranks" in refusal(case, tmp_path / "out")


def test_files_of_another_iteration(tmp_path: Path) -> None:
    case = DEDUPLICATED.copied(tmp_path / "case")
    file = "model-0000001-0000004.safetensors"
    shutil.copyfile(TWO_BY_TWO.iteration / file, case.iteration / file)
    message = refusal(case, tmp_path / "out")
    assert message.startswith(f"{case.iteration}/{{model-0000001-0000004,opt-0000001-0000004}}.safetensors: ")
    case = PIPELINE.copied(tmp_path / "another")
    shutil.copyfile(DEDUPLICATED.iteration / file, case.iteration / file)
    message = refusal(case, tmp_path / "out")
    assert "weight1', which metadata.json does not list: it is of another iteration" in message


def test_a_key_that_is_there_twice_in_common_json_is_refused(tmp_path: Path) -> None:
    case = TWO_BY_TWO.copied(tmp_path / "case")
    common = case.iteration / "common.json"
    common.write_text(common.read_text().replace("{", '{"global_step": 7, ', 1))
    assert "common.json: is not valid JSON: 'global_step' occurs twice in one object" in refusal(case, tmp_path / "out")


def test_shards_of_another_shape(tmp_path: Path) -> None:
    case = TWO_BY_TWO.copied(tmp_path / "case")
    file = "opt-0000001-0000004.safetensors"
    shutil.copyfile(case.iteration / "opt-0000000-0000004.safetensors", case.iteration / file)
    make_plan(case.request(tmp_path / "out"))  # the same shapes: only contents differ
    case.change_metadata(lambda document: _halve(document, "adam_v.output_layer.weight"))
    message = refusal(case, tmp_path / "out")
    assert "parameter 'adam_v.output_layer.weight' has shape" in message or "global_shape" in message


def test_a_tensor_that_no_layout_shards_has_the_shape_that_the_metadata_gives(tmp_path: Path) -> None:
    case = PIPELINE.copied(tmp_path / "case")

    def shorten(document: dict[str, dict[str, dict[str, object]]]) -> None:
        tensor = document["state_dict_metadata"]["mlp.router.expert_bias"]
        assert tensor["layout"] is None
        tensor |= {"global_shape": [6], "chunk": [{"global_offset": [0], "local_shape": [6]}]}

    case.change_metadata(shorten)
    message = refusal(case, tmp_path / "out")
    assert "parameter 'mlp.router.expert_bias' has shape [12], metadata.json gives [6]" in message


def _halve(document: dict[str, dict[str, dict[str, object]]], name: str) -> None:
    tensor = document["state_dict_metadata"][name]
    shape = tensor["global_shape"]
    assert isinstance(shape, list)
    tensor["global_shape"] = [shape[0], shape[1] * 2]
    chunks = tensor["chunk"]
    assert isinstance(chunks, list)
    for chunk in chunks:
        chunk["local_shape"][1] *= 2
