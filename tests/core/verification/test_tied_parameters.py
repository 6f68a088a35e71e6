"""Parameters that several source stages hold: compared whatever their cuts, and whose copy is taken."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import fsspec
import numpy as np
import pytest

from reshard.core.conversion.convert import convert
from reshard.core.conversion.planning import make_plan
from reshard.core.conversion.report import ConversionReport
from reshard.core.errors import PlanError
from reshard.core.records.plan_file import dump_plan, load_plan, plan_identity
from reshard.core.request.conversion import ConversionRequest, build_request
from reshard.core.storage.urls import parse_url
from reshard.core.storage.writing import write_bytes
from reshard.core.strategy.files import write_strategy
from reshard.core.strategy.model import StageStrategy, Strategy
from reshard.core.tensor.layout import ParameterLayout
from reshard.core.transfer import whole_reader
from reshard.core.verification.tied_parameters import differing_parameters
from tests.support.checkpoints import read_tree
from tests.support.ckpt_writer import checkpoint_bytes

ROWS = ParameterLayout((2,), ((0,), ()), nested=True)
COLUMNS = ParameterLayout((2,), ((), (0,)), nested=True)
WHOLE = ParameterLayout((2,), ((), ()), nested=True)
EMBEDDING = np.arange(6 * 8, dtype=np.int32).reshape(6, 8)


def cut(whole: np.ndarray, layout: ParameterLayout, rank: int) -> np.ndarray:
    if layout is WHOLE:
        return whole
    return np.split(whole, 2, axis=0 if layout is ROWS else 1)[rank]


def stages_checkpoint(path: Path, stages: Sequence[Mapping[str, tuple[np.ndarray, ParameterLayout]]]) -> None:
    """A checkpoint of stages of two ranks each at `path`/source, and its strategy at `path`/source.ckpt."""
    for number, stage in enumerate(stages):
        for rank in range(2):
            shards = {name: cut(whole, layout, rank) for name, (whole, layout) in stage.items()}
            folder = path / f"source/rank_{2 * number + rank}"
            folder.mkdir(parents=True)
            entries = [(name, "Int32", shard.shape, shard.tobytes()) for name, shard in shards.items()]
            (folder / "net.ckpt").write_bytes(checkpoint_bytes(*entries))
    layouts = [{name: layout for name, (_, layout) in stage.items()} for stage in stages]
    strategy = Strategy(tuple(StageStrategy(number, each) for number, each in enumerate(layouts)), "test")
    write_strategy(strategy, str(path / "source.ckpt"))


def request(path: Path, **options: object) -> ConversionRequest:
    return build_request(
        source=str(path / "source"),
        target=str(path / "out"),
        source_strategy=str(path / "source.ckpt"),
        **options,
    )


def converted(path: Path, **options: object) -> tuple[np.ndarray, ConversionReport]:
    report = convert(request(path, **options))
    _, shape, content = read_tree(path / "out")[0]["embedding"]
    return np.frombuffer(content, np.int32).reshape(shape), report


def changed(row: int, column: int) -> np.ndarray:
    other = EMBEDDING.copy()
    other[row, column] = -1
    return other


@pytest.mark.parametrize("second", [ROWS, COLUMNS, WHOLE])
@pytest.mark.parametrize("block_bytes", [4, 40, 2**20])
def test_copies_are_compared_whatever_their_cuts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, second: ParameterLayout, block_bytes: int
) -> None:
    monkeypatch.setattr(whole_reader, "BLOCK_BYTES", block_bytes)
    stages_checkpoint(tmp_path, [{"embedding": (EMBEDDING, ROWS)}, {"embedding": (EMBEDDING, second)}])
    assert not list(differing_parameters(make_plan(request(tmp_path))))
    path = tmp_path / "other"
    path.mkdir()
    stages_checkpoint(path, [{"embedding": (EMBEDDING, ROWS)}, {"embedding": (changed(5, 7), second)}])
    plan = make_plan(request(path))
    assert [(each.name, each.used, each.others) for each in differing_parameters(plan)] == [("embedding", 0, (1,))]


class TestWhoseIsTaken:
    @pytest.fixture
    def case(self, tmp_path: Path) -> Path:
        stages_checkpoint(
            tmp_path,
            [
                {"embedding": (EMBEDDING, ROWS), "a": (EMBEDDING, WHOLE)},
                {"b": (EMBEDDING, WHOLE)},
                {"embedding": (changed(0, 0), COLUMNS), "a": (EMBEDDING, ROWS)},
                {"embedding": (EMBEDDING, COLUMNS)},
            ],
        )
        return tmp_path

    def test_the_first_stages(self, case: Path) -> None:
        found, report = converted(case)
        assert (found == EMBEDDING).all()
        [note] = [note for note in report.notes if "DIFFERENT" in note]
        assert note == (
            "pipeline stages hold DIFFERENT copies of tied parameters: "
            "embedding (stage 0's is used; it differs from that of stage 2)"
        )

    def test_another_stages(self, case: Path) -> None:
        found, report = converted(case, shared_parameters="2")
        assert (found == changed(0, 0)).all()
        assert any(
            "embedding (stage 2's is used; it differs from that of stages 0, 3)" in note for note in report.notes
        )

    def test_the_first_stages_where_that_stage_has_none(self, case: Path) -> None:
        found, _ = converted(case, shared_parameters="1")
        assert (found == EMBEDDING).all()

    def test_neither(self, case: Path) -> None:
        with pytest.raises(PlanError, match=r"different copies of tied parameters: embedding \(stage 0's"):
            converted(case, shared_parameters="fail")
        assert not (case / "out").exists()

    def test_a_stage_that_is_not_there(self, case: Path) -> None:
        with pytest.raises(PlanError, match=r"copies of stage 4 are to be taken .* but the source has stages 0 to 3"):
            converted(case, shared_parameters="4")

    def test_who_reads_the_plan_compares_nothing(self, case: Path) -> None:
        plan = make_plan(request(case, shared_parameters="2"))
        write_bytes(parse_url(str(case / "plan")), dump_plan(plan))
        for rank in range(8):
            (case / f"source/rank_{rank}/net.ckpt").unlink()
        again = load_plan(str(case / "plan"), plan_identity(plan))
        assert again.inputs.catalog.notes == plan.inputs.catalog.notes
        assert again.rank_plan(0) == plan.rank_plan(0)


def test_copies_that_are_alike_please_everybody(tmp_path: Path) -> None:
    stages_checkpoint(tmp_path, [{"embedding": (EMBEDDING, ROWS)}, {"embedding": (EMBEDDING, COLUMNS)}])
    found, report = converted(tmp_path, shared_parameters="fail")
    assert (found == EMBEDDING).all()
    assert not any("share" in note for note in report.notes)


def test_remote_copies_are_compared_too(tmp_path: Path) -> None:
    stages_checkpoint(tmp_path, [{"embedding": (EMBEDDING, ROWS)}, {"embedding": (changed(3, 3), COLUMNS)}])
    memory = fsspec.filesystem("memory")
    memory.put(str(tmp_path / "source"), "/shared-parameters", recursive=True)
    try:
        remote = request(tmp_path).model_copy(update={"source": "memory://shared-parameters"})
        assert [each.others for each in differing_parameters(make_plan(remote))] == [(1,)]
    finally:
        memory.rm("/shared-parameters", recursive=True)
