"""Diagnoses of a small checkpoint in `src` by one strategy after another."""

from functools import partial
from pathlib import Path

from msgspec.structs import replace

from reshard.core.request.source import DiagnosisRequest
from reshard.core.source import diagnosis
from reshard.core.source.diagnosis_report import Diagnosis
from reshard.core.source.findings import Finding
from reshard.core.strategy.files import write_strategy
from reshard.core.strategy.model import Strategy
from reshard.core.tensor.layout import ParameterLayout
from tests.support.two_stages import COLUMNS, NORM, ROWS, STAGES, Layouts, strategy, whole

SLOWER_NORM = ParameterLayout((2, 2), ((1,),))


CUT_NORM = ParameterLayout((2, 2), ((0,),))


LAYERS = {f"l.{n}.{name}": lay for n in range(4) for name, lay in (("wq", ROWS), ("wo", COLUMNS), ("norm", NORM))}


def diagnose(source: str, source_strategy: str = "", **options: object) -> Diagnosis:
    """The diagnosis of a source."""
    given = {"source": source, "source_strategy": source_strategy, **options}
    return diagnosis.diagnose(DiagnosisRequest.model_validate(given))


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


def shaped(stages: Layouts) -> list[dict[str, ParameterLayout]]:
    """The same layouts, with the shapes that JSON tells."""
    return [{name: replace(layout, tensor_shape=whole(name).shape) for name, layout in each.items()} for each in stages]


def sharded(stages: Layouts) -> list[dict[str, ParameterLayout]]:
    shard = partial(replace, optimizer_shard_step=2, optimizer_shard_size=2)
    return [{name: lay if lay is NORM else shard(lay) for name, lay in each.items()} for each in stages]
