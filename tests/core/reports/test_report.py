"""Reports of all functions: their text, document, HTML and `repr()`."""

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

import reshard
from reshard.cli.main import run
from reshard.cli.spelling import flag
from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.conversion.latest import LatestOutcome
from reshard.core.conversion.report import PlannedRank
from reshard.core.reports.report import Report
from reshard.core.target.leftovers import Leftover, LeftoverKind
from reshard.core.text.options import spelled_by
from reshard.core.verification.fingerprint_file import ParameterFingerprint
from tests.support.checkpoints import case

CASE = case(7010)
SOURCE = CASE.directory / "src"
FROM, TO = CASE.directory / "src_strategy.ckpt", CASE.directory / "dst_strategy.ckpt"
STRATEGIES = ("--source-strategy", FROM, "--target-strategy", TO)
HOSTILE = "<script>alert('x')</script>\x1b[2J\n‮" + "very_long_name." * 80
_MOMENT = re.compile(r"(?<!\d)\d+\.\d s|\d+(\.\d)? ([KMG]i)?B/s|[\d.]+ [KMGT]iB free")


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("converted") / "out"
    reshard.convert(SOURCE, target, source_strategy=FROM, target_strategy=TO)
    reshard.convert(SOURCE, target.parent / "other", source_strategy=FROM, exclude=["*weight_1"], cast=["*=bfloat16"])
    return target


def printed(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    capsys.readouterr()
    assert run([str(argument) for argument in arguments]) in (0, 1)
    return capsys.readouterr().out


def lasting(text: str) -> list[str]:
    """The lines of a text without what another run measures anew; of fixed width otherwise."""
    return [" ".join(_MOMENT.sub("T", line).split()) for line in text.rstrip("\n").split("\n")]


Pair = tuple[Callable[[Path], Report], Callable[[Path], tuple[object, ...]]]
PAIRS: dict[str, Pair] = {
    "plan": (
        lambda _: reshard.plan(SOURCE, source_strategy=FROM, target_strategy=TO, ranks="0-1"),
        lambda _: ("plan", SOURCE, *STRATEGIES, "--ranks", "0-1"),
    ),
    "verify": (lambda out: reshard.verify(out), lambda out: ("verify", out)),
    "diff": (
        lambda out: reshard.diff(SOURCE, out, strategy_a=FROM),
        lambda out: ("diff", SOURCE, out, "--strategy-a", FROM),
    ),
    "differences": (
        lambda out: reshard.diff(out, out.parent / "other"),
        lambda out: ("diff", out, out.parent / "other"),
    ),
    "fingerprint": (lambda out: reshard.fingerprint(out), lambda out: ("fingerprint", out)),
    "doctor": (
        lambda out: reshard.doctor(SOURCE, strategy=FROM),
        lambda _: ("doctor", SOURCE, "--source-strategy", FROM),
    ),
    "recover": (
        lambda _: reshard.recover(SOURCE, strategy=FROM, fault_ranks="0"),
        lambda _: ("recover", SOURCE, "--source-strategy", FROM, "--fault-ranks", "0"),
    ),
    "clean": (lambda out: reshard.clean(out), lambda out: ("clean", out)),
    "history": (lambda out: reshard.history(out.parent), lambda out: ("history", out.parent)),
    "presets": (lambda _: reshard.presets(), lambda _: ("presets",)),
    "merge": (
        lambda out: reshard.merge_strategy(FROM, out.parent / "merged.json", overwrite=True),
        lambda out: ("merge-strategy", FROM, out.parent / "merged.json", "--overwrite"),
    ),
    "make": (
        lambda out: reshard.make_strategy(
            out.parent / "made.json", like=FROM, data_parallel=1, model_parallel=4, overwrite=True
        ),
        lambda out: ("make-strategy", out.parent / "made.json", "--like", FROM, "-D", 1, "-M", 4, "--overwrite"),
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_the_text_is_what_the_command_prints(name: str, converted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make, command = PAIRS[name]
    with spelled_by(flag):
        text = str(make(converted)).replace("to_dict()", "--json")
    shown = lasting(printed(capsys, *command(converted)))
    assert lasting(text) == [line.replace(" (plan --rate)", "") for line in shown]


@pytest.mark.parametrize("name", PAIRS)
def test_the_document_is_the_commands_json(name: str, converted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make, command = PAIRS[name]
    with spelled_by(flag):
        document = make(converted).to_dict()
    shown = json.loads(printed(capsys, *command(converted), "--json"))
    for each in (document, shown):
        each.pop("seconds", None)
        each.pop("free_bytes", None)
    assert document == shown


def test_a_conversion_says_what_the_command_says_but_for_its_engine(
    converted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = reshard.convert(SOURCE, converted, source_strategy=FROM, target_strategy=TO)
    shown = lasting(printed(capsys, "convert", SOURCE, converted, *STRATEGIES, "--engine", "direct"))
    assert lasting(str(report)) == [line for line in shown if not line.startswith("engine")]
    document = json.loads(printed(capsys, "convert", SOURCE, converted, *STRATEGIES, "--engine", "direct", "--json"))
    assert report.to_dict().keys() == document.keys() - {"engine"}


def test_a_plan_read_from_its_document_says_the_same() -> None:
    plan = reshard.plan(SOURCE, source_strategy=FROM, target_strategy=TO)
    assert str(reshard.PlanSummary.model_validate(plan.to_dict())) == str(plan)


def test_a_scheduled_conversion_tells_a_dry_run_from_a_real_one() -> None:
    done = reshard.LatestReport(
        outcome=LatestOutcome.NOTHING_NEW, source="/s", step="1_1", target="/t/1_1", removed=("1_0",)
    )
    dry = done.model_copy(update={"dry_run": True})
    assert re.search(r"^removed +1_0$", str(done), re.MULTILINE)
    assert re.search(r"^would be removed +1_0$", str(dry), re.MULTILINE)
    assert done.to_dict() == dry.to_dict()


def test_joined_parts_are_a_line() -> None:
    report = reshard.JoinReport(target="/t", stages=(0, 1), ranks=2, parameters=3, size_bytes=2048, seconds=1.0)
    assert str(report) == ("/t: the parts of stages 0, 1, 3 parameters on 2 ranks, 2.0 KiB copied and checked in 1.0 s")


def test_a_manifest_says_what_was_converted(converted: Path) -> None:
    manifest = reshard.read_manifest(converted)
    assert manifest is not None
    assert re.search(r"^ranks +8 -> \d+$", str(manifest), re.MULTILINE)
    assert "rank_0/checkpoint_0.ckpt" in str(manifest)
    assert manifest.to_dict()["identity"] == manifest.identity


def fingerprints(count: int) -> reshard.ModelFingerprint:
    each = ParameterFingerprint(name=HOSTILE, dtype="Float32", shape=(1,) * 1000, fingerprint="0" * 16)
    return reshard.ModelFingerprint(
        checkpoint=HOSTILE, step=None, ranks=8, size_bytes=1, fingerprint="0" * 32, parameters=(each,) * count
    )


def planned(ranks: int, source: Path) -> reshard.PlanSummary:
    rank = PlannedRank(rank=0, file=HOSTILE, shard_bytes=1, source_ranks=tuple(range(0, 80, 2)), copy_of=None)
    rows = tuple(rank.model_copy(update={"rank": number}) for number in range(ranks))
    return reshard.plan(source, source_strategy=FROM).model_copy(
        update={"source": HOSTILE, "ranks": rows, "chosen_ranks": tuple(range(ranks)), "notes": (HOSTILE,) * 1000}
    )


def verified() -> reshard.VerificationReport:
    problems = tuple(f"{number} {HOSTILE}" for number in range(1000))
    return reshard.VerificationReport(
        target=HOSTILE, level=VerifyLevel.CHECKSUM, ranks=1, read_bytes=1, seconds=1, problems=problems, notes=problems
    )


def leftovers() -> reshard.CleanReport:
    each = Leftover(kind=LeftoverKind.LEASE, url=HOSTILE, files=1, size_bytes=1, changed=None)
    return reshard.CleanReport(target=HOSTILE, found=(each,) * 1000, removed=False, kept=(HOSTILE,) * 1000)


LARGE: dict[str, Callable[[], Report]] = {
    "fingerprint": lambda: fingerprints(500),
    "plan": lambda: planned(100, SOURCE),
    "verify": verified,
    "clean": leftovers,
}


@pytest.mark.parametrize("name", LARGE)
def test_texts_are_limited_whatever_the_size(name: str) -> None:
    report = LARGE[name]()
    assert len(repr(report)) < 400
    assert repr(report).startswith(f"{type(report).__name__}(")
    assert len(str(report)) < 60_000
    assert len(report._repr_html_()) < 120_000
    for text in (repr(report), str(report)):
        assert all(line.isprintable() for line in text.split("\n"))
    assert re.search(
        r"^\s*and \d+ more", str(report), re.MULTILINE
    ) or "groups of equal ones; to_dict() lists each" in str(report)


class _Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert {name for name, _ in attrs} <= {"style"}
        self.open.append(tag)
        self.seen.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data + "\n"


@pytest.mark.parametrize("name", LARGE)
def test_html_is_a_fragment_in_which_names_are_text(name: str) -> None:
    parsed = _Tags(LARGE[name]()._repr_html_())
    assert parsed.open == []
    assert parsed.seen <= {"div", "table", "tr", "th", "td", "p"}
    assert "<script>" in parsed.text
    assert all(line.isprintable() for line in parsed.text.split("\n"))


def test_html_shows_the_facts_of_the_text(converted: Path) -> None:
    report = reshard.fingerprint(converted)
    words = _Tags(report._repr_html_()).text
    assert report.fingerprint in words
    assert report.parameters[0].fingerprint in words
    assert _Tags(reshard.doctor(SOURCE, strategy=FROM)._repr_html_()).text.count("answer") == 1


def test_secrets_in_urls_are_not_shown() -> None:
    report = reshard.MergeReport(url="s3://key:hunter2@bucket/x", stages=1, devices_per_stage=2, parameters=3)
    assert "hunter2" not in str(report)
    assert "hunter2" not in report._repr_html_()


@pytest.mark.parametrize("name", sorted(set(reshard.__all__)))
def test_every_result_is_a_report(name: str) -> None:
    value = getattr(reshard, name)
    ends = ("Report", "Summary", "List", "Fingerprint", "Diagnosis", "Manifest", "History")
    if isinstance(value, type) and name.endswith(ends):
        assert issubclass(value, Report)
