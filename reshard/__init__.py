"""Reshards MindSpore checkpoints trained on M devices to run on N.

    import reshard

    report = reshard.convert("checkpoint", "out", source_strategy="strategy", target_strategy="other.ckpt")

Each function does what the command of its name does, and each name is loaded when it is first used.
`reshard.errors` has what they raise, `reshard.options` the types of what they take, `reshard.mindspore` MindSpore's
own names, `reshard.flows` the same work as Prefect flows.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reshard import errors
    from reshard.api import (
        Attestation,
        Checkpoint,
        CleanReport,
        ComparisonReport,
        ComparisonRequest,
        ConversionReport,
        ConversionRequest,
        Diagnosis,
        History,
        HistoryEntry,
        JoinReport,
        LatestConversionRequest,
        LatestReport,
        LoadPlan,
        MakeReport,
        Manifest,
        MergeReport,
        MergeRequest,
        ModelFingerprint,
        PlanSummary,
        PresetList,
        Progress,
        RankTensors,
        RecoveryReport,
        ScanReport,
        SigningReport,
        Tensor,
        VerificationReport,
        VerificationRequest,
        attest,
        clean,
        convert,
        convert_latest,
        diff,
        doctor,
        fingerprint,
        history,
        inspect,
        join_parts,
        load_rank,
        make_strategy,
        merge_strategy,
        open,  # noqa: A004
        plan,
        plan_load,
        presets,
        read_manifest,
        recover,
        scan,
        sign,
        to_thread,
        verify,
    )

__version__ = "0.1.0"

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
    "__version__",
    "attest",
    "clean",
    "convert",
    "convert_latest",
    "diff",
    "doctor",
    "errors",
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


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = import_module("reshard.errors") if name == "errors" else getattr(import_module("reshard.api"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
