"""Options of a scheduled conversion of the newest step that training has saved."""

from pydantic import Field, ValidationInfo, field_validator

from reshard.core.checkpoint.target_layout import TargetLayout
from reshard.core.errors import InputError
from reshard.core.layouts.checkpoint2.names import parse_iteration
from reshard.core.options.fields import RequiredUrl
from reshard.core.request.conversion import ConversionOptions, ConversionRequest


class LatestConversionRequest(ConversionOptions):
    """Convert the newest step that training has saved completely, if it is not converted yet."""

    source: RequiredUrl = Field(
        description="Where training saves: a directory with rank_0, rank_1, … in it, or a pattern with {rank}. A path "
        "or any URL that fsspec knows, without a password."
    )
    target: RequiredUrl = Field(
        description="The directory for the converted checkpoints: step 10_5 becomes TARGET/10_5; with --layout "
        "checkpoint2, iteration 40 becomes TARGET/iteration_00000040."
    )
    settle_seconds: int = Field(
        default=60,
        title="Settling time",
        ge=0,
        description="Seconds without a change to any of its files after which a step is complete.",
    )
    patience_seconds: int = Field(
        default=600,
        title="Patience",
        ge=0,
        validate_default=True,
        description="An incomplete newer step is awaited while it keeps changing; seconds without a change after "
        "which it is skipped.",
    )
    keep_checkpoint_max: int = Field(
        default=0,
        title="Keep at most",
        ge=0,
        description="How many conversions of this source to keep in the target, the newest; older ones are removed "
        "even while somebody reads them. 0: all.",
    )
    keep_checkpoint_per_n_minutes: int = Field(
        default=0,
        title="Keep one per so many minutes",
        ge=0,
        description="Of conversions that were made within so many minutes keep one, and always the newest. Counts "
        "only if 'keep at most' is 0. 0: keep all.",
    )
    dry_run: bool = Field(default=False, description="Report what would be done; write, remove and wait for nothing.")

    @field_validator("patience_seconds")
    @classmethod
    def _check_patience(cls, value: int, info: ValidationInfo) -> int:
        settle_seconds = info.data.get("settle_seconds", 0)
        if value < settle_seconds:
            raise ValueError(f"must be at least the settling time, {settle_seconds}: no step could be awaited")
        return value

    @field_validator("layout")
    @classmethod
    def _check_names_all_iterations(cls, value: TargetLayout, info: ValidationInfo) -> TargetLayout:
        name = str(info.data.get("target", "")).rstrip("/").rpartition("/")[2]
        if value is TargetLayout.CHECKPOINT2 and parse_iteration(name) is not None:
            raise ValueError(f"the target {name!r} is named after one iteration: name the directory of all")
        return value

    def conversion_of(self, step: str) -> ConversionRequest:
        """Return the conversion of one step, into its own directory."""
        shared = {name: getattr(self, name) for name in ConversionOptions.model_fields}
        if self.layout is TargetLayout.CHECKPOINT2:
            if not step.isdigit():
                raise InputError(
                    f"step {step} of {self.source} has no number of an iteration, which a Checkpoint 2.0 has: convert "
                    "it by reshard convert --iteration N"
                )
            return ConversionRequest(**shared | {"step": step, "iteration": step})
        return ConversionRequest(**shared | {"step": step, "target": f"{self.target.rstrip('/')}/{step}"})

    def directory_of(self, step: str) -> str:
        """Return the URL of the directory with the converted files of a step."""
        return self.conversion_of(step).target_directory
