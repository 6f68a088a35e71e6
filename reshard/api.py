"""The functions of `reshard`: each does what the command of its name does, in this process and without Prefect.

They take the options of the command as keywords and return its report. Names of storage options and keys may be
`block:NAME`; only those load Prefect.

Arguments that a docstring does not list are those of `convert`; `reshard.options` describes options, also those that
are plain arguments here. All functions raise an `InputError` that names each option that is wrong, or does not exist,
and each file that cannot be used, and a `StorageError` if reading or writing failed after retries.
"""

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from inspect import signature
from typing import Any, ParamSpec, TypeVar, Unpack, get_args

from pydantic import BaseModel, ValidationError, create_model

from reshard.core.changes.preset import PresetList, list_presets
from reshard.core.checkpoint.manifest import Manifest
from reshard.core.conversion import convert as conversions
from reshard.core.conversion import join_stages, latest, load, planning
from reshard.core.conversion.join_stages import JoinReport
from reshard.core.conversion.latest import LatestReport
from reshard.core.conversion.load import LoadPlan
from reshard.core.conversion.make_strategy import MakeReport, make_strategy_file
from reshard.core.conversion.merge_strategy import MergeReport, MergeRequest, merge_files
from reshard.core.conversion.report import ConversionReport, PlanSummary
from reshard.core.errors import InputError
from reshard.core.files.numpy_values import Value
from reshard.core.layouts import manifests
from reshard.core.options.validation import build_options, describe_validation
from reshard.core.request.comparison import ComparisonRequest
from reshard.core.request.conversion import ConversionRequest
from reshard.core.request.latest import LatestConversionRequest
from reshard.core.request.planning import PlanRequest
from reshard.core.request.resources import Naming, names_in, resources_of
from reshard.core.request.source import FingerprintRequest, SourceRequest
from reshard.core.request.verification import VerificationRequest
from reshard.core.runtime.keys import EncryptionMode, KeyNames, named_keys
from reshard.core.runtime.progress import Progress, reporting_to
from reshard.core.runtime.progress_lines import LoggedProgress
from reshard.core.runtime.suggestions import did_you_mean
from reshard.core.source import diagnosis, recovery
from reshard.core.source.description import describe
from reshard.core.source.diagnosis import Diagnosis
from reshard.core.source.recovery import RecoveryReport
from reshard.core.storage.named_options import named_storages
from reshard.core.storage.urls import parse_url
from reshard.core.strategy.derivation import TargetJob
from reshard.core.strategy.integrated_save import IntegratedSave
from reshard.core.target import cleaning
from reshard.core.target.leftovers import CleanReport
from reshard.core.verification import compare, published
from reshard.core.verification.comparison_report import ComparisonReport
from reshard.core.verification.fingerprint_file import ModelFingerprint
from reshard.core.verification.report import VerificationReport
from reshard.flows.blocks import resolvers_for
from reshard.options import (
    ConvertOptions,
    DiffOptions,
    DoctorOptions,
    EncryptionModeName,
    FingerprintOptions,
    IntegratedSaveName,
    LatestOptions,
    LoadOptions,
    PathOrUrl,
    RecoverOptions,
    VerifyOptions,
)

__all__ = [
    "CleanReport",
    "ComparisonReport",
    "ComparisonRequest",
    "ConversionReport",
    "ConversionRequest",
    "Diagnosis",
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
    "RecoveryReport",
    "VerificationReport",
    "VerificationRequest",
    "clean",
    "convert",
    "convert_latest",
    "diff",
    "doctor",
    "fingerprint",
    "inspect",
    "join_parts",
    "load_rank",
    "make_strategy",
    "merge_strategy",
    "plan",
    "plan_load",
    "presets",
    "read_manifest",
    "recover",
    "verify",
]

_Request = TypeVar("_Request", bound=BaseModel)
_Result = TypeVar("_Result")
_Arguments = ParamSpec("_Arguments")
_OF_FLOWS = ("dask_scheduler", "concurrency_limit")


def _checked(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Refuse arguments that a function does not take with an InputError, as it refuses wrong values."""
    parameters = signature(function)

    @wraps(function)
    def call(*arguments: _Arguments.args, **keywords: _Arguments.kwargs) -> _Result:
        try:
            parameters.bind(*arguments, **keywords)
        except TypeError as error:
            unknown = next((name for name in keywords if name not in parameters.parameters), "")
            raise InputError(f"{function.__name__}: {error}{did_you_mean(unknown, parameters.parameters)}") from None
        return function(*arguments, **keywords)

    return call


def convert(
    source: PathOrUrl,
    target: PathOrUrl,
    *,
    source_strategy: PathOrUrl | None = None,
    target_strategy: PathOrUrl | None = None,
    progress: Progress | None = None,
    **options: Unpack[ConvertOptions],
) -> ConversionReport:
    """Convert a checkpoint to another sharding strategy; resume what an interrupted run of the same options began.

    Args:
        source: the checkpoint: a directory, a pattern with `{rank}`, one file, or a directory of whole tensors.
        target: the directory to make; it appears when all of it is written and checked.
        source_strategy: a strategy file, or a directory of the ranks' strategy files; None: what reshard recorded, or
            one rank with whole tensors.
        target_strategy: the same for the target; None: one rank with whole tensors.
        progress: listener for notes and bytes; must be thread-safe.
        options: see `reshard.options.ConvertOptions`.

    Raises:
        InputError: options, or the files they name, are wrong.
        VerificationError: a written file differs from what was to be written.
        ConversionError: it failed at run time: a storage after retries, a full disk, no memory.
    """
    request = _conversion(convert, source, target, source_strategy, target_strategy, options)
    with _resources(request):
        return conversions.convert(request, LoggedProgress(progress))


def convert_latest(
    source: PathOrUrl,
    target: PathOrUrl,
    *,
    source_strategy: PathOrUrl | None = None,
    target_strategy: PathOrUrl | None = None,
    progress: Progress | None = None,
    **options: Unpack[LatestOptions],
) -> LatestReport:
    """Convert the newest step that training has saved completely to `TARGET/{step}`, unless that is done already.

    Args:
        source: where training saves: a directory, or a pattern with `{rank}`.
        target: the directory of all conversions.

    Raises:
        VerificationError: a written file differs from what was to be written.
        ConversionError: it failed at run time.
    """
    strategies = {"source_strategy": source_strategy, "target_strategy": target_strategy}
    request = _build(LatestConversionRequest, convert_latest, options, source=source, target=target, **strategies)
    with _resources(request):
        return latest.convert_latest(request, LoggedProgress(progress))


def plan(
    source: PathOrUrl,
    target: PathOrUrl | None = None,
    *,
    source_strategy: PathOrUrl | None = None,
    target_strategy: PathOrUrl | None = None,
    **options: Unpack[ConvertOptions],
) -> PlanSummary:
    """Return what `convert` would read and write, rank by rank, in bytes; nothing is written.

    Args:
        target: as for `convert`; None: anywhere.
    """
    request = _conversion(plan, source, target, source_strategy, target_strategy, options)
    with _resources(request):
        return planning.describe_plan(request)[1]


def load_rank(
    source: PathOrUrl,
    source_strategy: PathOrUrl | None = None,
    target_strategy: PathOrUrl | None = None,
    rank: int = 0,
    *,
    names: Collection[str] | None = None,
    **options: Unpack[LoadOptions],
) -> Iterator[tuple[str, Value]]:
    """Yield the name and the array of each parameter of one target rank, straight from the source; nothing is written.

    Args:
        rank: which of the target's ranks.
        names: names in the target of the parameters to load; None: all.
    """
    _check_known(load_rank, options)
    return plan_load(source, source_strategy, target_strategy, **options).load(rank, names)


def plan_load(
    source: PathOrUrl,
    source_strategy: PathOrUrl | None = None,
    target_strategy: PathOrUrl | None = None,
    **options: Unpack[LoadOptions],
) -> LoadPlan:
    """Look at a source once, to load any of the target's ranks from it, in any number of threads.

    With `check_crc`, files that have CRCs are read whole, those of DCP too, in each process that calls this.
    """
    request = _conversion(plan_load, source, None, source_strategy, target_strategy, options)
    given = {name: getattr(request, name) for name in options}
    strategies = request.source_strategy, request.target_strategy
    return load.plan_load(request.source, *strategies, resolvers=_resolvers(request), **given)


def verify(
    target: PathOrUrl, *, progress: Progress | None = None, **options: Unpack[VerifyOptions]
) -> VerificationReport:
    """Check a converted checkpoint against its manifest; its `problems` are empty if all is right.

    Args:
        target: the directory that a conversion made.
    """
    request = _build(VerificationRequest, verify, options, target=target)
    names = request.storage, request.source_storage, request.decrypt_key, request.source_decrypt_key
    with published.resources_to_verify(request, resolvers_for(*names)):
        return published.verify_target(request.target, request.level, LoggedProgress(progress))


def diff(
    a: PathOrUrl,
    b: PathOrUrl,
    *,
    strategy_a: PathOrUrl | None = None,
    strategy_b: PathOrUrl | None = None,
    progress: Progress | None = None,
    **options: Unpack[DiffOptions],
) -> ComparisonReport:
    """Compare two checkpoints, whatever their strategies and formats; `same` of the report is the answer.

    Args:
        a: a checkpoint, or a JSON file of fingerprints.
        b: the other one.
        strategy_a: how A is cut; None: what reshard recorded, or not at all.
        strategy_b: how B is cut.
    """
    strategies = {"strategy_a": strategy_a, "strategy_b": strategy_b}
    request = _build(ComparisonRequest, diff, options, a=a, b=b, **strategies)
    names = request.storage_a, request.storage_b, request.decrypt_key_a, request.decrypt_key_b
    return compare.compare_checkpoints(request, LoggedProgress(progress), resolvers_for(*names))


def fingerprint(
    checkpoint: PathOrUrl,
    *,
    source_strategy: PathOrUrl | None = None,
    progress: Progress | None = None,
    **options: Unpack[FingerprintOptions],
) -> ModelFingerprint:
    """Return a fingerprint of each parameter and of the model; equal models have equal ones, however they are cut."""
    named = {"source": checkpoint, "source_strategy": source_strategy}
    request = _build(FingerprintRequest, fingerprint, options, **named)
    return compare.fingerprint_checkpoint(request, LoggedProgress(progress), _resolvers(request))


def recover(
    source: PathOrUrl,
    *,
    source_strategy: PathOrUrl | None = None,
    group_info: Sequence[PathOrUrl] = (),
    **options: Unpack[RecoverOptions],
) -> RecoveryReport:
    """Tell whether a damaged checkpoint can be recovered, and from which ranks; `convert(…, recover=True)` does it.

    Args:
        group_info: files that tell which ranks hold the same, if there is no strategy.
    """
    named = {"source": source, "source_strategy": source_strategy, "recover": True}
    request = _build(SourceRequest, recover, options, **named)
    with _resources(request):
        return recovery.assess_recovery(request, [_text(url) for url in group_info])


def doctor(
    source: PathOrUrl,
    *,
    source_strategy: PathOrUrl | None = None,
    like: PathOrUrl = "",
    preset: PathOrUrl = "",
    switch: Sequence[str] = (),
    training_config: PathOrUrl = "",
    allow_model: Sequence[str] = (),
    **options: Unpack[DoctorOptions],
) -> Diagnosis:
    """Check that a strategy belongs to a checkpoint; `fits` is the answer, `findings` are the differences.

    Without a strategy `fits` is None. `whole_shapes` says whether more than strategy and shards shows along which axes
    tensors were sharded.

    Args:
        like: a checkpoint of whole tensors, or a strategy in JSON, with whose shapes those of whole tensors are
            compared.
        preset: a model family whose names `like` has, and whose config.json gives shapes.
    """
    request = _build(SourceRequest, doctor, options, source=source, source_strategy=source_strategy)
    with _resources(request):
        return diagnosis.diagnose(
            request.source,
            request.source_strategy,
            step=request.step,
            source_prefix=request.source_prefix,
            root=request.root,
            integrated_save=request.integrated_save,
            like=_text(like),
            preset=_text(preset),
            switches=switch,
            training_config=_text(training_config),
            allowed_models=allow_model,
        )


@_checked
def join_parts(
    parts: Sequence[PathOrUrl],
    target: PathOrUrl,
    *,
    shared_parameters: int | str = "fail",
    storage: str = "",
    progress: Progress | None = None,
) -> JoinReport:
    """Make one checkpoint of the parts that pipeline stages were converted to one by one.

    Args:
        parts: the directories that conversions of single stages made.
        target: the directory to make.
        shared_parameters: `first`, `fail` or the number of the stage whose copy of a tied parameter is taken.

    Raises:
        VerificationError: a copied file differs from its part's record.
    """
    if not parts or isinstance(parts, str):
        raise InputError("parts: must be a list of one or more directories")
    urls = [_text(part) for part in parts]
    with _place(_text(target), *urls, storage=storage):
        return join_stages.join_parts(
            urls, _text(target), LoggedProgress(progress), shared_parameters=str(shared_parameters)
        )


@_checked
def clean(
    target: PathOrUrl,
    *,
    remove: bool = False,
    storage: str = "",
    decrypt_key: str = "",
    decrypt_mode: EncryptionModeName = EncryptionMode.AES_GCM,
    progress: Progress | None = None,
) -> CleanReport:
    """Find unfinished work at a target; with `remove`, remove it.

    Args:
        target: the target of conversions.
        remove: remove what is found; False: only report it.
        storage: name of its storage options: `env:NAME`, `file:PATH` or `block:NAME`.
        decrypt_key: name of the key of an unfinished encrypted conversion on an object store, whose records are sealed.
        decrypt_mode: how it is encrypted.
        progress: as for `convert`.

    Raises:
        InputError: nothing at all is at the target, a living run works on it, or what is there may be a checkpoint or
            holds foreign files.
        StorageError: the storage cannot be read, or something cannot be removed.
    """
    url = _text(target)
    with (
        _place(url, storage=storage, decrypt_key=decrypt_key, decrypt_mode=decrypt_mode),
        reporting_to(LoggedProgress(progress)),
    ):
        return cleaning.clean(url, remove=remove)


def presets() -> PresetList:
    """Describe the presets: the model families whose names and layouts are known, for `preset=` of other functions."""
    return list_presets()


@_checked
def merge_strategy(source: PathOrUrl, target: PathOrUrl, *, overwrite: bool = False, storage: str = "") -> MergeReport:
    """Merge the strategy files of a job's ranks into one file: JSON if its name ends in `.json`, else protobuf.

    Args:
        source: where the ranks left their strategy files; or a strategy file, to be written in the other format.
        target: the file to write.
    """
    named = {"source": _text(source), "target": _text(target), "overwrite": overwrite, "storage": storage}
    request = build_options(MergeRequest, str, **named)
    with _place(request.source, request.target, storage=request.storage):
        return merge_files(request.source, request.target, request.overwrite)


@_checked
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
    cuts: Sequence[str] = (),
    places: Sequence[str] = (),
    checkpoint: PathOrUrl | None = None,
    integrated_save: IntegratedSaveName = IntegratedSave.AUTO,
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
        integrated_save: whether every rank of it holds whole tensors.
    """
    urls = {"target": _text(target), "like": _text(like), "checkpoint": _text(checkpoint)}
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
    with _place(*urls.values(), storage=storage, decrypt_key=decrypt_key, decrypt_mode=decrypt_mode):
        return make_strategy_file(
            urls["like"],
            urls["target"],
            job,
            checkpoint=urls["checkpoint"],
            integrated_save=checked.integrated_save,
            overwrite=overwrite,
        )


@_checked
def inspect(
    what: PathOrUrl,
    *,
    storage: str = "",
    decrypt_key: str = "",
    decrypt_mode: EncryptionModeName = EncryptionMode.AES_GCM,
) -> dict[str, Any]:
    """Return what is in a checkpoint file, a checkpoint or a strategy, as a document; its `kind` says which it is.

    Args:
        what: a file, a directory, or a pattern with `{rank}`.
    """
    url = _text(what)
    with _place(url, storage=storage, decrypt_key=decrypt_key, decrypt_mode=decrypt_mode):
        return describe(url)


@_checked
def read_manifest(target: PathOrUrl, *, storage: str = "") -> Manifest | None:
    """Return the manifest of a converted checkpoint; None if there is no finished conversion.

    Args:
        target: the directory that a conversion made.
    """
    url = _text(target)
    with _place(url, storage=storage):
        return manifests.read_manifest(parse_url(url))


def _conversion(
    function: Callable[..., object],
    source: PathOrUrl,
    target: PathOrUrl | None,
    source_strategy: PathOrUrl | None,
    target_strategy: PathOrUrl | None,
    options: Mapping[str, object],
) -> ConversionRequest:
    strategies = {"source_strategy": source_strategy, "target_strategy": target_strategy}
    if target is None:
        return _build(PlanRequest, function, options, source=source, **strategies)
    return _build(ConversionRequest, function, options, source=source, target=target, **strategies)


def _build(
    model: type[_Request], function: Callable[..., object], options: Mapping[str, object], **named: object
) -> _Request:
    """Build a request of the arguments of a call to `function`, as `_check_known` takes it."""
    _check_known(function, options)
    return build_options(model, str, **{name: _text(value) for name, value in (named | dict(options)).items()})


def _check_known(function: Callable[..., object], options: Mapping[str, object]) -> None:
    """Refuse options that a function does not have; its `**options` are those of a TypedDict."""
    keywords = dict(signature(function).parameters)
    [kind] = get_args(keywords.pop("options").annotation)
    unknown = [name for name in options if name not in kind.__annotations__]
    if unknown:
        known = [*keywords, *kind.__annotations__]
        raise InputError("\n".join(f"{name}: {_advice(name, known)}" for name in unknown))


def _advice(name: str, known: Collection[str]) -> str:
    if name in _OF_FLOWS:
        return "is for flows: give a ConversionRequest to reshard.flows.convert_checkpoint"
    return f"there is no such option{did_you_mean(name, known)}"


def _text(value: Any) -> Any:
    """The text of a path; an empty one for None, as requests have it."""
    if value is None:
        return ""
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _build_job(**fields: object) -> TargetJob:
    try:
        kinds: dict[str, Any] = {name: (kind, ...) for name, kind in TargetJob.__annotations__.items()}
        return TargetJob(**dict(create_model("TargetJob", **kinds)(**fields)))
    except ValidationError as error:
        raise InputError(describe_validation(error, str)) from error


def _resolvers(request: Naming) -> Mapping[str, Any]:
    return resolvers_for(*names_in(request))


def _resources(request: Naming) -> AbstractContextManager[None]:
    return resources_of(request, _resolvers(request))


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
