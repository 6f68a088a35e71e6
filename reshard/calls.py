"""What the functions of `reshard.functions` do, with any options of theirs: `python -m docs.write_keywords` names them.

Signatures and docstrings are those that users see, but for `options`, which become the fields of a request.
"""

import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from pydantic import BaseModel

from reshard.arguments import built, texts_of
from reshard.core.conversion import convert as conversions
from reshard.core.conversion import latest, load, planning
from reshard.core.conversion import sign as signatures
from reshard.core.conversion.latest import LatestReport
from reshard.core.conversion.load import LoadPlan
from reshard.core.conversion.opened import Checkpoint, open_checkpoint
from reshard.core.conversion.report import ConversionReport, PlanSummary
from reshard.core.conversion.sign import SigningReport
from reshard.core.errors import InputError
from reshard.core.files.numpy_values import Value
from reshard.core.options.written import is_whole, plain
from reshard.core.request.comparison import ComparisonRequest
from reshard.core.request.conversion import ConversionRequest
from reshard.core.request.latest import LatestConversionRequest
from reshard.core.request.planning import PlanRequest
from reshard.core.request.resources import Naming, names_in, resources_of
from reshard.core.request.signing import SigningRequest
from reshard.core.request.source import DiagnosisRequest, FingerprintRequest, OpenRequest, SourceRequest
from reshard.core.request.verification import VerificationRequest
from reshard.core.runtime.progress import reporting_to
from reshard.core.source import diagnosis, recovery
from reshard.core.source.diagnosis_report import Diagnosis
from reshard.core.source.recovery import RecoveryReport
from reshard.core.text.options import source_options_as
from reshard.core.verification import compare, published
from reshard.core.verification import scan as scans
from reshard.core.verification.comparison_report import ComparisonReport
from reshard.core.verification.fingerprint_file import ModelFingerprint
from reshard.core.verification.report import VerificationReport
from reshard.core.verification.scan_report import ScanReport
from reshard.flows.blocks import resolvers_for
from reshard.listening import listening
from reshard.options import PathOrUrl
from reshard.progress_bars import Listener

_KEYWORDS = {"source_strategy": "strategy", "source_storage": "storage"}
"""What functions about one checkpoint call options of a source."""
_Request = TypeVar("_Request", bound=BaseModel)


def _one_checkpoint() -> AbstractContextManager[None]:
    return source_options_as(lambda name: _KEYWORDS.get(name, name))


def _of_one(
    model: type[_Request],
    checkpoint: PathOrUrl,
    strategy: PathOrUrl | None,
    storage: str,
    options: Mapping[str, object],
    *,
    argument: str = "source",
) -> _Request:
    """Build the request of a function about one checkpoint, which the function calls `argument`."""
    named = {"source": checkpoint, "source_strategy": strategy, "source_storage": storage}
    return built(model, {**named, **options}, {**_KEYWORDS, "source": argument})


def convert(
    source: PathOrUrl,
    target: PathOrUrl,
    *,
    source_strategy: PathOrUrl | None = None,
    target_strategy: PathOrUrl | None = None,
    progress: Listener | None = None,
    cancel: threading.Event | None = None,
    **options: object,
) -> ConversionReport:
    """Convert a checkpoint to another sharding strategy; resume what an interrupted run of the same options began.

    Args:
        source: the checkpoint: a directory, a pattern with `{rank}`, one file, or a directory of whole tensors.
        target: the directory to make; it appears when all of it is written and checked.
        source_strategy: a strategy file, or a directory of the ranks' strategy files; None: what reshard recorded, or
            one rank with whole tensors.
        target_strategy: the same for the target; None: one rank with whole tensors.
        progress: True for a bar of tqdm, a bar or its class, such as `tqdm`, or a `Progress`.
        cancel: an event that ends the work with a StoppedError once it is set; the same call resumes.

    Raises:
        InputError: options, or the files they name, are wrong.
        VerificationError: a written file differs from what was to be written.
        ConversionError: it failed at run time: a storage after retries, a full disk, no memory.
    """
    strategies = {"source_strategy": source_strategy, "target_strategy": target_strategy}
    request = built(ConversionRequest, {"source": source, "target": target, **strategies, **options})
    with _resources(request), listening(progress, cancel, resumes=True) as listener:
        return conversions.convert(request, listener)


def convert_latest(
    source: PathOrUrl,
    target: PathOrUrl,
    *,
    source_strategy: PathOrUrl | None = None,
    target_strategy: PathOrUrl | None = None,
    progress: Listener | None = None,
    cancel: threading.Event | None = None,
    **options: object,
) -> LatestReport:
    """Convert the newest step that training has saved completely to `TARGET/{step}`, unless that is done already.

    Args:
        source: where training saves: a directory, or a pattern with `{rank}`.
        target: the directory of all conversions.
        source_strategy: a strategy file, or a directory of the ranks' strategy files; None: what reshard recorded, or
            one rank with whole tensors.
        target_strategy: the same for the target; None: one rank with whole tensors.
        progress: True for a bar of tqdm, a bar or its class, such as `tqdm`, or a `Progress`.
        cancel: an event that ends the work with a StoppedError once it is set; the same call resumes.

    Raises:
        InputError: options, or the files they name, are wrong.
        VerificationError: a written file differs from what was to be written.
        ConversionError: it failed at run time.
    """
    strategies = {"source_strategy": source_strategy, "target_strategy": target_strategy}
    request = built(LatestConversionRequest, {"source": source, "target": target, **strategies, **options})
    with _resources(request), listening(progress, cancel, resumes=True) as listener:
        return latest.convert_latest(request, listener)


def plan(
    source: PathOrUrl,
    target: PathOrUrl | None = None,
    *,
    source_strategy: PathOrUrl | None = None,
    target_strategy: PathOrUrl | None = None,
    progress: Listener | None = None,
    cancel: threading.Event | None = None,
    **options: object,
) -> PlanSummary:
    """Return what `convert` would read and write, rank by rank, in bytes; nothing is written.

    Args:
        source: the checkpoint: a directory, a pattern with `{rank}`, one file, or a directory of whole tensors.
        target: the directory that `convert` would make; None: anywhere.
        source_strategy: a strategy file, or a directory of the ranks' strategy files; None: what reshard recorded, or
            one rank with whole tensors.
        target_strategy: the same for the target; None: one rank with whole tensors.
        progress: True for a bar of tqdm, a bar or its class, such as `tqdm`, or a `Progress`.
        cancel: an event that ends the work with a StoppedError once it is set.

    Raises:
        InputError: options, or the files they name, are wrong.
        StorageError: a storage failed after retries.
    """
    model = PlanRequest if target is None else ConversionRequest
    strategies = {"source_strategy": source_strategy, "target_strategy": target_strategy}
    request = built(model, {"source": source, "target": target, **strategies, **options})
    with _resources(request), listening(progress, cancel) as listener, reporting_to(listener):
        return planning.describe_plan(request)[1]


def load_rank(
    source: PathOrUrl,
    rank: int = 0,
    *,
    source_strategy: PathOrUrl | None = None,
    target_strategy: PathOrUrl | None = None,
    names: Collection[str] | None = None,
    **options: object,
) -> Iterator[tuple[str, Value]]:
    """Yield the name and the array of each parameter of one target rank, straight from the source; nothing is written.

    Args:
        source: the checkpoint: a directory, a pattern with `{rank}`, one file, or a directory of whole tensors.
        rank: which of the target's ranks.
        source_strategy: a strategy file, or a directory of the ranks' strategy files; None: what reshard recorded, or
            one rank with whole tensors.
        target_strategy: how the parameters are to be sharded, in the same forms; None: one rank with whole tensors.
        names: names in the target of the parameters to load; None: all.

    Raises:
        InputError: options, or the files they name, are wrong; or the target has no such rank, or parameter.
        StorageError: a storage failed after retries.
    """
    number = plain(rank)
    if not is_whole(number):
        raise InputError(
            f"rank {rank!r}: must be the number of a target rank; strategies are named, 'source_strategy' and "
            "'target_strategy'"
        )
    if isinstance(names, str):
        raise InputError(f"names {names!r}: must be a list of names")
    loading = plan_load(source, source_strategy=source_strategy, target_strategy=target_strategy, **options)
    return loading.load(number, names)


def plan_load(
    source: PathOrUrl,
    *,
    source_strategy: PathOrUrl | None = None,
    target_strategy: PathOrUrl | None = None,
    **options: object,
) -> LoadPlan:
    """Look at a source once, to load any of the target's ranks from it, in any number of threads.

    With `check_crc`, files that have CRCs are read whole, those of DCP too, in each process that calls this.

    Args:
        source: the checkpoint: a directory, a pattern with `{rank}`, one file, or a directory of whole tensors.
        source_strategy: a strategy file, or a directory of the ranks' strategy files; None: what reshard recorded, or
            one rank with whole tensors.
        target_strategy: how the parameters are to be sharded, in the same forms; None: one rank with whole tensors.

    Raises:
        InputError: options, or the files they name, are wrong.
        StorageError: a storage failed after retries.
    """
    strategies = {"source_strategy": source_strategy, "target_strategy": target_strategy}
    request = built(PlanRequest, {"source": source, **strategies, **options})
    given = {name: getattr(request, name) for name in options}
    return load.plan_load(
        request.source, request.source_strategy, request.target_strategy, resolvers=_resolvers(request), **given
    )


def open(  # noqa: A001
    source: PathOrUrl,
    *,
    strategy: PathOrUrl | None = None,
    storage: str = "",
    **options: object,
) -> Checkpoint:
    """Open a checkpoint to read its tensors, or parts of them, one by one.

    Opening reads headers, and samples by which a strategy is checked.

    ::

        with reshard.open("checkpoint", strategy="strategy") as checkpoint:
            list(checkpoint)                        # the names of its tensors
            checkpoint["embedding.weight"].shape    # of the whole tensor
            checkpoint["embedding.weight"][0:10]    # reads these rows
            checkpoint.rank(3)                      # the same for what rank 3's file holds

    Args:
        source: the checkpoint, of any layout: a directory, a pattern with `{rank}`, or one file.
        strategy: how it is sharded: a strategy file, or a directory of the ranks' strategy files; None: by its own
            records or metadata, else not at all.
        storage: name of its storage options: `env:NAME`, `file:PATH` or `block:NAME`.

    Raises:
        InputError: options are wrong, or the checkpoint cannot be used.
        StorageError: it cannot be read.
    """
    with _one_checkpoint():
        request = _of_one(OpenRequest, source, strategy, storage, options)
        return open_checkpoint(request, _resolvers(request))


def verify(
    target: PathOrUrl,
    *,
    progress: Listener | None = None,
    cancel: threading.Event | None = None,
    **options: object,
) -> VerificationReport:
    """Check a converted checkpoint against its manifest; its `problems` are empty if all is right.

    Args:
        target: the directory that a conversion made.
        progress: True for a bar of tqdm, a bar or its class, such as `tqdm`, or a `Progress`.
        cancel: an event that ends the work with a StoppedError once it is set.

    Raises:
        InputError: options are wrong, or the target has no manifest that can be read.
        StorageError: a storage failed after retries.
    """
    request = built(VerificationRequest, {"target": target, **options})
    names = request.storage, request.source_storage, request.decrypt_key, request.source_decrypt_key
    resolvers = resolvers_for(*names, request.signed_by)
    with published.resources_to_verify(request, resolvers), listening(progress, cancel) as listener:
        return published.verify_requested(request, listener, resolvers)


def sign(
    target: PathOrUrl,
    *,
    progress: Listener | None = None,
    cancel: threading.Event | None = None,
    **options: object,
) -> SigningReport:
    """Sign a converted checkpoint that is there already; all of its files are checked first.

    Args:
        target: the directory that a conversion made.
        progress: True for a bar of tqdm, a bar or its class, such as `tqdm`, or a `Progress`.
        cancel: an event that ends the work with a StoppedError once it is set.

    Raises:
        InputError: options are wrong, the target has no manifest that can be read, or another key has signed it.
        VerificationError: a file is not as it was written.
        StorageError: a storage failed after retries.
    """
    request = built(SigningRequest, {"target": target, **options})
    resolvers = resolvers_for(request.key, request.passphrase, request.decrypt_key, request.storage)
    with signatures.resources_to_sign(request, resolvers), listening(progress, cancel) as listener:
        return signatures.sign(request, listener)


def diff(
    a: PathOrUrl,
    b: PathOrUrl,
    *,
    strategy_a: PathOrUrl | None = None,
    strategy_b: PathOrUrl | None = None,
    progress: Listener | None = None,
    cancel: threading.Event | None = None,
    **options: object,
) -> ComparisonReport:
    """Compare two checkpoints, whatever their strategies and formats; `same` of the report is the answer.

    Args:
        a: a checkpoint, or a JSON file of fingerprints.
        b: the other one.
        strategy_a: how A is sharded; None: what reshard recorded, or not at all.
        strategy_b: how B is sharded.
        progress: True for a bar of tqdm, a bar or its class, such as `tqdm`, or a `Progress`.
        cancel: an event that ends the work with a StoppedError once it is set.

    Raises:
        InputError: options, or the files they name, are wrong.
        StorageError: a storage failed after retries.
    """
    request = built(ComparisonRequest, {"a": a, "b": b, "strategy_a": strategy_a, "strategy_b": strategy_b, **options})
    names = request.storage_a, request.storage_b, request.decrypt_key_a, request.decrypt_key_b
    with listening(progress, cancel) as listener:
        return compare.compare_checkpoints(request, listener, resolvers_for(*names))


def fingerprint(
    checkpoint: PathOrUrl,
    *,
    strategy: PathOrUrl | None = None,
    storage: str = "",
    progress: Listener | None = None,
    cancel: threading.Event | None = None,
    **options: object,
) -> ModelFingerprint:
    """Return a fingerprint of each parameter and of the model; equal models have equal ones, however they are sharded.

    Args:
        checkpoint: a directory, a pattern with `{rank}`, one file, or a directory of whole tensors.
        strategy: how it is sharded: a strategy file, or a directory of the ranks' strategy files; None: what reshard
            recorded, or not at all.
        storage: name of its storage options: `env:NAME`, `file:PATH` or `block:NAME`.
        progress: True for a bar of tqdm, a bar or its class, such as `tqdm`, or a `Progress`.
        cancel: an event that ends the work with a StoppedError once it is set.

    Raises:
        InputError: options, or the files they name, are wrong.
        StorageError: a storage failed after retries.
    """
    with _one_checkpoint(), listening(progress, cancel) as listener:
        request = _of_one(FingerprintRequest, checkpoint, strategy, storage, options, argument="checkpoint")
        return compare.fingerprint_checkpoint(request, listener, _resolvers(request))


def scan(
    checkpoint: PathOrUrl,
    *,
    strategy: PathOrUrl | None = None,
    storage: str = "",
    progress: Listener | None = None,
    cancel: threading.Event | None = None,
    **options: object,
) -> ScanReport:
    """Look for NaN and Inf in all floating-point parameters of all files; `finite` of the report is the answer.

    Args:
        checkpoint: a directory, a pattern with `{rank}`, one file, or a directory of whole tensors.
        strategy: tells where in the whole tensors findings are; None: what reshard recorded, or not at all.
        storage: name of its storage options: `env:NAME`, `file:PATH` or `block:NAME`.
        progress: True for a bar of tqdm, a bar or its class, such as `tqdm`, or a `Progress`.
        cancel: an event that ends the work with a StoppedError once it is set.

    Raises:
        InputError: options, or the files they name, are wrong.
        StorageError: a storage failed after retries.
    """
    with _one_checkpoint(), listening(progress, cancel) as listener:
        request = _of_one(FingerprintRequest, checkpoint, strategy, storage, options, argument="checkpoint")
        return scans.scan_checkpoint(request, listener, _resolvers(request))


def recover(
    source: PathOrUrl,
    *,
    strategy: PathOrUrl | None = None,
    group_info: Sequence[PathOrUrl] = (),
    storage: str = "",
    progress: Listener | None = None,
    cancel: threading.Event | None = None,
    **options: object,
) -> RecoveryReport:
    """Tell whether a damaged checkpoint can be recovered, and from which ranks; `convert(…, recover=True)` does it.

    Args:
        source: the checkpoint: a directory, or a pattern with `{rank}`.
        strategy: how it is sharded: a strategy file, or a directory of the ranks' strategy files.
        group_info: files that tell which ranks hold the same, if there is no strategy.
        storage: name of the storage options of both: `env:NAME`, `file:PATH` or `block:NAME`.
        progress: True for a bar of tqdm, a bar or its class, such as `tqdm`, or a `Progress`.
        cancel: an event that ends the work with a StoppedError once it is set.

    Raises:
        InputError: options, or the files they name, are wrong.
        StorageError: a storage failed after retries.
    """
    with _one_checkpoint(), listening(progress, cancel) as listener, reporting_to(listener):
        request = _of_one(SourceRequest, source, strategy, storage, options | {"recover": True})
        with _resources(request):
            return recovery.assess_recovery(request, texts_of("group_info", group_info))


def doctor(
    source: PathOrUrl,
    *,
    strategy: PathOrUrl | None = None,
    storage: str = "",
    progress: Listener | None = None,
    cancel: threading.Event | None = None,
    **options: object,
) -> Diagnosis:
    """Check that a strategy belongs to a checkpoint; `fits` is the answer, `findings` are the differences.

    Without a strategy `fits` is None. `whole_shapes` says whether more than strategy and shards shows along which axes
    tensors were sharded.

    Args:
        source: the checkpoint: a directory, a pattern with `{rank}`, one file, or a directory of whole tensors.
        strategy: the strategy to check: a file, or a directory of the ranks' strategy files; None: what reshard
            recorded.
        storage: name of the storage options of both: `env:NAME`, `file:PATH` or `block:NAME`.
        progress: True for a bar of tqdm, a bar or its class, such as `tqdm`, or a `Progress`.
        cancel: an event that ends the work with a StoppedError once it is set.

    Raises:
        InputError: options are wrong, or source or strategy cannot be read at all.
        StorageError: a storage failed after retries.
    """
    with _one_checkpoint(), listening(progress, cancel) as listener, reporting_to(listener):
        request = _of_one(DiagnosisRequest, source, strategy, storage, options)
        with _resources(request):
            return diagnosis.diagnose(request)


def _resolvers(request: Naming) -> Mapping[str, Any]:
    return resolvers_for(*names_in(request))


def _resources(request: Naming) -> AbstractContextManager[None]:
    return resources_of(request, _resolvers(request))
