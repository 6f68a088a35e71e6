"""Who listens to calls: bars of tqdm, events that cancel, and asyncio's tasks."""

import asyncio
import io
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from tqdm import tqdm

import reshard
from reshard.core.storage.leases.lease_monitor import seen_holders
from reshard.core.storage.publishing import STATE_DIRECTORY, working_location
from reshard.core.storage.urls import parse_url
from reshard.core.target.workspace import LEASES_DIRECTORY
from reshard.errors import InputError, StoppedError, StorageError
from tests.support.checkpoints import case, read_tree
from tests.support.patience import PATIENCE_SECONDS

CASE = case(7010)
SOURCE = CASE.directory / "src"
FROM, TO = CASE.directory / "src_strategy.ckpt", CASE.directory / "dst_strategy.ckpt"
RESUMES = r"^cancelled; the same call resumes where it stopped(\n|$)"
STARTS_OVER = r"^cancelled; the same call starts over$"


class Trigger:
    """A listener that sets an event when a phase begins, or has so many bytes done."""

    def __init__(self, event: threading.Event, phase: str, *, after_bytes: bool = False) -> None:
        self.event = event
        self.phase = phase
        self.after_bytes = after_bytes
        self.phases: list[str] = []
        self.notes: list[str] = []

    def note(self, message: str) -> None:
        self.notes.append(message)
        if self.phase in message:
            self.event.set()

    def begin(self, phase: str, total_bytes: int = 0) -> None:
        self.phases.append(phase)
        if self.phase in phase and not self.after_bytes:
            self.event.set()

    def advance(self, count_bytes: int) -> None:
        if self.phases and self.phase in self.phases[-1] and self.after_bytes:
            self.event.set()


def convert(target: Path, **options: Any) -> reshard.ConversionReport:
    return reshard.convert(SOURCE, target, source_strategy=FROM, target_strategy=TO, **options)


def is_free(target: Path) -> bool:
    leases = working_location(parse_url(str(target))).child(STATE_DIRECTORY, LEASES_DIRECTORY)
    return seen_holders(leases) == []


@pytest.mark.parametrize(
    ("phase", "after_bytes"),
    [("reading headers", False), ("planning", False), ("converting", False), ("converting", True)],
)
def test_a_cancelled_conversion_leaves_nothing_that_looks_whole_and_resumes(
    tmp_path: Path, phase: str, after_bytes: bool
) -> None:
    target, cancel = tmp_path / "out", threading.Event()
    with pytest.raises(StoppedError, match=RESUMES):
        convert(target, cancel=cancel, progress=Trigger(cancel, phase, after_bytes=after_bytes), workers=1)
    assert not target.exists()
    assert is_free(target)
    assert convert(target).committed
    assert read_tree(target) == CASE.want


def test_a_cancelled_conversion_goes_on_with_the_next_rank(tmp_path: Path) -> None:
    target, cancel = tmp_path / "out", threading.Event()

    class AfterTheFirstRank(Trigger):
        def advance(self, count_bytes: int) -> None:
            if list(tmp_path.rglob("records/*.json")):
                self.event.set()

    with pytest.raises(StoppedError, match=RESUMES):
        convert(target, cancel=cancel, progress=AfterTheFirstRank(cancel, "never"), workers=1)
    report = convert(target)
    assert "resumed" in {rank.outcome for rank in report.ranks}
    assert read_tree(target) == CASE.want


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("converted") / "out"
    convert(target)
    return target


CALLS: dict[str, tuple[str, Callable[..., Any]]] = {
    "verify": ("verifying", reshard.verify),
    "verify content": ("reading the source's values", lambda out, **how: reshard.verify(out, level="content", **how)),
    "diff": ("comparing", lambda out, **how: reshard.diff(SOURCE, out, strategy_a=FROM, **how)),
    "fingerprint": ("reading", lambda out, **how: reshard.fingerprint(out, **how)),
}


@pytest.mark.parametrize("after_bytes", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_all_that_reads_is_cancelled(converted: Path, name: str, after_bytes: bool) -> None:
    phase, call = CALLS[name]
    cancel = threading.Event()
    with pytest.raises(StoppedError, match=STARTS_OVER):
        call(converted, cancel=cancel, progress=Trigger(cancel, phase, after_bytes=after_bytes))
    assert call(converted, cancel=threading.Event())


LOOKS: dict[str, Callable[..., Any]] = {
    "plan": lambda **how: reshard.plan(SOURCE, source_strategy=FROM, target_strategy=TO, **how),
    "recover": lambda **how: reshard.recover(SOURCE, strategy=FROM, **how),
    "doctor": lambda **how: reshard.doctor(SOURCE, strategy=FROM, **how),
}


@pytest.mark.parametrize("name", LOOKS)
def test_all_that_reads_headers_is_cancelled(name: str) -> None:
    cancel = threading.Event()
    with pytest.raises(StoppedError, match=STARTS_OVER):
        LOOKS[name](cancel=cancel, progress=Trigger(cancel, "reading headers"))
    assert LOOKS[name](cancel=threading.Event())


def test_a_call_that_is_cancelled_before_it_begins_does_nothing(tmp_path: Path) -> None:
    cancel = threading.Event()
    cancel.set()
    with pytest.raises(StoppedError, match=RESUMES):
        convert(tmp_path / "out", cancel=cancel)
    with pytest.raises(StoppedError, match=STARTS_OVER):
        reshard.clean(tmp_path, cancel=cancel)
    assert list(tmp_path.iterdir()) == []


def test_waiting_for_a_step_is_cancelled(tmp_path: Path) -> None:
    for rank in range(2):
        (tmp_path / f"src/rank_{rank}").mkdir(parents=True)
    [file] = (SOURCE / "rank_0").iterdir()
    (tmp_path / "src/rank_0/net-1_5.ckpt").write_bytes(file.read_bytes())
    cancel = threading.Event()
    trigger = Trigger(cancel, "waiting for step 1_5")
    with pytest.raises(StoppedError, match=RESUMES):
        reshard.convert_latest(
            tmp_path / "src", tmp_path / "out", cancel=cancel, progress=trigger, patience_seconds=3600
        )
    assert len(trigger.notes) == 1


def test_an_error_that_has_nothing_to_do_with_it_stays(tmp_path: Path) -> None:
    cancel = threading.Event()
    with pytest.raises(InputError, match="no such file or directory"):
        reshard.convert(tmp_path / "nothing", tmp_path / "out", cancel=cancel, progress=Trigger(cancel, "reading"))


class Failing(Trigger):
    """A listener that makes the work fail after it was cancelled."""

    def __init__(self, event: threading.Event, error: Exception) -> None:
        super().__init__(event, "")
        self.error = error

    def begin(self, phase: str, total_bytes: int = 0) -> None:
        self.event.set()
        raise self.error


def test_a_lasting_failure_is_not_hidden_by_the_event(converted: Path) -> None:
    cancel = threading.Event()
    with pytest.raises(StorageError, match="^disk full$"):
        reshard.verify(converted, cancel=cancel, progress=Failing(cancel, StorageError("disk full")))
    cancel.clear()
    with pytest.raises(StoppedError, match=STARTS_OVER):
        reshard.verify(converted, cancel=cancel, progress=Failing(cancel, StorageError("busy", transient=True)))


def test_a_cancelled_conversion_says_what_is_left(tmp_path: Path) -> None:
    target, cancel = tmp_path / "out", threading.Event()
    with pytest.raises(StoppedError) as caught:
        convert(target, cancel=cancel, progress=Trigger(cancel, "converting", after_bytes=True), workers=1)
    assert [note.partition(":")[0] for note in caught.value.__notes__] == [f"left in {target}.reshard-partial"]


class Holding(Trigger):
    """A listener that sets an event when the first bytes are done, and holds the work up until another is set."""

    def __init__(self, event: threading.Event, released: threading.Event) -> None:
        super().__init__(event, "converting", after_bytes=True)
        self.released = released

    def advance(self, count_bytes: int) -> None:
        super().advance(count_bytes)
        if self.event.is_set():
            self.released.wait(PATIENCE_SECONDS)


def test_a_cancelled_task_ends_when_the_work_has_stopped(tmp_path: Path) -> None:
    target, begun, released = tmp_path / "out", threading.Event(), threading.Event()

    async def cancelled() -> None:
        call = reshard.to_thread(
            reshard.convert,
            SOURCE,
            target,
            source_strategy=FROM,
            target_strategy=TO,
            progress=Holding(begun, released),
        )
        task = asyncio.create_task(call)
        assert await asyncio.to_thread(begun.wait, PATIENCE_SECONDS)
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()
        released.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert is_free(target)

    asyncio.run(cancelled())
    assert not target.exists()
    assert convert(target).committed
    assert read_tree(target) == CASE.want


def test_a_timeout_of_asyncio_ends_the_work(tmp_path: Path) -> None:
    async def timed_out() -> None:
        async with asyncio.timeout(0.5):
            await reshard.to_thread(
                reshard.convert_latest, tmp_path / "src", tmp_path / "out", patience_seconds=3600, source_strategy=FROM
            )

    (tmp_path / "src/rank_1").mkdir(parents=True)
    (tmp_path / "src/rank_0").mkdir()
    [file] = (SOURCE / "rank_0").iterdir()
    (tmp_path / "src/rank_0/net-1_5.ckpt").write_bytes(file.read_bytes())
    with pytest.raises(TimeoutError):
        asyncio.run(timed_out())


def test_a_call_in_a_thread_returns_what_it_returns_and_raises_what_it_raises(tmp_path: Path) -> None:
    listed = asyncio.run(reshard.to_thread(reshard.presets))
    assert listed == reshard.presets()
    with pytest.raises(InputError, match="does not exist"):
        asyncio.run(reshard.to_thread(reshard.verify, tmp_path / "nothing"))


def test_a_failure_while_the_task_is_cancelled_is_its_cause() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def fail() -> None:
        begun.set()
        assert go_on.wait(PATIENCE_SECONDS)
        raise InputError("wrong")

    async def cancelled() -> None:
        task = asyncio.create_task(reshard.to_thread(fail))
        assert await asyncio.to_thread(begun.wait, PATIENCE_SECONDS)
        task.cancel()
        await asyncio.sleep(0)
        go_on.set()
        await task

    with pytest.raises(asyncio.CancelledError) as caught:
        asyncio.run(cancelled())
    assert isinstance(caught.value.__cause__, InputError)


class Seen(tqdm):  # type: ignore[misc]
    """A real bar that remembers."""

    made: ClassVar[list["Seen"]] = []

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, file=io.StringIO(), **settings)
        self.phases: list[tuple[str, Any]] = []
        self.most = 0
        self.closed = 0
        Seen.made.append(self)

    def set_description(self, desc: str | None = None, refresh: bool = True) -> None:
        super().set_description(desc, refresh)
        self.phases.append((str(desc), self.total))

    def update(self, n: float | None = 1) -> bool | None:
        shown = super().update(n)
        assert self.total is None or self.n <= self.total
        self.most = max(self.most, int(self.n))
        return shown

    def close(self) -> None:
        super().close()
        self.closed += 1


@pytest.fixture
def bars() -> list[Seen]:
    Seen.made = []
    return Seen.made


def test_a_class_of_tqdm_shows_each_phase_on_one_bar(tmp_path: Path, bars: list[Seen]) -> None:
    report = convert(tmp_path / "out", progress=Seen)
    [bar] = bars
    phases = dict(bar.phases)
    assert phases["reading headers"] is None
    assert phases["converting, checking"] >= report.written_bytes
    assert bar.most == phases["converting, checking"]
    assert bar.unit == "B"
    assert bar.closed >= 1


def test_a_bar_of_the_caller_stays_open(converted: Path, bars: list[Seen]) -> None:
    bar = Seen(unit="B", unit_scale=True)
    reshard.verify(converted, progress=bar)
    reshard.fingerprint(converted, progress=bar)
    assert bar.closed == 0
    assert {phase for phase, _ in bar.phases} >= {"verifying", "reading"}
    bar.close()
    assert bars == [bar]


def test_a_bar_is_closed_when_the_work_fails(tmp_path: Path, bars: list[Seen]) -> None:
    with pytest.raises(InputError):
        reshard.convert(tmp_path / "nothing", tmp_path / "out", progress=lambda **settings: Seen(**settings))
    assert bars[0].closed >= 1


def test_true_is_a_bar_of_tqdm(converted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert not reshard.verify(converted, progress=True).problems
    assert "verifying: 100%" in capsys.readouterr().err


def test_true_without_tqdm_says_what_to_do(converted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "tqdm.auto", None)
    with pytest.raises(InputError, match="^progress=True: needs tqdm, which is not installed: pip install tqdm$"):
        reshard.verify(converted, progress=True)


@pytest.mark.parametrize("wrong", [7, "tqdm", object(), dict])
def test_what_is_no_listener_is_refused(converted: Path, wrong: Any) -> None:
    with pytest.raises(
        InputError, match="must be True, a bar or a class as tqdm's, or an object with the methods note"
    ):
        reshard.verify(converted, progress=wrong)


def test_what_is_no_event_is_refused(converted: Path) -> None:
    with pytest.raises(InputError, match=r"^cancel=True: must be an event, such as threading.Event\(\)$"):
        reshard.verify(converted, cancel=True)  # type: ignore[arg-type]


def test_notes_are_printed_above_the_bar(tmp_path: Path, bars: list[Seen], capsys: pytest.CaptureFixture[str]) -> None:
    convert(tmp_path / "out", ranks="0")
    convert(tmp_path / "out", progress=Seen)
    assert "1 of" in capsys.readouterr().out
