"""Conversions in a store that fails: the same bytes as ever, or one clear error and nothing half-done behind it."""

import itertools
import json
import re
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from reshard.cli.main import run
from reshard.core.conversion.convert import convert
from reshard.core.errors import InputError
from reshard.core.request.conversion import ConversionRequest
from reshard.core.runtime import retry
from reshard.core.runtime.retry import RetryPolicy
from reshard.core.strategy.files import write_strategy
from reshard.core.strategy.model import StageStrategy, Strategy
from reshard.core.tensor.layout import ParameterLayout
from tests.support.checkpoints import case, read_tree
from tests.support.ckpt_writer import checkpoint_bytes
from tests.support.s3_client import s3_client
from tests.support.s3_traffic import Exchange, Fault, Kind
from tests.support.stores import BUCKET, Store, stored, unfinished_uploads

PROTOCOLS = ["s3", pytest.param("obs", marks=pytest.mark.slow)]
FOUR_TO_THREE = case(7009)
MANIFEST = "out/.reshard/manifest.json"
WRONG_INPUT, FAILED = 2, 3
PASSING = (Kind.SLOW_DOWN, Kind.INTERNAL_ERROR, Kind.RESET, Kind.RESET_IN_BODY, Kind.SHORT_BODY, Kind.ANSWER_LOST)


@pytest.fixture(autouse=True)
def _quick_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "REQUESTS", RetryPolicy(retry.REQUESTS.attempts, 0.001))
    monkeypatch.setattr(retry, "WORK", RetryPolicy(retry.WORK.attempts, 0.001))


@pytest.fixture
def _short_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that could not give back its lease must not be waited for for long."""
    monkeypatch.setattr("reshard.core.storage.leases.remote_lease.RENEWAL_SECONDS", 0.1)
    monkeypatch.setattr("reshard.core.storage.leases.remote_lease._DEAD_AFTER_SECONDS", 0.4)


@pytest.fixture
def source(store: Store) -> None:
    """A checkpoint of four ranks in the store, and the strategies that make three of them."""
    for name in ("src", "src_strategy.ckpt", "dst_strategy.ckpt"):
        store.add(FOUR_TO_THREE.directory / name, name)


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    err: str

    @property
    def last_line(self) -> str:
        return self.err.splitlines()[-1]


def arguments(store: Store, *options: str) -> list[str]:
    strategies = [f"--{side}-strategy={store.url(f'{short}_strategy.ckpt')}" for side, short in SIDES]
    return ["convert", store.url("src"), store.url("out"), *strategies, "--engine=direct", *options]


SIDES = (("source", "src"), ("target", "dst"))


@pytest.fixture
def failed(store: Store, capfd: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """`failed(*options)`: runs the command, which is to fail, and to leave nothing that looks like a success."""

    def call(*options: str, given: Sequence[str] = ()) -> Ended:
        capfd.readouterr()
        code = run([*(given or arguments(store)), *options])
        out, err = capfd.readouterr()
        assert code in (WRONG_INPUT, FAILED), err
        assert out == ""
        assert "Traceback" not in err
        assert "internal error" not in err
        assert len([line for line in err.splitlines() if line.startswith("reshard: error: ")]) == 1, err
        store.proxy.set_faults()
        store.proxy.before = lambda exchange: None
        assert stored(store, MANIFEST) is None
        assert unfinished_uploads(store) == []
        return Ended(code, err)

    return call


def request(store: Store, **options: object) -> ConversionRequest:
    urls = {f"{side}_strategy": store.url(f"{short}_strategy.ckpt") for side, short in SIDES}
    return FOUR_TO_THREE.request(store.url("out"), **({"source": store.url("src")} | urls | options))


def is_source(exchange: Exchange) -> bool:
    return "/src/" in exchange.call.key


def is_target(exchange: Exchange) -> bool:
    return "/out/" in exchange.call.key


def is_rank(rank: int) -> Callable[[Exchange], bool]:
    return lambda exchange: f"/out/rank_{rank}/" in exchange.call.key


@pytest.mark.slow
@pytest.mark.usefixtures("source")
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("seed", range(6))
def test_some_of_all_requests_fail(store: Store, seed: int) -> None:
    share = 0.05 / len(PASSING)
    store.proxy.set_faults(*(Fault(kind, probability=share, seed=100 * seed + n) for n, kind in enumerate(PASSING)))
    report = convert(request(store))
    store.proxy.set_faults()
    assert report.committed
    assert read_tree(store.files("out")) == FOUR_TO_THREE.want
    assert unfinished_uploads(store) == []
    assert [rank.outcome for rank in report.ranks] == ["written"] * 3
    assert struck(store)
    assert len(certainly_counted(store)) <= report.retried_requests <= len(struck(store))


@pytest.mark.usefixtures("source")
@pytest.mark.parametrize(
    "kind",
    [
        Kind.INTERNAL_ERROR,
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in PASSING if kind is not Kind.INTERNAL_ERROR),
    ],
)
def test_each_request_fails_the_first_time(store: Store, kind: Kind) -> None:
    store.proxy.set_faults(Fault(kind, applies=lambda exchange: exchange.attempt == 1))
    report = convert(request(store))
    store.proxy.set_faults()
    assert read_tree(store.files("out")) == FOUR_TO_THREE.want
    assert unfinished_uploads(store) == []
    assert len(certainly_counted(store)) <= report.retried_requests <= len(struck(store))


@pytest.mark.usefixtures("source")
def test_many_listings_fail(store: Store) -> None:
    """They are made again one by one: a checkpoint of a thousand ranks needs as many, and some always fail."""
    store.proxy.set_faults(
        Fault(Kind.INTERNAL_ERROR, ("ListObjectsV2",), lambda exchange: exchange.number in (1, 4, 6, 8, 10))
    )
    report = convert(request(store))
    assert read_tree(store.files("out")) == FOUR_TO_THREE.want
    assert report.retried_requests == len(struck(store)) == 5


def struck(store: Store) -> list[Exchange]:
    """Requests that were made to fail."""
    return [each for each in store.proxy.exchanges() if each.fault is not None]


def certainly_counted(store: Store) -> list[Exchange]:
    """Those of them that have to be found in the report.

    Requests of uploads are repeated by the client, which tells nobody; leases are not the conversion's.
    """
    return [
        each
        for each in struck(store)
        if "/leases/" not in each.call.key and not (each.call.operation in SENDING and "/rank_" in each.call.key)
    ]


SENDING = ("PutObject", "CreateMultipartUpload", "UploadPart", "CompleteMultipartUpload")


DENIED = "access denied: the credentials lack the permission"
DENIED_HEAD = "access denied: the credentials are wrong, or lack the permission"


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.usefixtures("source")
@pytest.mark.parametrize(
    ("operations", "where", "code", "message"),
    [
        pytest.param(
            ("HeadObject",),
            "/src_strategy.ckpt",
            WRONG_INPUT,
            "{url}/src_strategy.ckpt: cannot read the strategy: " + DENIED_HEAD + " {GetObject}",
            id="head of a strategy",
        ),
        pytest.param(
            ("GetObject",),
            "/dst_strategy.ckpt",
            WRONG_INPUT,
            "{url}/dst_strategy.ckpt: cannot read [0-9]+ bytes at 0: " + DENIED + " {GetObject}",
            id="strategy",
        ),
        pytest.param(
            ("ListObjectsV2",),
            "",
            WRONG_INPUT,
            "{url}/out: cannot list it: " + DENIED + " {ListBucket}",
            id="listing",
        ),
        pytest.param(
            ("HeadObject",),
            "/src/rank_2/",
            WRONG_INPUT,
            "{url}/src/rank_2/checkpoint_2.ckpt: cannot read it: " + DENIED_HEAD + " {GetObject}",
            id="head of a source file",
        ),
        pytest.param(
            ("GetObject",),
            "/src/rank_2/",
            WRONG_INPUT,
            "{url}/src/rank_2/checkpoint_2.ckpt: cannot read [0-9]+ bytes at [0-9]+: " + DENIED + " {GetObject}",
            id="source file",
        ),
        pytest.param(
            ("PutObject",),
            "/out/",
            FAILED,
            "{url}/out/.reshard/leases/.*: cannot take a lease: " + DENIED + " {PutObject}",
            id="target",
        ),
    ],
)
def test_what_is_denied_is_told_at_once(
    store: Store,
    failed: Callable[..., Ended],
    operations: tuple[str, ...],
    where: str,
    code: int,
    message: str,
) -> None:
    store.proxy.set_faults(Fault(Kind.ACCESS_DENIED, operations, lambda exchange: where in exchange.call.key))
    ended = failed()
    assert ended.code == code
    prefix = {"s3": "s3:", "obs": "obs:object:"}[store.protocol]
    wanted = message.replace("{GetObject}", f"{prefix}GetObject").replace("{PutObject}", f"{prefix}PutObject")
    wanted = wanted.replace("{ListBucket}", f"{prefix.replace('object', 'bucket')}ListBucket")
    assert re.search(wanted.replace("{url}", store.url("").rstrip("/")), ended.last_line), ended.err
    assert len({each.call.asked for each in struck(store)}) == 1, struck(store)


@pytest.mark.slow
@pytest.mark.usefixtures("source")
def test_a_server_that_does_not_answer_in_time(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Silence is tried again, and the timeout is one that storage options can set."""
    monkeypatch.setenv("IMPATIENT", json.dumps({"config_kwargs": {"read_timeout": 0.5}}))
    store.proxy.set_faults(
        Fault(Kind.SILENCE, ("GetObject",), is_source, most=2),
        Fault(Kind.SILENCE, ("PutObject",), is_rank(1), most=1, seconds=10),
    )
    named = {"source_storage": "env:IMPATIENT", "target_storage": "env:IMPATIENT"}
    report = convert(request(store, **named))
    assert read_tree(store.files("out")) == FOUR_TO_THREE.want
    assert len(struck(store)) == 3
    assert report.retried_requests == 2, "the client repeats requests of uploads by itself"


@pytest.mark.slow
@pytest.mark.usefixtures("source")
def test_a_server_that_never_answers(
    store: Store, failed: Callable[..., Ended], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IMPATIENT", json.dumps({"config_kwargs": {"read_timeout": 0.1}}))
    store.proxy.set_faults(Fault(Kind.SILENCE, ("HeadObject",), is_source))
    ended = failed("--source-storage=env:IMPATIENT", "--target-storage=env:IMPATIENT")
    assert ended.code == FAILED
    assert ended.last_line.endswith(f"{store.proxy.url} did not answer in time")
    assert f"{store.url('src/rank_0/checkpoint_0.ckpt')}: cannot read it: " in ended.last_line


@pytest.mark.usefixtures("source", "_short_leases")
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("operation", ["HeadObject", "PutObject"])
def test_a_token_that_expires_in_the_middle(store: Store, failed: Callable[..., Ended], operation: str) -> None:
    """From some request for a rank on all are refused, as they would be: also those that would tidy up."""
    expired = threading.Event()

    def may_expire(exchange: Exchange) -> None:
        if exchange.call.operation == operation and "/out/rank_1/" in exchange.call.key:
            expired.set()

    store.proxy.before = may_expire
    store.proxy.set_faults(Fault(Kind.EXPIRED_TOKEN, applies=lambda exchange: expired.is_set()))
    ended = failed()
    assert "of 3 target ranks failed" in ended.err
    assert f"rank_1: {store.url('out/')}" in ended.err
    assert "the credentials have expired (ExpiredToken" in ended.err
    assert "renew them, then give the same command again" in ended.err

    expired.clear()
    assert convert(request(store)).committed
    assert read_tree(store.files("out")) == FOUR_TO_THREE.want


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.usefixtures("source")
def test_a_bucket_that_is_not_there(store: Store, failed: Callable[..., Ended]) -> None:
    there = arguments(store)
    source = there[1].replace(BUCKET, "no-such-bucket")
    ended = failed(given=[there[0], source, *there[2:]])
    assert (ended.code, ended.last_line) == (
        WRONG_INPUT,
        f"reshard: error: {source}: cannot read it: there is no bucket 'no-such-bucket': create it, or name another",
    )
    target = there[2].replace(BUCKET, "no-such-bucket")
    ended = failed(given=[*there[:2], target, *there[3:]])
    assert (ended.code, ended.last_line) == (
        WRONG_INPUT,
        f"reshard: error: {target}: cannot list it: there is no bucket 'no-such-bucket': create it, or name another",
    )


@pytest.mark.usefixtures("source")
@pytest.mark.parametrize("operation", ["GetObject", "ListObjectsV2", "PutObject"])
def test_a_bucket_that_is_taken_away(store: Store, failed: Callable[..., Ended], operation: str) -> None:
    store.proxy.set_faults(Fault(Kind.NO_SUCH_BUCKET, (operation,)))
    ended = failed()
    assert ended.last_line.startswith(f"reshard: error: {store.url('')}")
    assert ended.last_line.endswith(f"there is no bucket '{BUCKET}': create it, or name another")
    assert ended.code == WRONG_INPUT
    assert len({each.call.asked for each in struck(store)}) == 1


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.usefixtures("source")
def test_a_source_that_is_not_there(store: Store, failed: Callable[..., Ended]) -> None:
    there = arguments(store)
    wrong = store.url("scr")
    ended = failed(given=[there[0], wrong, *there[2:]])
    message = f"reshard: error: {wrong}: cannot read it: no such file or directory; did you mean {store.url('src')}?"
    assert (ended.code, ended.last_line) == (WRONG_INPUT, message)


KEYS = {"s3": ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), "obs": ("OBS_ACCESS_KEY_ID", "OBS_SECRET_ACCESS_KEY")}


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.usefixtures("source")
@pytest.mark.parametrize("which", [0, 1], ids=["key", "secret"])
def test_wrong_keys(store: Store, failed: Callable[..., Ended], monkeypatch: pytest.MonkeyPatch, which: int) -> None:
    monkeypatch.setenv(KEYS[store.protocol][which], "wrong-all-the-same")
    ended = failed()
    assert ended.code == WRONG_INPUT
    assert ended.last_line.startswith(f"reshard: error: {store.url('out')}: cannot list it: ")
    assert "the credentials are wrong" in ended.last_line
    assert len({each.call.asked for each in store.proxy.exchanges()}) == 1


@pytest.mark.usefixtures("source")
def test_wrong_keys_that_the_server_tells_more_about(
    store: Store, failed: Callable[..., Ended], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An answer to HEAD has no body; that to a listing, of a bucket's root, says what is wrong."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-all-the-same")
    there = arguments(store)
    strategies = [f"--{side}-strategy={FOUR_TO_THREE.directory / f'{short}_strategy.ckpt'}" for side, short in SIDES]
    pattern = store.url("src/rank_{rank}/checkpoint_{rank}.ckpt")
    ended = failed(given=[there[0], pattern, str(tmp_path / "out"), *strategies, "--engine=direct"])
    message = f"{store.url('src')}: cannot list it: the credentials are wrong (SignatureDoesNotMatch"
    assert (ended.code, message in ended.last_line) == (WRONG_INPUT, True), ended.err


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_no_keys_at_all(store: Store, failed: Callable[..., Ended], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in KEYS[store.protocol]:
        monkeypatch.delenv(name)
    # nor those of a machine in a cloud: looking for them takes seconds
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    ended = failed()
    assert ended.code in (WRONG_INPUT, FAILED)
    assert KEYS[store.protocol][0] in ended.last_line
    assert KEYS[store.protocol][1] in ended.last_line
    assert store.url("") in ended.last_line
    assert store.proxy.exchanges() == []


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_endpoint_where_nobody_listens(
    store: Store, failed: Callable[..., Ended], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    monkeypatch.setenv({"s3": "AWS_ENDPOINT_URL", "obs": "OBS_ENDPOINT"}[store.protocol], url)
    ended = failed()
    assert ended.code == FAILED
    unreachable = f"cannot list it: {url} cannot be reached: the endpoint is wrong, or it is down"
    assert ended.last_line == f"reshard: error: {store.url('out')}: {unreachable}"


SAME_LENGTH, SHORTER, LONGER = (lambda data: data[:-1] + b"!"), (lambda data: data[:-1]), (lambda data: data + b"!")


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.usefixtures("source")
@pytest.mark.parametrize(
    ("number", "change"),
    [
        pytest.param(1, SAME_LENGTH, id="when its headers are read"),
        pytest.param(4, SAME_LENGTH, id="when its contents are read"),
        pytest.param(4, SHORTER, id="by a shorter one"),
        pytest.param(4, LONGER, id="by a longer one"),
    ],
)
def test_a_source_object_that_is_replaced_meanwhile(
    store: Store, failed: Callable[..., Ended], change: Callable[[bytes], bytes], number: int
) -> None:
    path = "src/rank_1/checkpoint_1.ckpt"
    original = store.files(path).read_bytes()
    gets = itertools.count(1)

    def replace(exchange: Exchange) -> None:
        if exchange.call.operation == "GetObject" and exchange.call.key.endswith(path) and next(gets) == number:
            client = s3_client(store.server.url)
            client.put_object(Bucket=BUCKET, Key=exchange.call.key, Body=change(original))

    store.proxy.before = replace
    ended = failed()
    assert next(gets) > number, "it was never replaced"
    assert ended.code == WRONG_INPUT
    changed = re.escape(store.url(path)) + " changed while it was being (read|converted) "
    assert re.search(changed, ended.err), ended.err


@pytest.mark.usefixtures("source")
def test_a_rank_that_fails_for_good_leaves_the_others_done(store: Store, failed: Callable[..., Ended]) -> None:
    store.proxy.set_faults(Fault(Kind.ACCESS_DENIED, ("PutObject",), is_rank(1)))
    ended = failed()
    assert ended.code == FAILED
    assert "1 of 3 target ranks failed; rerun the command to retry only these" in ended.err
    assert (
        f"  rank_1: {store.url('out/rank_1/checkpoint_1.ckpt')}: cannot complete it: {DENIED} s3:PutObject" in ended.err
    )
    store.proxy.forget()

    report = convert(request(store))
    assert [str(rank.outcome) for rank in report.ranks] == ["resumed", "written", "resumed"]
    assert read_tree(store.files("out")) == FOUR_TO_THREE.want
    written = [each.call.key for each in store.proxy.exchanges() if each.call.operation == "PutObject"]
    assert {found[0] for key in written if (found := re.search("rank_[0-9]+", key))} == {"rank_1"}


NAMES = [f"layers.{number}.weight" for number in range(40)]
LENGTH = 1000


def save(store: Store, rank: int, names: Sequence[str]) -> None:
    """A rank's file, its parameters in some order; the values say which parameter of which rank they are of."""
    entries = [(name, "Float32", [LENGTH], values_of(rank, name).tobytes()) for name in names]
    path = store.files(f"src/rank_{rank}/model.ckpt")
    path.parent.mkdir(parents=True)
    path.write_bytes(checkpoint_bytes(*entries))


def values_of(rank: int, name: str) -> np.ndarray:
    return np.arange(LENGTH, dtype=np.float32) + 10_000 * NAMES.index(name) + 1_000_000 * rank


def swapped(first: int, second: int) -> list[str]:
    names = list(NAMES)
    names[first], names[second] = names[second], names[first]
    return names


@pytest.mark.slow
@pytest.mark.parametrize("places", [(first, first + 1) for first in range(0, 39, 3)] + [(0, 39), (7, 33), (19, 21)])
def test_parameters_in_another_order_in_one_file_are_never_taken_for_each_other(
    store: Store, places: tuple[int, int]
) -> None:
    """The files of a checkpoint are compared in samples, which may miss two of equal size that are swapped."""
    for rank in range(4):
        save(store, rank, swapped(*places) if rank == 2 else NAMES)
    for short, devices in (("src", 4), ("dst", 2)):
        layouts = dict.fromkeys(NAMES, ParameterLayout((devices,), ((0,),)))
        strategy = Strategy((StageStrategy(0, layouts),), "a test", merged=False)
        write_strategy(strategy, str(store.files(f"{short}_strategy.ckpt")))
    store.server.look_again()
    try:
        convert(request(store))
    except InputError as error:
        assert f"rank_2: {store.url('src/rank_2/model.ckpt')}: parameter 'layers." in str(error)
        assert "does not begin at byte" in str(error)
        assert stored(store, MANIFEST) is None
        assert unfinished_uploads(store) == []
        return
    written = read_tree(store.files("out"))
    for rank, name in itertools.product(range(2), NAMES):
        want = np.concatenate([values_of(2 * rank, name), values_of(2 * rank + 1, name)]).tobytes()
        assert written[rank][name] == ("Float32", (2 * LENGTH,), want)
