"""Options of reading a checkpoint: as a conversion's source, or as one side of a comparison."""

from typing import Annotated, Self

from pydantic import Field, field_validator

from reshard.core.changes.changes import Selection
from reshard.core.changes.option_types import ALLOW_MODEL_DESCRIPTION, AllowedModels, Preset, Switches
from reshard.core.options.fields import MemoryLimit, Metavar, Patterns, Url, parse_ranks
from reshard.core.options.validation import only_with
from reshard.core.request.conversion import ConversionOptions
from reshard.core.request.reading import FileChoice, SourceOptions, check_recovers
from reshard.core.strategy.integrated_save import IntegratedSave

DIAGNOSIS_OPTIONS = (
    *("auto_strategy", "step", "source_prefix", "root", "integrated_save"),
    *("source_storage", "decrypt_key", "decrypt_mode"),
)
"""Options of `doctor`, which checks a strategy against a source."""
RECOVERY_OPTIONS = (
    *("source_strategy", "auto_strategy", "source_storage", "integrated_save", "trust_strategy"),
    *("step", "source_prefix", "workers"),
    *("check_crc", "allow_missing", "decrypt_key", "decrypt_mode", "fault_ranks"),
)
"""Options of `recover`, which assesses a damaged source."""
FINGERPRINT_OPTIONS = (
    *("source_strategy", "auto_strategy", "integrated_save", "trust_strategy", "step", "source_prefix", "root"),
    *("select", "include", "exclude"),
    *("decrypt_key", "decrypt_mode", "source_storage", "workers", "memory_limit", "bandwidth_limit"),
)
"""Options of `fingerprint`, in the order of the command's help."""
OPEN_OPTIONS = (
    *(
        "auto_strategy",
        "step",
        "root",
        "source_prefix",
        "integrated_save",
        "trust_strategy",
        "recover",
        "fault_ranks",
        "check_crc",
    ),
    *("decrypt_key", "decrypt_mode", "workers", "memory_limit", "bandwidth_limit"),
)
"""Options of `open`, which reads tensors one by one."""

INSPECTION_OPTIONS = (
    *("source_strategy", "auto_strategy", "integrated_save", "trust_strategy", "step", "source_prefix", "root"),
    *("workers", "memory_limit", "bandwidth_limit"),
)
"""Options of `inspect`, where it reads parameters."""


class SourceRequest(FileChoice, SourceOptions):
    """Open a checkpoint: which one, by which strategy, with which checks."""

    @classmethod
    def of(cls, request: ConversionOptions) -> Self:
        """Return the options of a conversion that are about its source."""
        given = request.model_dump(include=set(cls.model_fields))
        return cls.model_validate(given)

    @property
    def assumed_integrated_save(self) -> IntegratedSave:
        """`integrated_save`, or NO for a source read by its own records: reshard writes slices."""
        is_own = not self.source_strategy and self.integrated_save is IntegratedSave.AUTO
        return IntegratedSave.NO if is_own else self.integrated_save

    @property
    def faulty(self) -> tuple[int, ...]:
        """Ranks whose files to ignore."""
        return parse_ranks(self.fault_ranks) if self.recover else ()


class DiagnosisRequest(SourceRequest):
    """Check whether a strategy belongs to a checkpoint, perhaps with a model whose whole shapes are known."""

    like: Url = Field(
        default="",
        description="Compare the shapes of whole tensors with those of this model: a checkpoint of whole tensors, a "
        "Hugging Face directory, a DCP checkpoint, a Checkpoint 2.0, or a strategy in JSON.",
    )
    preset: Preset = Field(
        default="",
        description="The model's family, if 'like' has Hugging Face's names; its config.json gives the shapes.",
    )
    switch: Switches = Field(
        default=[], description="NAME=VALUE, a fact that the preset needs and the checkpoint does not show."
    )
    training_config: Url = Field(default="", description="The training's YAML, from which the preset reads such facts.")
    allow_model: AllowedModels = Field(default=[], description=ALLOW_MODEL_DESCRIPTION)

    _check_of_preset = field_validator("switch", "training_config", "allow_model")(only_with("preset"))


class FingerprintRequest(SourceRequest):
    """Fingerprint a checkpoint: which one, and which of its parameters."""

    check_crc: bool = False
    select: Selection = Field(
        default=Selection.ALL,
        description="weights-only: without optimizer moments, gradient accumulators, loss scale and other training "
        "state.",
    )
    include: Patterns = Field(default=[], description="Patterns (model.layers.*) of its parameters. Empty: all.")
    exclude: Patterns = Field(default=[], description="Patterns of parameters to leave out.")


class OpenRequest(SourceRequest):
    """Open a checkpoint to read its tensors one by one: a CRC would be of whole files."""

    workers: Annotated[int, Metavar("N")] = Field(
        default=0, ge=0, le=1024, description="Number of threads that read headers. 0: one per core."
    )
    memory_limit: MemoryLimit = Field(
        default="2GiB",
        description="Memory for the buffers of each thread that reads: 2GiB, 512MiB; arrays are not counted.",
    )
    check_crc: bool = Field(default=False, description="Check the CRC of files that carry one: reads them whole.")

    _check_fault_ranks = field_validator("fault_ranks")(check_recovers)
