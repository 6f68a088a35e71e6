"""Options of a scheduled conversion of the newest step that training has saved."""

from typing import Annotated

from pydantic import Field, ValidationInfo, field_validator

from reshard.core.layouts.all_options import layout_options_of
from reshard.core.layouts.registry import TargetLayout
from reshard.core.options.fields import Metavar, RequiredUrl
from reshard.core.request.conversion import ConversionOptions, ConversionRequest

_SECONDS = Metavar("SECONDS")


class LatestConversionRequest(ConversionOptions):
    """Convert the newest step that training has saved completely, if it is not converted yet."""

    source: RequiredUrl = Field(
        description="Where training saves: a directory with rank_0, rank_1, … in it, or a pattern with {rank}. A path "
        "or any URL that fsspec knows, without a password."
    )
    target: RequiredUrl = Field(
        description="The directory for the converted checkpoints: step 10_5 becomes TARGET/10_5; in the layout "
        "checkpoint2, iteration 40 becomes TARGET/iteration_00000040."
    )
    settle_seconds: Annotated[int, _SECONDS] = Field(
        default=60,
        title="Settling time",
        ge=0,
        description="Seconds without a change to any of its files after which a step is complete.",
    )
    patience_seconds: Annotated[int, _SECONDS] = Field(
        default=600,
        title="Patience",
        ge=0,
        validate_default=True,
        description="An incomplete newer step is awaited while it keeps changing; seconds without a change after "
        "which it is skipped.",
    )
    keep_checkpoint_max: Annotated[int, Metavar("N")] = Field(
        default=0,
        title="Keep at most",
        ge=0,
        description="How many conversions of this source to keep in the target, the newest; older ones are removed "
        "even while somebody reads them. 0: all.",
    )
    keep_checkpoint_per_n_minutes: Annotated[int, Metavar("MINUTES")] = Field(
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
    def _check_holds_all_steps(cls, value: TargetLayout, info: ValidationInfo) -> TargetLayout:
        layout_options_of(value).check_for_all_steps(str(info.data.get("target", "")))
        return value

    def conversion_of(self, step: str) -> ConversionRequest:
        """Return the conversion of one step, into its own directory."""
        shared = {name: getattr(self, name) for name in ConversionOptions.model_fields}
        own = self.layout_options.options_of_step(self.target, self.source, step)
        return ConversionRequest(**shared | {"step": step} | own)

    def directory_of(self, step: str) -> str:
        """Return the URL of the directory with the converted files of a step."""
        return self.conversion_of(step).target_directory
