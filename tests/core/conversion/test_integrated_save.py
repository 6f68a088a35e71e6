"""Whether ranks hold whole tensors although their strategy cuts them: shapes or the request decide, never samples."""

import gzip
import json
import shutil
from pathlib import Path

import fsspec
import numpy as np
import pytest
from msgspec.structs import replace

from reshard.core.conversion.convert import convert
from reshard.core.conversion.make_strategy import make_strategy_file
from reshard.core.conversion.planning import make_plan
from reshard.core.conversion.report import ConversionReport
from reshard.core.errors import InputError, PlanError, StrategyError
from reshard.core.options.validation import build_options
from reshard.core.records.plan_file import rebuild_plan
from reshard.core.request.comparison import build_comparison
from reshard.core.request.conversion import build_request
from reshard.core.request.source import FingerprintRequest, SourceRequest
from reshard.core.source.diagnosis_report import Diagnosis
from reshard.core.source.recovery import assess_recovery
from reshard.core.strategy.derivation import TargetJob
from reshard.core.strategy.files import write_strategy
from reshard.core.strategy.integrated_save import IntegratedSave
from reshard.core.strategy.model import OperatorStrategy, StageStrategy, Strategy
from reshard.core.tensor.layout import ParameterLayout
from reshard.core.verification.compare import compare_checkpoints, fingerprint_checkpoint
from tests.support.checkpoints import case, read_tree
from tests.support.ckpt_writer import checkpoint_bytes
from tests.support.diagnosed import diagnose

EXPERTS = ParameterLayout((4,), ((0,), (), ()))
ATTENTION = ParameterLayout((4,), ((), ()))
ROWS = ParameterLayout((2,), ((0,), ()))
ONE_EXPERT = np.arange(32 * 16, dtype=np.float32).reshape(32, 16)
ATTN = np.arange(32 * 32, dtype=np.float32).reshape(32, 32)
REFUSAL = (
    r"ranks hold the same where the strategy .* gives them different slices:\n"
    r"  'experts' is the same on rank_0, rank_1, which should hold different slices "
    r"\(\[2, 32, 16\] on each, \[8, 32, 16\] if these are slices\)\n"
    r"Either every rank was saved whole .* Pass integrated_save='yes' to take each rank's tensors as whole, or "
    r"integrated_save='no' to join them as slices"
)


def strategy(path: Path, experts: ParameterLayout, attention: ParameterLayout) -> str:
    operators = (OperatorStrategy("op", 0, ((1, 1),)),)
    stage = StageStrategy(0, {"experts": experts, "attn": attention}, operators)
    write_strategy(Strategy((stage,), "test"), str(path))
    return str(path)


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """Four ranks, each with 2 of 8 equal experts, copied from one dense network; to be cut for two."""
    experts = np.stack([ONE_EXPERT] * 2)
    for rank in range(4):
        (tmp_path / f"src/rank_{rank}").mkdir(parents=True)
        (tmp_path / f"src/rank_{rank}/net.ckpt").write_bytes(
            checkpoint_bytes(
                ("experts", "Float32", experts.shape, experts.tobytes()),
                ("attn", "Float32", ATTN.shape, ATTN.tobytes()),
            )
        )
    strategy(tmp_path / "source.ckpt", EXPERTS, ATTENTION)
    strategy(
        tmp_path / "target.ckpt",
        replace(EXPERTS, device_matrix=(2,)),
        replace(ATTENTION, device_matrix=(2,)),
    )
    return tmp_path


def run(job: Path, **options: object) -> ConversionReport:
    named = {
        "source": str(job / "src"),
        "target": str(job / "out"),
        "source_strategy": str(job / "source.ckpt"),
        "target_strategy": str(job / "target.ckpt"),
    }
    return convert(build_request(**(named | options)))


def shapes_in(directory: Path) -> list[tuple[int, ...]]:
    return [tree["experts"][1] for tree in read_tree(directory).values()]


def test_equal_experts_are_not_taken_for_whole_tensors(job: Path) -> None:
    with pytest.raises(StrategyError, match=REFUSAL):
        run(job)
    assert not list(job.glob("out*"))


def test_equal_experts_are_joined_if_they_are_said_to_be_slices(job: Path) -> None:
    assert run(job, integrated_save="no", verify="content").committed
    assert shapes_in(job / "out") == [(4, 32, 16)] * 2
    assert read_tree(job / "out")[0]["experts"][2] == np.stack([ONE_EXPERT] * 4).tobytes()


def test_a_checkpoint_said_to_be_saved_whole_is_cut_from_one_rank(job: Path) -> None:
    report = run(job, integrated_save="yes", verify="content")
    assert shapes_in(job / "out") == [(1, 32, 16)] * 2
    assert any("every source rank was saved whole" in note for note in report.notes)


@pytest.mark.parametrize("side", ["source", "target"])
@pytest.mark.parametrize(("whole", "shard"), [((8, 32, 16), (4, 32, 16)), ((2, 32, 16), (1, 32, 16))])
def test_shapes_in_strategies_decide(job: Path, side: str, whole: tuple[int, ...], shard: tuple[int, ...]) -> None:
    ranks = 4 if side == "source" else 2
    declared = replace(EXPERTS, device_matrix=(ranks,), tensor_shape=whole)
    other = replace(ATTENTION, device_matrix=(ranks,), tensor_shape=(32, 32))
    named = strategy(job / "declared.json", declared, other)
    assert run(job, **{f"{side}_strategy": named}).committed
    assert shapes_in(job / "out") == [shard] * 2


def test_known_shapes_contradict_the_request(job: Path) -> None:
    declared = replace(EXPERTS, tensor_shape=(2, 32, 16))
    whole = strategy(job / "whole.json", declared, replace(ATTENTION, tensor_shape=(32, 32)))
    shards = r"'experts': its shards of shape \[2, 32, 16\] make a whole of"
    with pytest.raises(PlanError, match=rf"{shards} \[8, 32, 16\], .* \[2, 32, 16\]: ranks hold whole tensors"):
        run(job, source_strategy=whole, integrated_save="no")
    declared = replace(EXPERTS, tensor_shape=(8, 32, 16))
    slices = strategy(job / "slices.json", declared, replace(ATTENTION, tensor_shape=(32, 32)))
    with pytest.raises(PlanError, match=rf"{shards} \[2, 32, 16\], .* \[8, 32, 16\]: ranks hold slices"):
        run(job, source_strategy=slices, integrated_save="yes")


def test_a_trusted_strategy_is_believed_and_what_contents_show_is_noted(job: Path) -> None:
    report = run(job, trust_strategy=True)
    assert shapes_in(job / "out") == [(4, 32, 16)] * 2
    assert any("'experts' is the same on rank_0, rank_1" in note for note in report.notes)


def test_files_that_are_not_at_hand_are_sampled_too(job: Path) -> None:
    fsspec.filesystem("memory").put(str(job / "src"), "/equal_experts", recursive=True)
    with pytest.raises(StrategyError, match=REFUSAL):
        run(job, source="memory://equal_experts")


@pytest.fixture
def sliced(tmp_path: Path) -> Path:
    """Two ranks, each with different rows of `w`."""
    for rank in range(2):
        (tmp_path / f"src/rank_{rank}").mkdir(parents=True)
        rows = np.arange(16, dtype=np.float32).reshape(4, 4) + 100 * rank
        (tmp_path / f"src/rank_{rank}/net.ckpt").write_bytes(
            checkpoint_bytes(("w", "Float32", (4, 4), rows.tobytes()), ("v", "Float32", (4, 4), rows.tobytes()))
        )
    stage = StageStrategy(0, {"w": ROWS, "v": ROWS}, (OperatorStrategy("op", 0, ((1, 1),)),))
    write_strategy(Strategy((stage,), "test"), str(tmp_path / "source.ckpt"))
    return tmp_path


def test_slices_said_to_be_whole_tensors_are_refused(sliced: Path) -> None:
    with pytest.raises(
        StrategyError,
        match=r"integrated_save='yes' says that every rank holds whole tensors, but they differ between ranks:\n"
        r"  'w' differs on rank_0, rank_1\n  'v' differs on rank_0, rank_1\nPass integrated_save='no'",
    ):
        run(sliced, target_strategy="", integrated_save="yes")
    assert not list(sliced.glob("out*"))


def test_a_fingerprint_of_slices_said_to_be_whole_names_its_own_options(sliced: Path) -> None:
    source = {"source": str(sliced / "src"), "source_strategy": str(sliced / "source.ckpt")}
    with pytest.raises(StrategyError, match=r"integrated_save='no' if ranks hold .* \S+, or trust_strategy=True to"):
        fingerprint_checkpoint(build_options(FingerprintRequest, **source, integrated_save="yes"))


def test_slices_are_refused_where_another_parameters_shape_shows_whole_tensors(sliced: Path) -> None:
    layouts = {"w": replace(ROWS, tensor_shape=(4, 4)), "v": replace(ROWS)}
    target = Strategy((StageStrategy(0, layouts, (OperatorStrategy("op", 0, ((1, 1),)),)),), "test")
    write_strategy(target, str(sliced / "target.json"))
    with pytest.raises(StrategyError, match=r"the shape of a parameter shows .*:\n  'w' differs on rank_0, rank_1"):
        run(sliced, target_strategy=str(sliced / "target.json"))


def test_one_rank_is_taken_at_its_word_if_the_strategy_is_trusted(sliced: Path) -> None:
    report = run(sliced, target_strategy="", integrated_save="yes", trust_strategy=True)
    assert any("'w' differs on rank_0, rank_1" in note for note in report.notes)
    assert read_tree(sliced / "out")[0]["w"][1] == (4, 4)


def test_ranks_saved_whole_by_a_job_are_converted_when_the_request_says_so(tmp_path: Path) -> None:
    conversion = case(7009)
    for rank in range(4):
        (tmp_path / f"src/rank_{rank}").mkdir(parents=True)
        shutil.copy(conversion.directory / "full/rank_0/full_0.ckpt", tmp_path / f"src/rank_{rank}/m.ckpt")
    request = conversion.request(tmp_path / "out", source=str(tmp_path / "src"))
    with pytest.raises(StrategyError, match="integrated_save='yes'"):
        convert(request)
    report = convert(request.model_copy(update={"integrated_save": IntegratedSave.YES, "check_replicas": True}))
    assert any("integrated_save" in note for note in report.notes)
    assert read_tree(tmp_path / "out") == conversion.want


def test_a_checkpoint_that_reshard_made_holds_slices(job: Path) -> None:
    run(job, integrated_save="no")
    report = run(job, source=str(job / "out"), target=str(job / "again"), source_strategy="", target_strategy="")
    assert report.committed
    assert read_tree(job / "again")[0]["experts"][1] == (8, 32, 16)
    assert compare_checkpoints(build_comparison(a=str(job / "out"), b=str(job / "again"))).same


# ---- relatives of a conversion ----


def test_a_comparison_asks_for_each_side(job: Path) -> None:
    run(job, integrated_save="no")
    sides = {"a": str(job / "src"), "b": str(job / "out")}
    named = {"strategy_a": str(job / "source.ckpt"), "strategy_b": str(job / "target.ckpt")}
    with pytest.raises(StrategyError, match=r"Pass integrated_save_a='yes' .* or integrated_save_a='no'"):
        compare_checkpoints(build_comparison(**sides, **named))
    with pytest.raises(StrategyError, match=r"Pass integrated_save_b='yes'"):
        compare_checkpoints(build_comparison(**sides, **named, integrated_save_a="no"))
    assert compare_checkpoints(build_comparison(**sides, **named, integrated_save_a="no", integrated_save_b="no")).same
    differing = build_comparison(**sides, **named, integrated_save_a="yes", integrated_save_b="no")
    assert not compare_checkpoints(differing).same


def test_a_fingerprint_of_equal_slices_needs_a_decision(job: Path) -> None:
    source = {"source": str(job / "src"), "source_strategy": str(job / "source.ckpt")}
    with pytest.raises(StrategyError, match=REFUSAL):
        fingerprint_checkpoint(build_options(FingerprintRequest, **source))
    for asked, shape in (("yes", (2, 32, 16)), ("no", (8, 32, 16))):
        document = fingerprint_checkpoint(build_options(FingerprintRequest, **source, integrated_save=asked))
        assert {each.name: each.shape for each in document.parameters} == {"experts": shape, "attn": (32, 32)}


def test_recovery_of_equal_slices_needs_a_decision(job: Path) -> None:
    shutil.rmtree(job / "src/rank_3")
    source = {"source": str(job / "src"), "source_strategy": str(job / "source.ckpt")}
    with pytest.raises(StrategyError, match="integrated_save='yes'"):
        assess_recovery(build_options(SourceRequest, **source))
    assert assess_recovery(build_options(SourceRequest, **source, integrated_save="yes")).recoverable
    assert not assess_recovery(build_options(SourceRequest, **source, integrated_save="no")).recoverable


def test_shapes_for_a_made_strategy_need_a_decision(job: Path) -> None:
    wish = TargetJob(data_parallel=1, model_parallel=8, pipeline=1)

    def make(asked: IntegratedSave) -> object:
        out = str(job / f"{asked}.ckpt")
        return make_strategy_file(
            str(job / "source.ckpt"), out, wish, checkpoint=str(job / "src"), integrated_save=asked
        )

    with pytest.raises(StrategyError, match=REFUSAL):
        make(IntegratedSave.AUTO)
    with pytest.raises(InputError, match=r"experts"):
        make(IntegratedSave.YES)  # 2 experts are too few for 8 devices
    assert make(IntegratedSave.NO)


def examined(job: Path, asked: IntegratedSave) -> Diagnosis:
    return diagnose(str(job / "src"), str(job / "source.ckpt"), integrated_save=asked)


def test_doctor_shows_that_nothing_decides(job: Path) -> None:
    diagnosis = examined(job, IntegratedSave.AUTO)
    assert not diagnosis.fits
    [problem] = [each for each in diagnosis.findings if each.severity == "problem"]
    assert "'experts' is the same on rank_0, rank_1" in problem.found
    assert "integrated_save='yes'" in problem.advice
    assert examined(job, IntegratedSave.NO).fits
    assert examined(job, IntegratedSave.YES).fits


def test_doctor_takes_what_reshard_made_for_slices(job: Path) -> None:
    run(job, integrated_save="no")
    diagnosis = diagnose(str(job / "out"))
    assert diagnosis.fits
    assert "experts" in dict(diagnosis.facts)["shapes"]


def test_doctor_finds_slices_that_are_said_to_be_whole(sliced: Path) -> None:
    diagnosis = examined(sliced, IntegratedSave.YES)
    assert any("'w' differs on rank_0, rank_1" in each.found for each in diagnosis.findings)
    assert not diagnosis.fits


# ---- the plan's file ----


@pytest.mark.parametrize("asked", list(IntegratedSave))
def test_the_request_is_kept_with_the_plan(job: Path, asked: IntegratedSave) -> None:
    if asked is IntegratedSave.AUTO:
        run(job, trust_strategy=True)
    else:
        run(job, integrated_save=str(asked))
    inputs = rebuild_plan(str(job / "out/.reshard/plan.json.gz")).inputs
    assert inputs.integrated_save is asked


def test_plans_of_earlier_versions_have_one_field_less(job: Path) -> None:
    run(job, integrated_save="yes")
    path = job / "out/.reshard/plan.json.gz"
    document = json.loads(gzip.decompress(path.read_bytes()))
    del document["integrated_save"]
    for recorded, meant in ((True, IntegratedSave.YES), (False, IntegratedSave.AUTO)):
        path.write_bytes(gzip.compress(json.dumps(document | {"saved_whole": recorded}).encode()))
        assert rebuild_plan(str(path)).inputs.integrated_save is meant


def test_a_plan_of_what_is_undecided_is_refused(job: Path) -> None:
    with pytest.raises(StrategyError, match=REFUSAL):
        make_plan(
            build_request(
                source=str(job / "src"), target=str(job / "out"), source_strategy=str(job / "source.ckpt"), ranks="0"
            )
        )
