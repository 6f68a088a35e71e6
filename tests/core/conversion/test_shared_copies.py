"""Parameters that several parts have: taken from one of them, unless their copies differ."""

from pathlib import Path

import numpy as np
import pytest

from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.conversion.convert import convert
from reshard.core.errors import InputError
from reshard.core.layouts.manifests import read_manifest
from reshard.core.request.conversion import build_request
from reshard.core.storage.urls import parse_url
from reshard.core.strategy.files import write_strategy
from reshard.core.strategy.model import OperatorStrategy, StageStrategy, Strategy
from reshard.core.tensor.layout import ParameterLayout
from reshard.core.verification.published import verify_target
from tests.support.checkpoints import read_ckpt
from tests.support.ckpt_writer import checkpoint_bytes
from tests.support.joining import join_parts
from tests.support.loading import load_rank
from tests.support.notes import Notes
from tests.support.plans import make_strategy

SHARED = {"tied": ParameterLayout((2,), ((0,), ()), nested=True), "norm": ParameterLayout((2,), ((),), nested=True)}
OWN = ParameterLayout((2,), ((0,),), nested=True)
TARGET_LAYOUTS = {
    "tied": ParameterLayout((4,), ((), (0,)), nested=True),
    "norm": ParameterLayout((4,), ((),), nested=True),
    "a": ParameterLayout((4,), ((0,),), nested=True),
    "b": ParameterLayout((4,), ((),), nested=True),
}
STEP = "global_step"
TIED = [bytes(range(start, start + 8)) for start in (0, 8)]


class Job:
    """Two stages of two ranks each, which share `tied` and `norm`; of their own they have `a` and `b`.

    No strategy knows the step, which all files have if there is any training state in them.
    """

    def __init__(self, directory: Path, *, state: bool = True) -> None:
        self.directory = directory
        self.state = state
        self.target = str(directory / "target.ckpt")
        write_strategy(make_strategy(TARGET_LAYOUTS), self.target)
        for stage in (0, 1):
            layouts = SHARED | {"ab"[stage]: OWN}
            operators = (OperatorStrategy("op", stage, ((2, 1),)),)
            strategy = Strategy((StageStrategy(stage, layouts, operators),), "own", merged=False)
            write_strategy(strategy, self.strategy(stage))
            for rank in (0, 1):
                self.write(stage, rank, TIED[rank])

    def strategy(self, stage: int) -> str:
        return str(self.directory / f"strategies/{stage}.ckpt")

    def write(self, stage: int, rank: int, tied: bytes) -> None:
        messages = [("tied", "Int8", [2, 4], tied), ("norm", "Int8", [4], b"norm")]
        messages += [("ab"[stage], "Int8", [4], b"own" + bytes([rank]))]
        messages += [(STEP, "Int32", [1], bytes(4))] if self.state else []
        file = self.directory / f"src/rank_{2 * stage + rank}/net-1_2.ckpt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(checkpoint_bytes(*messages))

    def convert(self, name: str, source_strategy: str, **options: object) -> str:
        target = str(self.directory / name)
        paths = {"source": str(self.directory / "src"), "target": target, "target_strategy": self.target}
        convert(build_request(**{**paths, "source_strategy": source_strategy, **options}))
        return target

    def parts(self, **options: object) -> list[str]:
        return [self.convert(f"part{stage}", self.strategy(stage), **options) for stage in (0, 1)]

    def at_once(self, **options: object) -> dict[str, object]:
        return self.loaded(self.convert("at_once", str(self.directory / "strategies"), **options))

    def loaded(self, directory: str) -> dict[str, object]:
        """Whole tensors, read from the files of a checkpoint."""
        return {name: np.asarray(value).tolist() for name, value in load_rank(directory, self.target)}


@pytest.mark.parametrize(
    "options", [{}, {"format": "safetensors", "write_crc": True}, {"write_crc": True}, {"remove_redundancy": True}]
)
@pytest.mark.parametrize("choice", ["fail", "1"])
def test_shared_parameters_that_are_alike_are_joined(tmp_path: Path, options: dict[str, object], choice: str) -> None:
    job, target = Job(tmp_path), str(tmp_path / "joined")
    report = join_parts(job.parts(**options), target, shared_parameters=choice)
    assert (report.parameters, report.ranks) == (4, 4)
    assert report.size_bytes == sum(path.stat().st_size for path in Path(target).glob("rank_*/*"))
    assert not verify_target(target, VerifyLevel.CHECKSUM).problems
    assert job.loaded(target) == job.at_once(**options)
    if not options:  # MindSpore would load the last of several
        taken, other = (1, 0) if choice == "1" else (0, 1)
        assert read_ckpt(Path(target, f"rank_3/checkpoint_3_part{taken}.ckpt")).keys() == {*SHARED, "ab"[taken], STEP}
        assert read_ckpt(Path(target, f"rank_3/checkpoint_3_part{other}.ckpt")).keys() == {"ab"[other], STEP}


def test_shared_parameters_that_differ_are_named(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.write(1, 1, TIED[1][::-1])
    parts = job.parts()
    with pytest.raises(InputError) as caught:
        join_parts(parts, str(tmp_path / "joined"))
    assert str(caught.value) == (
        f"{parts[0]}, {parts[1]}: have different copies of parameters that their stages share: tied (stage 0's is "
        "used; it differs from that of stage 1). Name the stage whose copies are right: shared_parameters='STAGE', "
        "or first"
    )
    assert not (tmp_path / "joined").exists()
    for choice, half in (("first", TIED[1]), ("0", TIED[1]), ("1", TIED[1][::-1])):
        target, notes = str(tmp_path / choice), Notes()
        join_parts(parts, target, notes, shared_parameters=choice)
        assert not verify_target(target, VerifyLevel.CHECKSUM).problems
        assert job.loaded(target)["tied"] == np.frombuffer(TIED[0] + half, np.int8).reshape(4, 4).tolist()
        [note] = [each for each in notes.notes if "stages hold DIFFERENT copies of tied parameters: ti" in each]
        manifest = read_manifest(parse_url(target))
        assert manifest is not None
        assert manifest.notes[1] == note


def test_joined_again_with_another_choice(tmp_path: Path) -> None:
    parts, target = Job(tmp_path).parts(), str(tmp_path / "joined")
    join_parts(parts, target)
    join_parts(parts, target, shared_parameters="first")  # they are alike: that is the same
    with pytest.raises(InputError, match="joined: is not empty"):
        join_parts(parts, target, shared_parameters="1")


def test_a_part_that_has_nothing_else_for_a_rank(tmp_path: Path) -> None:
    job, target = Job(tmp_path, state=False), str(tmp_path / "joined")
    parts = job.parts(remove_redundancy=True)  # of what it shares, each rank has something, of its own not all have
    with pytest.raises(InputError, match=r"part1: has nothing for rank_. but what .*shared_parameters='1',"):
        join_parts(parts, target)
    join_parts(parts, target, shared_parameters="1")
    assert not verify_target(target, VerifyLevel.CHECKSUM).problems
    assert job.loaded(target) == job.at_once()


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ("2", r"the copies of stage 2 are to be taken .* but there are the parts of stages 0, 1"),
        ("9" * 5000, "must be first, fail, or the number of a pipeline stage"),
        ("last", "shared_parameters 'last': must be first, fail, or the number of a pipeline stage"),
    ],
)
def test_choices_that_are_none(tmp_path: Path, choice: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        join_parts(Job(tmp_path).parts(), str(tmp_path / "joined"), shared_parameters=choice)
