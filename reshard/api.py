"""The functions of `reshard`: each does what the command of its name does, in this process and without Prefect.

They take the options of the command as keywords and return its report. Names of storage options and keys may be
`block:NAME`; only those load Prefect. `reshard.options` has the types of keywords.

All functions raise an `InputError` that names each option that is wrong, or does not exist, and each file that cannot
be used, and a `StorageError` if reading or writing failed after retries.
"""

import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import Field

from reshard.arguments import built, checked, checked_values, text_of, texts_of
from reshard.async_calls import to_thread
from reshard.core.changes.preset import PresetList, list_presets
from reshard.core.checkpoint.manifest import Manifest
from reshard.core.conversion import join_stages
from reshard.core.conversion.history import ConversionState, History, HistoryEntry, HistoryFilter, parse_since
from reshard.core.conversion.join_stages import JoinReport
from reshard.core.conversion.latest import LatestReport
from reshard.core.conversion.lazy_tensors import Tensor
from reshard.core.conversion.load import LoadPlan
from reshard.core.conversion.make_strategy import MakeReport, make_strategy_file
from reshard.core.conversion.merge_strategy import MergeReport, MergeRequest, merge_files
from reshard.core.conversion.opened import Checkpoint, RankTensors
from reshard.core.conversion.report import ConversionReport, PlanSummary
from reshard.core.conversion.sign import SigningReport
from reshard.core.custody import attestation
from reshard.core.custody.attestation import Attestation
from reshard.core.custody.checking import read_verifier
from reshard.core.errors import InputError
from reshard.core.layouts import manifests
from reshard.core.options.validation import build_options
from reshard.core.options.written import TEXTS, pairs_by, text_of_setting
from reshard.core.request.comparison import ComparisonRequest
from reshard.core.request.conversion import ConversionRequest
from reshard.core.request.joining import JoinRequest
from reshard.core.request.latest import LatestConversionRequest
from reshard.core.request.source import SourceRequest
from reshard.core.request.verification import VerificationRequest
from reshard.core.runtime.keys import EncryptionMode, KeyNames, named_keys
from reshard.core.runtime.progress import Progress, reporting_to
from reshard.core.runtime.suggestions import did_you_mean
from reshard.core.source.description import describe
from reshard.core.source.diagnosis_report import Diagnosis
from reshard.core.source.recovery import RecoveryReport
from reshard.core.storage.named_options import named_storages
from reshard.core.storage.urls import parse_url
from reshard.core.strategy.derivation import TargetJob
from reshard.core.strategy.integrated_save import IntegratedSave
from reshard.core.target import cleaning
from reshard.core.target.leftovers import CleanReport
from reshard.core.verification.comparison_report import ComparisonReport
from reshard.core.verification.fingerprint_file import ModelFingerprint
from reshard.core.verification.report import VerificationReport
from reshard.core.verification.scan_report import ScanReport
from reshard.deployments.history import history_of_places, history_of_server
from reshard.flows.blocks import resolvers_for
from reshard.functions import (
    convert,
    convert_latest,
    diff,
    doctor,
    fingerprint,
    load_rank,
    open,  # noqa: A004
    plan,
    plan_load,
    recover,
    scan,
    sign,
    verify,
)
from reshard.listening import listening
from reshard.options import EncryptionModeName, IntegratedSaveName, PathOrUrl, Settings, Sha256LevelName
from reshard.progress_bars import Listener

__all__ = [
    "Attestation",
    "Checkpoint",
    "CleanReport",
    "ComparisonReport",
    "ComparisonRequest",
    "ConversionReport",
    "ConversionRequest",
    "Diagnosis",
    "History",
    "HistoryEntry",
    "JoinReport",
    "LatestConversionRequest",
    "LatestReport",
    "LoadPlan",
    "MakeReport",
    "Manifest",
    "MergeReport",
    "MergeRequest",
    "ModelFingerprint",
    "PlanSummary",
    "PresetList",
    "Progress",
    "RankTensors",
    "RecoveryReport",
    "ScanReport",
    "SigningReport",
    "Tensor",
    "VerificationReport",
    "VerificationRequest",
    "attest",
    "clean",
    "convert",
    "convert_latest",
    "diff",
    "doctor",
    "fingerprint",
    "history",
    "inspect",
    "join_parts",
    "load_rank",
    "make_strategy",
    "merge_strategy",
    "open",
    "plan",
    "plan_load",
    "presets",
    "read_manifest",
    "recover",
    "scan",
    "sign",
    "to_thread",
    "verify",
]


_Rules = Annotated[list[str], pairs_by(text_of_setting, str.rpartition, "Settings")]
"""How parameters of a strategy that is made are sharded, and where they are."""
_HISTORY: Mapping[str, Any] = {
    **dict.fromkeys(("server", "since", "source", "target"), str),
    "limit": Annotated[int, Field(ge=0)],
    "states": Annotated[list[str], TEXTS],
}
"""The arguments of `history` but for its places."""


@checked
def join_parts(
    parts: Sequence[PathOrUrl],
    target: PathOrUrl,
    *,
    shared_parameters: int | str = "fail",
    sha256: Sha256LevelName = "none",
    sign: str | None = None,
    sign_passphrase: str | None = None,
    sign_certificate: PathOrUrl | None = None,
    require_signed_by: PathOrUrl | None = None,
    storage: str = "",
    progress: Listener | None = None,
    cancel: threading.Event | None = None,
) -> JoinReport:
    """Make one checkpoint of the parts that pipeline stages were converted to one by one.

    Args:
        parts: the directories that conversions of single stages made.
        target: the directory to make.
        shared_parameters: `first`, `fail` or the number of the stage whose copy of a tied parameter is taken.
        sha256: `target` or `source` record the SHA-256 of every file and of those of the parts, and write statements
            that continue those of the parts.
        sign: name of the key that signs the target: `env:NAME`, `file:PATH` or `block:NAME`.
        sign_passphrase: name of the passphrase of an encrypted key.
        sign_certificate: certificates of the key, a PEM file with the key's own first.
        require_signed_by: a PEM file with the public keys, or CAs' certificates, one of which each part has to be
            signed by, or its name.
        storage: name of the storage options of all of them: `env:NAME`, `file:PATH` or `block:NAME`.
        progress: True for a bar of tqdm, a bar or its class, such as `tqdm`, or a `Progress`.
        cancel: an event that ends the work with a StoppedError once it is set; the same call resumes.

    Raises:
        InputError: the parts do not make one checkpoint, or one is not as it was signed.
        VerificationError: a copied file differs from its part's record.
    """
    urls = texts_of("parts", parts)
    if not urls:
        raise InputError("parts: must be a list of one or more directories")
    signature = {"sign": sign, "sign_passphrase": sign_passphrase, "sign_certificate": sign_certificate}
    options = {"shared_parameters": shared_parameters, "sha256": sha256, "storage": storage, **signature}
    named = {"parts": urls, "target": target, "require_signed_by": require_signed_by}
    request = built(JoinRequest, {**named, **options})
    resolvers = resolvers_for(request.storage, request.sign, request.sign_passphrase, request.require_signed_by)
    with join_stages.resources_to_join(request, resolvers), listening(progress, cancel, resumes=True) as listener:
        return join_stages.join_parts(request, listener)


@checked
def clean(
    target: PathOrUrl,
    *,
    remove: bool = False,
    storage: str = "",
    decrypt_key: str = "",
    decrypt_mode: EncryptionModeName = EncryptionMode.AES_GCM,
    progress: Listener | None = None,
    cancel: threading.Event | None = None,
) -> CleanReport:
    """Find unfinished work at a target; with `remove`, remove it.

    Args:
        target: the target of conversions.
        remove: remove what is found; False: only report it.
        storage: name of its storage options: `env:NAME`, `file:PATH` or `block:NAME`.
        decrypt_key: name of the key of an unfinished encrypted conversion on an object store, whose records are sealed.
        decrypt_mode: how it is encrypted.
        progress: True for a bar of tqdm, a bar or its class, such as `tqdm`, or a `Progress`.
        cancel: an event that ends the work with a StoppedError once it is set.

    Raises:
        InputError: nothing at all is at the target, a living run works on it, or what is there may be a checkpoint or
            holds foreign files.
        StorageError: the storage cannot be read, or something cannot be removed.
    """
    url = text_of(target)
    with (
        _place(url, storage=storage, decrypt_key=decrypt_key, decrypt_mode=decrypt_mode),
        listening(progress, cancel) as listener,
        reporting_to(listener),
    ):
        return cleaning.clean(url, **checked_values({"remove": bool}, remove=remove))


@checked
def history(
    *places: PathOrUrl,
    server: str = "",
    since: datetime | str = "",
    limit: int = 0,
    states: Collection[str] = (),
    source: str = "",
    target: str = "",
    storage: str = "",
    signed_by: PathOrUrl = "",
) -> History:
    """List conversions: when, who, from where to where, how much, how long, how verified, at what cost.

    Args:
        places: targets, or directories of targets; none: the conversions of a Prefect server.
        server: URL of that server; empty: the one that is configured.
        since: only conversions that began since then: a time, a date, or `90m`, `12h`, `7d`, `4w` before now.
        limit: the number of conversions, those that began last; 0: all.
        states: only conversions in one of these states: committed, unfinished, queued, running, waiting, refused,
            cancelled, failed, crashed, unreadable.
        source: only sources that contain this, or match `*`, `?` and `[…]`.
        target: the same for targets.
        storage: name of the storage options of the places.
        signed_by: PEM file of public keys, or of CA certificates, one of which must have signed the statements of
            every step from training to a single target, or its name: `env:NAME`, `file:PATH` or `block:NAME`.

    Raises:
        InputError: nothing is at a place, no server is configured, or an argument is wrong.
        StorageError: a storage cannot be read.
        ConversionError: the server does not answer.
    """
    if places and server:
        raise InputError("server: cannot be combined with places: leave one out")
    if storage and not places:
        raise InputError("storage: only valid with a place")
    if signed_by and len(places) != 1:
        raise InputError("signed_by: only valid with one place")
    text = since.isoformat() if isinstance(since, datetime) else since
    given = checked_values(
        _HISTORY,
        server=server,
        since=text or "",
        limit=limit,
        states=states,
        source=text_of(source),
        target=text_of(target),
    )
    begin = parse_since(given["since"], datetime.now(UTC)) if given["since"] else None
    wanted = HistoryFilter(begin, frozenset(map(_state, given["states"])), given["source"], given["target"])
    if not places:
        return history_of_server(given["server"], wanted, given["limit"])
    names = texts_of("places", places)
    return history_of_places(names, wanted, given["limit"], storage=storage, signed_by=text_of(signed_by))


def presets() -> PresetList:
    """Describe the presets: the model families whose names and layouts are known, for `preset=` of other functions."""
    return list_presets()


@checked
def merge_strategy(source: PathOrUrl, target: PathOrUrl, *, overwrite: bool = False, storage: str = "") -> MergeReport:
    """Merge the strategy files of a job's ranks into one file: JSON if its name ends in `.json`, else protobuf.

    Args:
        source: where the ranks left their strategy files; or a strategy file, to be written in the other format.
        target: the file to write.
        overwrite: replace the file if it is there.
        storage: name of the storage options of both: `env:NAME`, `file:PATH` or `block:NAME`.
    """
    named = {"source": text_of(source), "target": text_of(target), "overwrite": overwrite, "storage": storage}
    request = build_options(MergeRequest, str, **named)
    with _place(request.source, request.target, storage=request.storage):
        return merge_files(request.source, request.target, request.overwrite)


@checked
def make_strategy(
    target: PathOrUrl,
    *,
    like: PathOrUrl,
    data_parallel: int,
    model_parallel: int,
    pipeline: int = 1,
    optimizer_parallel: bool = False,
    optimizer_threshold_bytes: int = 64 << 10,
    layers: str = "",
    cuts: Settings = (),
    places: Settings = (),
    checkpoint: PathOrUrl | None = None,
    integrated_save: IntegratedSaveName | bool = IntegratedSave.AUTO,
    overwrite: bool = False,
    storage: str = "",
    decrypt_key: str = "",
    decrypt_mode: EncryptionModeName = EncryptionMode.AES_GCM,
) -> MakeReport:
    """Make the strategy of a job of other numbers of devices from a job's strategy, without a cluster.

    Args:
        target: the file to write: JSON if its name ends in `.json`, else protobuf.
        like: the strategy of the network as it was; or a directory of whole tensors.
        data_parallel: copies of the model in each stage.
        model_parallel: devices that share each copy.
        pipeline: stages.
        optimizer_parallel: whether the copies share weights and optimizer states, along axis 0.
        optimizer_threshold_bytes: smaller parameters stay as they are with optimizer parallelism.
        layers: layers of each stage, such as `0-11,12-23`; empty: as before, or evenly.
        cuts: `PATTERN=AXIS`: which tensor axis model parallelism cuts, where the source does not say it.
        places: `PATTERN=first`: which stages hold parameters of no layer, where the source does not say it.
        checkpoint: a checkpoint of that strategy, or a unified one, whose headers have the shapes.
        integrated_save: whether every rank of it holds whole tensors; `auto`: as known shapes, or else the strategy,
            say.
        overwrite: replace the file if it is there.
        storage: name of the storage options of all of them: `env:NAME`, `file:PATH` or `block:NAME`.
        decrypt_key: name of the key of an encrypted checkpoint, in the same forms.
        decrypt_mode: how it is encrypted.
    """
    urls = {"target": text_of(target), "like": text_of(like), "checkpoint": text_of(checkpoint)}
    job = _build_job(
        data_parallel=data_parallel,
        model_parallel=model_parallel,
        pipeline=pipeline,
        optimizer_parallel=optimizer_parallel,
        optimizer_threshold_bytes=optimizer_threshold_bytes,
        layers=layers,
        cuts=cuts,
        places=places,
    )
    checked = build_options(SourceRequest, str, source=urls["like"], integrated_save=integrated_save)
    replaces = checked_values({"overwrite": bool}, overwrite=overwrite)
    with _place(*urls.values(), storage=storage, decrypt_key=decrypt_key, decrypt_mode=decrypt_mode):
        return make_strategy_file(
            urls["like"],
            urls["target"],
            job,
            checkpoint=urls["checkpoint"],
            integrated_save=checked.integrated_save,
            **replaces,
        )


@checked
def inspect(
    what: PathOrUrl,
    *,
    root: str = "",
    storage: str = "",
    decrypt_key: str = "",
    decrypt_mode: EncryptionModeName = EncryptionMode.AES_GCM,
) -> dict[str, Any]:
    """Return what is in a checkpoint file, a checkpoint or a strategy, as a document; its `kind` says which it is.

    Args:
        what: a file, a directory, or a pattern with `{rank}`.
        root: keys, joined by dots, that lead to the tensors in a PyTorch file that holds more.
        storage: name of its storage options: `env:NAME`, `file:PATH` or `block:NAME`.
        decrypt_key: name of the key of an encrypted checkpoint, in the same forms.
        decrypt_mode: how it is encrypted.
    """
    url = text_of(what)
    with _place(url, storage=storage, decrypt_key=decrypt_key, decrypt_mode=decrypt_mode):
        return describe(url, root)


@checked
def read_manifest(target: PathOrUrl, *, storage: str = "") -> Manifest | None:
    """Return the manifest of a converted checkpoint; None if there is no finished conversion.

    Args:
        target: the directory that a conversion made.
        storage: name of its storage options: `env:NAME`, `file:PATH` or `block:NAME`.
    """
    url = text_of(target)
    with _place(url, storage=storage):
        return manifests.read_manifest(parse_url(url))


@checked
def attest(target: PathOrUrl, *, signed_by: PathOrUrl | None = None, storage: str = "") -> Attestation:
    """Return the statements about a converted checkpoint: where it comes from, and how its values were compared.

    A conversion writes them if it takes the SHA-256 of files. `verify` with `provenance=True` compares them with these.

    Args:
        target: the directory that a conversion made.
        signed_by: a PEM file of public keys, or of CA certificates, one of which must have signed them, or its name:
            `env:NAME`, `file:PATH` or `block:NAME`; None: signatures are not checked.
        storage: name of the target's storage options: `env:NAME`, `file:PATH` or `block:NAME`.

    Raises:
        InputError: the target is not a finished conversion, or has no statements.
        SignatureError: a statement is not signed, or by nobody who is trusted.
        StorageError: a storage failed after retries.
    """
    url = text_of(target)
    trusted = text_of(signed_by)
    with _place(url, storage=storage):
        verifier = read_verifier(trusted, resolvers_for(trusted)) if trusted else None
        return attestation.attest(url, verifier)


def _build_job(**fields: object) -> TargetJob:
    kinds: dict[str, Any] = {**TargetJob.__annotations__, "cuts": _Rules, "places": _Rules}
    return TargetJob(**checked_values(kinds, **fields))


def _state(word: str) -> ConversionState:
    try:
        return ConversionState(word)
    except ValueError:
        raise InputError(f"states: there is no state {word!r}{did_you_mean(word, list(ConversionState))}") from None


@contextmanager
def _place(
    *urls: str,
    storage: str,
    decrypt_key: str = "",
    decrypt_mode: EncryptionModeName = EncryptionMode.AES_GCM,
) -> Iterator[None]:
    """Open URLs with the storage options of a name, and what is encrypted there with the key of a name."""
    named = {"storage": storage, "decrypt_key": decrypt_key, "decrypt_mode": decrypt_mode}
    checked = build_options(VerificationRequest, str, target=urls[0], **named)
    key, mode = checked.decrypt_key, checked.decrypt_mode
    resolvers = resolvers_for(storage, key)
    with (
        named_storages([(url, storage) for url in urls if url], resolvers),
        named_keys(KeyNames(key, mode, key, mode), resolvers),
    ):
        yield
