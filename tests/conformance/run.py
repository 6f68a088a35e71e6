"""`make conformance`: random conversions, judged by MindSpore, MindFormers, PyTorch, DeepSpeed and Megatron-Core."""

import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import click

from tests.conformance.api_harness import all_cases, check_api_case, check_signatures
from tests.conformance.beside_mindspore import check_beside_mindspore
from tests.conformance.casts import check_casts
from tests.conformance.check import Verdict, check_case
from tests.conformance.checkpoint2 import check_checkpoint2
from tests.conformance.crc_and_information import check_crc_and_information
from tests.conformance.dcp import PYTHON as TORCH_PYTHON
from tests.conformance.dcp import check_dcp
from tests.conformance.encryption import check_encryption
from tests.conformance.fsdp import check_fsdp
from tests.conformance.hugging_face import check_hugging_face
from tests.conformance.made_strategies import check_made_strategies
from tests.conformance.megatron_core import check_megatron
from tests.conformance.mindspore_process import (
    MEGATRON_PYTHON,
    MINDFORMERS_PYTHON,
    PYTHON,
    SIGNING_PYTHON,
    Judge,
    RefusalError,
)
from tests.conformance.redundancy_and_parts import check_redundancy_and_parts
from tests.conformance.removed_redundancy import check_removed_redundancy
from tests.conformance.saving_trainings import check_saving_trainings
from tests.conformance.signing import check_signing
from tests.conformance.state_dicts import check_state_dicts
from tests.conformance.unified import check_unified
from tests.conformance.universal import check_universal
from tests.conformance.zero import check_zero

_PROGRESS_EVERY = 20
_LINES_OF_A_FAILURE = 6
_FURTHER_CHECKS = (
    ("encrypted files", check_encryption),
    ("CRC and information", check_crc_and_information),
    ("redundancy and parts", check_redundancy_and_parts),
    ("removed redundancy", check_removed_redundancy),
    ("unified checkpoints", check_unified),
    ("casts", check_casts),
    ("made strategies", check_made_strategies),
    ("reshard beside MindSpore", check_beside_mindspore),
    ("trainings that save", check_saving_trainings),
)
_RANDOM_CHECKS = (
    ("Checkpoint 2.0", check_checkpoint2),
    ("DCP", check_dcp),
    ("Hugging Face", check_hugging_face),
    ("Megatron", check_megatron),
    ("FSDP", check_fsdp),
    ("ZeRO", check_zero),
    ("signatures", check_signing),
    ("state dicts", check_state_dicts),
    ("universal checkpoints of DeepSpeed", check_universal),
)
# MindSpore refuses about one in eight: of a few cases it may be most, of more it is not
_CASES_THAT_TELL = 10


@dataclass
class Tally:
    """What came of the cases so far."""

    equal: int = 0
    judged: int = 0
    judged_twice: int = 0
    failed: list[int] = field(default_factory=list)
    refusals: Counter[str] = field(default_factory=Counter)
    direct_refusals: Counter[str] = field(default_factory=Counter)

    def add(self, verdict: Verdict) -> None:
        """Counts one more."""
        if verdict.differences:
            self.failed.append(verdict.case.seed)
        else:
            self.equal += 1
        self.judged += not verdict.refusals
        self.judged_twice += not verdict.direct_refusals
        self.refusals.update(set(verdict.refusals))
        self.direct_refusals.update(set(verdict.direct_refusals))

    @property
    def count(self) -> int:
        return self.equal + len(self.failed)


@click.command()
@click.option("--cases", default=200, show_default=True, type=click.IntRange(min=1), help="How many.")
@click.option("--seed", type=int, help="Of the first case; the others' follow. Random if not given.")
@click.option("--only", type=int, help="Just the case of this seed.")
@click.option("--api", help="Just the calls of MindSpore's API whose names contain this.")
def main(cases: int, seed: int | None, only: int | None, api: str | None) -> None:
    """Converts random checkpoints with reshard and compares every byte with what MindSpore makes of them.

    Before that the functions of MindSpore's API that reshard offers are called on both sides, and encrypted files go
    from one to the other. MindFormers, PyTorch, DeepSpeed and Megatron-Core save random checkpoints, each of its own
    form; transformers makes random models, and loads them after they were sharded under MindFormers' or Megatron's
    names.
    """
    judges = (
        ("MindSpore", PYTHON),
        ("MindFormers", MINDFORMERS_PYTHON),
        ("PyTorch", TORCH_PYTHON),
        ("Megatron-Core", MEGATRON_PYTHON),
        ("model-signing", SIGNING_PYTHON),
    )
    for judge, python in judges:
        if not python.exists():
            raise click.ClickException(f"{judge} is not installed in {python.parents[1]}: run `make conformance`")
    if only is not None:
        cases, seed = 1, only
    first = random.randrange(10**9) if seed is None else seed
    directory = Path(tempfile.mkdtemp(prefix="reshard-conformance-"))
    if api is None:
        click.echo(f"conformance: {cases} cases, SEED={first}")
    unlike = 0 if only is not None else _check_api(api or "", directory)
    if only is None and api is None:
        unlike += _check_random(first, directory)
    if api is not None:
        if not unlike:
            shutil.rmtree(directory)
        sys.exit(1 if unlike else 0)
    started = time.monotonic()
    tally = _check_all(range(first, first + cases), directory)
    _summarize(tally, time.monotonic() - started)
    too_few = tally.count >= _CASES_THAT_TELL and tally.judged * 2 < tally.count
    if too_few:
        click.echo(
            "FAILED: MindSpore judged less than half of the cases: something is wrong with it, or with the check"
        )
    if tally.failed:
        seeds = " ".join(map(str, tally.failed))
        click.echo(f"FAILED: {len(tally.failed)} differ; their files are kept in {directory}. Each again: ONLY={seeds}")
    elif not unlike:
        shutil.rmtree(directory)
    sys.exit(1 if too_few or tally.failed or unlike else 0)


def _check_api(only: str, directory: Path) -> int:
    """How many calls of MindSpore's API do not come to what they should."""
    started = time.monotonic()
    cases, unlike = all_cases(only), []
    with Judge(directory / "mindspore_api.log") as judge:
        for line in [] if only else check_signatures(judge):
            unlike.append("signatures")
            click.echo(f"API differs: {line}")
        for number, case in enumerate(cases):
            try:
                lines = check_api_case(case, judge, directory / f"api_{number}")
            except RefusalError as refusal:
                lines = [f"MindSpore: {refusal}"]
            if lines:
                unlike.append(case.name)
                click.echo(f"API differs: {case.name}")
                for line in lines[:_LINES_OF_A_FAILURE]:
                    click.echo(f"    {line}")
        for name, check in () if only else _FURTHER_CHECKS:
            for line in check(judge, directory / name.replace(" ", "_")):
                unlike.append(name)
                click.echo(f"{name}: {line}")
    click.echo(f"{len(cases)} cases of MindSpore's API in {time.monotonic() - started:.0f} s: {len(unlike)} differ")
    if unlike:
        again = next((case.name for case in cases if case.name in unlike), "")
        click.echo(f"FAILED: their files are kept in {directory}. Each again: make conformance API='{again}'")
    return len(unlike)


def _check_random(first: int, directory: Path) -> int:
    """How many things are not as they should be in checks that draw cases of their own."""
    problems = 0
    for name, check in _RANDOM_CHECKS:
        started = time.monotonic()
        lines = check(first, directory / name.replace(" ", "_"))
        for line in lines:
            click.echo(f"{name}: {line}")
        click.echo(f"{name}, random cases, in {time.monotonic() - started:.0f} s: {len(lines)} problems")
        problems += len(lines)
    return problems


def _check_all(seeds: Iterable[int], directory: Path) -> Tally:
    tally = Tally()
    with Judge(directory / "mindspore.log") as judge:
        for seed in seeds:
            verdict = check_case(seed, judge, directory / f"case_{seed}")
            tally.add(verdict)
            if verdict.differences:
                click.echo(f"case {seed} differs ({verdict.case.describe()}); again: make conformance ONLY={seed}")
                for line in verdict.differences[:_LINES_OF_A_FAILURE]:
                    click.echo(f"    {line}")
                if len(verdict.differences) > _LINES_OF_A_FAILURE:
                    click.echo(f"    … and {len(verdict.differences) - _LINES_OF_A_FAILURE} more")
            if tally.count % _PROGRESS_EVERY == 0:
                click.echo(f"{tally.count:5} cases, {tally.judged} judged by MindSpore, {len(tally.failed)} differ")
    return tally


def _summarize(tally: Tally, seconds: float) -> None:
    click.echo(f"\n{tally.count:5} cases in {seconds:.0f} s")
    click.echo(f"{tally.equal:5} equal")
    click.echo(f"{tally.judged:5} cut by MindSpore; in the others the reference alone says what is right. It")
    _list_reasons(tally.refusals)
    click.echo(f"{tally.judged_twice:5} converted alike by MindSpore itself, from source to target. In the others it")
    _list_reasons(tally.direct_refusals)


def _list_reasons(reasons: Counter[str]) -> None:
    for reason, count in reasons.most_common():
        click.echo(f"      {count:5}  {reason}")


if __name__ == "__main__":
    main()
