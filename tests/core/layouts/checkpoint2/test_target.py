"""Conversions to Checkpoint 2.0 directories, compared with those that MindFormers wrote."""

import json
import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.conversion.convert import convert
from reshard.core.conversion.planning import describe_plan
from reshard.core.errors import InputError, TargetError, VerificationError
from reshard.core.layouts.checkpoint2.metadata import parse_metadata
from reshard.core.layouts.checkpoint2.metadata_writing import build_metadata
from reshard.core.plan.plan import ConversionPlan
from reshard.core.request.conversion import build_request
from reshard.core.storage.urls import Location
from reshard.core.storage.writing import write_bytes
from reshard.core.strategy.files import write_strategy
from reshard.core.strategy.model import StageStrategy, Strategy
from reshard.core.tensor.layout import ParameterLayout
from reshard.core.verification.published import verify_target
from tests.support.checkpoints import case as rank_case
from tests.support.checkpoints import read_safetensors, read_tree
from tests.support.conversions import damage, stop_before_commit
from tests.support.iterations import (
    CASES,
    IterationCase,
    iteration_case,
    iteration_request,
    read_iteration,
    read_metadata,
    tracked,
)
from tests.support.places import FIXTURES

TWO_BY_TWO = iteration_case(2)
PIPELINE = iteration_case(4)
SEVERAL = iteration_case(6)
OLD = rank_case(7009)
ALLOWED = {"allow_missing": ["adam_*"]}


def own_strategy(case: IterationCase) -> str:
    path = case.iteration / "metadata.json"
    return str(path) if path.exists() else ""


def refusal(source: Path | str, target: Path | str, **options: object) -> str:
    with pytest.raises(InputError) as caught:
        convert(iteration_request(source, target, **options))
    assert not Path(target).exists()
    return str(caught.value)


@pytest.mark.parametrize("name", [name for name in CASES if not name.startswith(("case_5", "case_6"))])
def test_under_its_own_strategy_a_checkpoint_becomes_what_mindformers_wrote(name: str, tmp_path: Path) -> None:
    case = IterationCase(FIXTURES / "checkpoint2" / name)
    out = tmp_path / "out"
    convert(iteration_request(case.source, out, target_strategy=own_strategy(case), verify="content", **ALLOWED))
    made = out / case.iteration.name
    assert tracked(out) == tracked(case.source)
    assert json.loads((made / "common.json").read_text()) == json.loads((case.iteration / "common.json").read_text())
    names = read_iteration(made).keys()
    assert names == {path.name for path in case.iteration.glob("*.safetensors")}
    if (case.iteration / "metadata.json").exists():
        assert read_metadata(made) == read_metadata(case.iteration)
    else:
        assert not (made / "metadata.json").exists()
    for file, contents in read_iteration(made).items():
        # MindFormers leaves a copy out that it takes for shared by pipeline stages
        wanted = read_iteration(case.iteration)[file]
        assert wanted.items() <= contents.items()


def test_files_of_a_prefix_get_the_plain_names(tmp_path: Path) -> None:
    convert(iteration_request(SEVERAL.source, tmp_path, target_strategy=own_strategy(SEVERAL)))
    wanted = {name.removeprefix("llama-sft_1-"): each for name, each in read_iteration(SEVERAL.iteration).items()}
    assert read_iteration(tmp_path / "iteration_00000040") == wanted


@pytest.mark.parametrize("name", CASES)
def test_there_and_back(name: str, tmp_path: Path) -> None:
    """Under another strategy as a Checkpoint 2.0, and from that to the shards that MindFormers' loader gives."""
    case = IterationCase(FIXTURES / "checkpoint2" / name)
    strategy = str(case.target_strategy)
    convert(iteration_request(case.source, tmp_path / "there", target_strategy=strategy, verify="content", **ALLOWED))
    convert(case.request(tmp_path / "back", tmp_path / "there", verify="content"))
    assert read_tree(tmp_path / "back") == case.want


def test_from_rank_folders_and_back(tmp_path: Path) -> None:
    """How a running project moves to the new format, and returns."""
    old = OLD.request(tmp_path / "new", layout="checkpoint2", iteration="40", verify="content")
    convert(old)
    assert tracked(tmp_path / "new") == "40"
    convert(OLD.request(tmp_path / "back", source=str(tmp_path / "new"), source_strategy="", verify="content"))
    common = json.loads((tmp_path / "new" / "iteration_00000040" / "common.json").read_text())
    assert common["global_step"] == int.from_bytes(OLD.want[0]["global_step"][2], "little")
    assert read_tree(tmp_path / "back") == OLD.want


def test_redundancy_is_removed_and_global_step_moves_to_common(tmp_path: Path) -> None:
    options = {"target_strategy": own_strategy(TWO_BY_TWO), "remove_redundancy": True, "verify": "content"}
    report = convert(iteration_request(TWO_BY_TWO.source, tmp_path / "out", **options))
    made = tmp_path / "out" / TWO_BY_TWO.iteration.name
    files = read_iteration(made)
    entries = read_metadata(made)["storage_data"]
    assert all(len(entry) == 1 for entry in entries.values())
    assert sum(map(len, files.values())) == len(entries)
    assert "in common.json of the target, and in none of its files: global_step" in report.notes
    convert(TWO_BY_TWO.request(tmp_path / "back", tmp_path / "out"))
    wanted = {
        rank: {name: each for name, each in contents.items() if name != "global_step"}
        for rank, contents in TWO_BY_TWO.want.items()
    }
    assert read_tree(tmp_path / "back") == wanted


def test_without_redundancy_what_stages_share_is_in_one_of_them(tmp_path: Path) -> None:
    """Stages that shard it differently would have shards of the same numbers."""
    matrices = {
        f"{kind}{name}": np.arange(64, dtype=np.float32).reshape(8, 8) for kind in ("", "adam_m.") for name in "abcd"
    }
    save_file(matrices, tmp_path / "whole.safetensors")
    rows, columns = (ParameterLayout((2,), axes, nested=True) for axes in (((0,), ()), ((), (0,))))
    stages = (
        {name: rows for name in matrices if name[-1] != "d"},
        {name: columns for name in matrices if name[-1] in "ad"},
    )
    strategy = Strategy(tuple(StageStrategy(number, layouts) for number, layouts in enumerate(stages)), "made")
    write_strategy(strategy, str(tmp_path / "strategy.ckpt"))
    given = {"target_strategy": str(tmp_path / "strategy.ckpt"), "common": ["global_step=1"], "remove_redundancy": True}
    request = iteration_request(
        tmp_path / "whole.safetensors", tmp_path / "out", iteration="1", verify="content", **given
    )
    convert(request)
    made = tmp_path / "out" / "iteration_00000001"
    for number in (0, 1):
        [entry] = read_metadata(made)["storage_data"][f"('a', ({number},))"]
        assert (entry["storage_rank"], entry["rank_group"]) == (number, [number])
    assert verify_target(str(made), VerifyLevel.CONTENT).problems == ()
    back = build_request(
        source=str(tmp_path / "out"), target=str(tmp_path / "back"), layout="unified", verify="content"
    )
    convert(back)
    assert read_safetensors(tmp_path / "back" / "model.safetensors") == read_safetensors(tmp_path / "whole.safetensors")


def test_a_strategy_of_one_card_has_no_metadata(tmp_path: Path) -> None:
    convert(iteration_request(TWO_BY_TWO.source, tmp_path, verify="content"))
    made = tmp_path / TWO_BY_TWO.iteration.name
    assert {path.name for path in made.iterdir()} == {
        ".reshard",
        "common.json",
        "model-0000000-0000001.safetensors",
        "opt-0000000-0000001.safetensors",
    }
    contents = {name: each for file in read_iteration(made).values() for name, each in file.items()}
    contents.pop("global_step")
    assert contents == TWO_BY_TWO.whole


def test_weights_alone_need_no_optimizer_files(tmp_path: Path) -> None:
    options = {"target_strategy": own_strategy(TWO_BY_TWO), "select": "weights-only"}
    convert(iteration_request(TWO_BY_TWO.source, tmp_path, **options))
    made = tmp_path / TWO_BY_TWO.iteration.name
    assert all(name.startswith("model-") for name in read_iteration(made))
    assert not any("adam" in name for name in read_metadata(made)["state_dict_metadata"])


def test_a_parameter_without_a_layout_goes_to_every_rank(tmp_path: Path) -> None:
    listed = read_metadata(PIPELINE.iteration)["state_dict_metadata"]
    names = [name for name, tensor in listed.items() if tensor["layout"] is None]
    assert names == ["mlp.router.scale", "mlp.router.expert_bias"]
    convert(iteration_request(PIPELINE.source, tmp_path, target_strategy=str(PIPELINE.target_strategy), **ALLOWED))
    made = tmp_path / PIPELINE.iteration.name
    for name in names:
        tensor = read_metadata(made)["state_dict_metadata"][name]
        assert (tensor["layout"], tensor["properties"]["replica_id"]) == (None, 0)
        owners = [contents for contents in read_iteration(made).values() if name in contents]
        assert [each[name] for each in owners] == [PIPELINE.whole[name]] * len(PIPELINE.want)


def test_what_another_metadata_lists_as_whole_is_joined_if_the_source_shards_it(tmp_path: Path) -> None:
    """Without a layout in the target, it would count as unmatched, and be dropped."""
    case = TWO_BY_TWO.copied(tmp_path / "case")
    name = "embedding.word_embeddings.weight"

    def unshard(document: dict[str, Any]) -> None:
        tensor = document["state_dict_metadata"][name]
        whole = {"global_offset": [0], "local_shape": tensor["global_shape"]}
        tensor.update(layout=None, axis_fragmentations=[1, 1], chunk=[whole])
        del document["storage_data"][f"('{name}', (1,))"]

    case.change_metadata(unshard)
    convert(iteration_request(TWO_BY_TWO.source, tmp_path / "out", target_strategy=own_strategy(case)))
    files = read_iteration(tmp_path / "out" / TWO_BY_TWO.iteration.name)
    found = [contents[name] for contents in files.values() if name in contents]
    assert found == [TWO_BY_TWO.whole[name]] * 4


def test_what_another_metadata_lists_as_whole_and_the_source_lacks_is_missing(tmp_path: Path) -> None:
    said = refusal(TWO_BY_TWO.source, tmp_path / "out", target_strategy=own_strategy(PIPELINE), **ALLOWED)
    assert "parameter 'mlp.router.expert_bias' of the target's strategy is in no source file" in said


class TestPlace:
    def test_other_iterations_stay_untouched(self, tmp_path: Path) -> None:
        shutil.copytree(SEVERAL.source, tmp_path / "output")
        before = {path: path.stat().st_mtime_ns for path in (tmp_path / "output").rglob("*.safetensors")}
        options = {"target_strategy": own_strategy(TWO_BY_TWO), "verify": "content"}
        convert(iteration_request(TWO_BY_TWO.source, tmp_path / "output", **options))
        assert tracked(tmp_path / "output") == "45960"
        assert {path: path.stat().st_mtime_ns for path in before} == before

    def test_the_tracker_never_goes_back(self, tmp_path: Path) -> None:
        strategy = own_strategy(SEVERAL)
        convert(iteration_request(SEVERAL.source, tmp_path, target_strategy=strategy))
        convert(iteration_request(SEVERAL.source, tmp_path, target_strategy=strategy, step="33"))
        assert tracked(tmp_path) == "40"
        assert (tmp_path / "iteration_00000033" / "metadata.json").exists()

    def test_of_two_runs_at_once_the_newer_iteration_stays_tracked(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The older run reads the tracker, and writes it a while after the newer one is complete."""
        (tmp_path / "latest_checkpointed_iteration.txt").write_text("1")
        is_waiting, is_over = threading.Event(), threading.Event()

        def write_later(location: Location, data: bytes) -> None:
            if data == b"33":
                is_waiting.set()
                is_over.wait(1)
            write_bytes(location, data)

        monkeypatch.setattr("reshard.core.layouts.tracker.write_bytes", write_later)
        strategy = own_strategy(SEVERAL)
        older = iteration_request(SEVERAL.source, tmp_path, target_strategy=strategy, step="33")
        with ThreadPoolExecutor() as threads:
            run = threads.submit(convert, older)
            assert is_waiting.wait(30)
            convert(iteration_request(SEVERAL.source, tmp_path, target_strategy=strategy))
            is_over.set()
            run.result()
        assert tracked(tmp_path) == "40"
        assert not list(tmp_path.glob(".reshard*"))

    def test_a_directory_of_one_iteration_gets_no_tracker(self, tmp_path: Path) -> None:
        target = tmp_path / "iteration_00000007"
        convert(iteration_request(SEVERAL.source, target, target_strategy=own_strategy(SEVERAL)))
        assert [path.name for path in tmp_path.iterdir()] == [target.name]
        assert (target / "metadata.json").exists()

    def test_a_number_of_its_own(self, tmp_path: Path) -> None:
        convert(iteration_request(SEVERAL.source, tmp_path, target_strategy=own_strategy(SEVERAL), iteration="7"))
        assert tracked(tmp_path) == "7"
        assert json.loads((tmp_path / "iteration_00000007" / "common.json").read_text())["global_step"] == 40

    def test_a_damaged_tracker_is_refused_before_anything_is_written(self, tmp_path: Path) -> None:
        (tmp_path / "latest_checkpointed_iteration.txt").write_text("forty")
        with pytest.raises(TargetError, match=r"is not the number of an iteration: 'forty'. Remove it, or correct it"):
            convert(iteration_request(SEVERAL.source, tmp_path, target_strategy=own_strategy(SEVERAL)))
        assert [path.name for path in tmp_path.iterdir()] == ["latest_checkpointed_iteration.txt"]

    @pytest.mark.parametrize(("place", "named"), [("iter_0000003", "3"), ("release", "release")])
    def test_the_tracker_of_megatron_is_not_advanced(self, place: str, named: str, tmp_path: Path) -> None:
        (tmp_path / place).mkdir()
        (tmp_path / "latest_checkpointed_iteration.txt").write_text(named)
        with pytest.raises(
            TargetError, match=r"is a Megatron-LM checkpoint .*, whose latest_checkpointed_iteration\.txt"
        ):
            convert(iteration_request(SEVERAL.source, tmp_path, target_strategy=own_strategy(SEVERAL)))
        assert tracked(tmp_path) == named
        assert not list(tmp_path.glob("iteration_*"))


class TestRuns:
    def test_a_killed_run_is_resumed_and_tracked_at_the_end(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        request = iteration_request(
            SEVERAL.source, tmp_path / "out" / "iteration_00000040", target_strategy=own_strategy(SEVERAL)
        )
        stop_before_commit(monkeypatch, request)
        report = convert(request)
        assert {rank.outcome.value for rank in report.ranks} == {"resumed"}
        assert convert(request).written_bytes == 0

    def test_a_run_killed_before_the_tracker_was_written_is_completed_by_the_next(self, tmp_path: Path) -> None:
        request = iteration_request(SEVERAL.source, tmp_path, target_strategy=own_strategy(SEVERAL))
        convert(request)
        (tmp_path / "latest_checkpointed_iteration.txt").unlink()
        convert(request)
        assert tracked(tmp_path) == "40"

    def test_another_conversion_of_the_iteration_needs_overwrite(self, tmp_path: Path) -> None:
        convert(iteration_request(SEVERAL.source, tmp_path, target_strategy=own_strategy(SEVERAL)))
        other = {"target_strategy": str(SEVERAL.target_strategy)}
        with pytest.raises(TargetError, match=r"iteration_00000040: is not empty.* pass overwrite=True to replace it"):
            convert(iteration_request(SEVERAL.source, tmp_path, **other))
        convert(iteration_request(SEVERAL.source, tmp_path, overwrite=True, verify="content", **other))
        assert verify_target(str(tmp_path / "iteration_00000040"), VerifyLevel.CONTENT).problems == ()

    def test_some_files_here_the_rest_elsewhere(self, tmp_path: Path) -> None:
        options = {"target_strategy": own_strategy(SEVERAL)}
        first = convert(iteration_request(SEVERAL.source, tmp_path, ranks="0,3", **options))
        assert (first.committed, first.missing_ranks) == (False, (1, 2))
        assert not (tmp_path / "latest_checkpointed_iteration.txt").exists()
        assert convert(iteration_request(SEVERAL.source, tmp_path, ranks="1-2", **options)).committed
        assert tracked(tmp_path) == "40"

    def test_planning_writes_nothing(self, tmp_path: Path) -> None:
        target = tmp_path / "out"
        plan, summary = describe_plan(iteration_request(SEVERAL.source, target, target_strategy=own_strategy(SEVERAL)))
        assert [plan.file_name(rank) for rank in plan.target_ranks] == list(read_names(SEVERAL))
        assert (summary.target_kind, summary.target_world_size, summary.layout) == ("file", 4, "checkpoint2")
        assert not target.exists()


def read_names(case: IterationCase) -> list[str]:
    return [name.removeprefix("llama-sft_1-") for name in read_iteration(case.iteration)]


class TestVerification:
    @pytest.fixture
    def target(self, tmp_path: Path) -> Path:
        convert(iteration_request(TWO_BY_TWO.source, tmp_path, target_strategy=own_strategy(TWO_BY_TWO)))
        return tmp_path / TWO_BY_TWO.iteration.name

    @pytest.mark.parametrize("level", [VerifyLevel.STRUCTURE, VerifyLevel.CHECKSUM, VerifyLevel.CONTENT])
    def test_what_was_written_is_right(self, target: Path, level: VerifyLevel) -> None:
        assert verify_target(str(target), level).problems == ()

    def test_a_changed_byte_is_found(self, target: Path) -> None:
        damage(target / "opt-0000001-0000004.safetensors")
        [problem] = verify_target(str(target), VerifyLevel.CHECKSUM).problems
        assert "opt-0000001-0000004.safetensors" in problem

    @pytest.mark.parametrize(
        ("name", "kind"), [("metadata.json", "metadata"), ("common.json", "state of the training")]
    )
    def test_a_changed_document_is_found_and_written_again(self, target: Path, name: str, kind: str) -> None:
        document = target / name
        right = document.read_bytes()
        document.chmod(0o600)
        document.write_bytes(right[:-2] + b"  ")
        [problem] = verify_target(str(target), VerifyLevel.STRUCTURE).problems
        assert problem == f"{document}: is not the {kind} that was written"
        convert(iteration_request(TWO_BY_TWO.source, target.parent, target_strategy=own_strategy(TWO_BY_TWO)))
        assert document.read_bytes() == right

    def test_metadata_that_places_a_parameter_elsewhere_is_not_committed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The written metadata is compared with the files' records, not with the plan that it was made from."""

        def misplaced(plan: ConversionPlan) -> bytes:
            document = json.loads(build_metadata(plan))
            del document["storage_data"]["('output_layer.weight', (0,))"]
            return json.dumps(document).encode()

        monkeypatch.setattr("reshard.core.layouts.checkpoint2.metadata_writing.build_metadata", misplaced)
        with pytest.raises(
            VerificationError, match=r"is wrong about parameter 'output_layer.weight', which is in model-0"
        ):
            convert(iteration_request(TWO_BY_TWO.source, tmp_path, target_strategy=own_strategy(TWO_BY_TWO)))
        assert not (tmp_path / TWO_BY_TWO.iteration.name).exists()

    def test_foreign_files_of_another_iteration_are_named(self, target: Path) -> None:
        shutil.copy(target / "opt-0000001-0000004.safetensors", target / "opt-0000004-0000005.safetensors")
        [problem] = verify_target(str(target), VerifyLevel.STRUCTURE).problems
        assert "opt-0000004-0000005.safetensors: does not belong to this checkpoint" in problem

    def test_written_metadata_parses_to_the_strategy_it_was_made_from(self, target: Path) -> None:
        wanted = parse_metadata((TWO_BY_TWO.iteration / "metadata.json").read_bytes(), "MindFormers'")
        made = parse_metadata((target / "metadata.json").read_bytes(), "ours")
        assert made.strategy.stages == wanted.strategy.stages


class TestRefusals:
    def test_an_unknown_iteration(self, tmp_path: Path) -> None:
        source = OLD.directory / "src"
        said = refusal(
            os.path.relpath(source), tmp_path / "out", source_strategy=str(OLD.directory / "src_strategy.ckpt")
        )
        assert said == (
            f"{source}: does not say which iteration it is, as a Checkpoint 2.0 does: give its number with 'iteration'"
        )

    def test_a_missing_source_is_what_is_wrong(self, tmp_path: Path) -> None:
        assert refusal(tmp_path / "none", tmp_path / "out").startswith(f"{tmp_path / 'none'}: cannot read it")

    def test_an_unknown_global_step(self, tmp_path: Path) -> None:
        case = SEVERAL.copied(tmp_path / "case")
        (case.iteration / "common.json").write_text('{"step_num": 40}')
        said = refusal(case.source, tmp_path / "out", target_strategy=own_strategy(case))
        assert said.endswith(
            "neither its files nor its common.json say at which global_step it was saved, and MindFormers resumes from "
            "there: give it with common=['global_step=N']"
        )
        options = {"target_strategy": own_strategy(case), "common": ["global_step=41", "loss_scale=null"]}
        convert(iteration_request(case.source, tmp_path / "out", **options))
        written = json.loads((tmp_path / "out" / "iteration_00000040" / "common.json").read_text())
        assert written == {"step_num": 40, "global_step": 41, "loss_scale": None}

    def test_fewer_slices_than_ranks(self, tmp_path: Path) -> None:
        options = {"target_strategy": own_strategy(TWO_BY_TWO), "remove_redundancy": True}
        said = refusal(TWO_BY_TWO.source, tmp_path / "out", include=["embedding.*"], **options)
        assert said.startswith("redundancy cannot be removed: there are fewer slices than target ranks")

    def test_a_stage_whose_parameters_lower_stages_save_is_not_called_empty(self, tmp_path: Path) -> None:
        """It has parameters; that its files would be empty comes of removing redundancy alone."""
        names = [f"{kind}{name}" for kind in ("", "adam_m.") for name in "ab"]
        save_file({name: np.arange(4, dtype=np.float32) for name in names}, tmp_path / "whole.safetensors")
        rows = ParameterLayout((2,), ((0,),))
        stages = (dict.fromkeys(names, rows), {name: rows for name in names if name[-1] == "a"})
        strategy = Strategy(tuple(StageStrategy(number, layouts) for number, layouts in enumerate(stages)), "made")
        write_strategy(strategy, str(tmp_path / "strategy.ckpt"))
        given = {"iteration": "1", "target_strategy": str(tmp_path / "strategy.ckpt"), "common": ["global_step=1"]}
        said = refusal(tmp_path / "whole.safetensors", tmp_path / "out", remove_redundancy=True, **given)
        assert said.endswith(
            "redundancy cannot be removed: the target's stage 1 shares all its parameters of the network with lower "
            "stages, so that its files would be empty. Leave out remove_redundancy=True"
        )
        convert(iteration_request(tmp_path / "whole.safetensors", tmp_path / "out", **given))
        assert verify_target(str(tmp_path / "out"), VerifyLevel.CONTENT).problems == ()

    def test_a_text_has_no_place(self, tmp_path: Path) -> None:
        request = TWO_BY_TWO.request(tmp_path / "ranks", format="ckpt", append_info=["version=text:2"])
        convert(request)
        said = refusal(tmp_path / "ranks", tmp_path / "out", iteration="4", target_strategy=own_strategy(TWO_BY_TWO))
        assert "parameter 'version' is a text, for which it has no place; if the model does without" in said


def test_values_that_callbacks_append_become_common(tmp_path: Path) -> None:
    request = TWO_BY_TWO.request(tmp_path / "ranks", append_info=["epoch_num=3", "step_num=5", "loss_scale=2.5"])
    convert(request)
    strategy = own_strategy(TWO_BY_TWO)
    report = convert(iteration_request(tmp_path / "ranks", tmp_path / "out", iteration="4", target_strategy=strategy))
    made = tmp_path / "out" / "iteration_00000004"
    [step] = {int.from_bytes(each["global_step"][2], "little") for each in TWO_BY_TWO.want.values()}
    written = json.loads((made / "common.json").read_text())
    assert written == {"epoch_num": 3, "step_num": 5, "global_step": step, "loss_scale": 2.5}
    assert any(note.startswith("in common.json of the target, and in none of its files: ") for note in report.notes)
    assert not any(
        {"epoch_num", "step_num", "loss_scale"} & contents.keys() for contents in read_iteration(made).values()
    )
