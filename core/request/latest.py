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
        "or any URL that fsspec supports, without a password."
    )
    target: RequiredUrl = Field(
        description="The directory for converted checkpoints: step 10_5 becomes TARGET/10_5; with the layout "
        "checkpoint2, iteration 40 becomes TARGET/iteration_00000040."
    )
    settle_seconds: Annotated[int, _SECONDS] = Field(
        default=60,
        title="Settling time",
        ge=0,
        description="A step is complete once none of its files has changed for this many seconds.",
    )
    patience_seconds: Annotated[int, _SECONDS] = Field(
        default=600,
        title="Patience",
        ge=0,
        validate_default=True,
        description="Wait for a newer, incomplete step as long as it keeps changing; skip it after this many seconds "
        "without a change.",
    )
    keep_checkpoint_max: Annotated[int, Metavar("N")] = Field(
        default=0,
        title="Keep at most",
        ge=0,
        description="Keep this many conversions of this source in the target, the newest ones; older ones are removed, "
        "even while somebody reads them. 0: keep all.",
    )
    keep_checkpoint_per_n_minutes: Annotated[int, Metavar("MINUTES")] = Field(
        default=0,
        title="Keep one per so many minutes",
        ge=0,
        description="Keep one conversion per this many minutes, and always the newest. Ignored if a maximum number of "
        "conversions is set. 0: keep all.",
    )
    dry_run: bool = Field(default=False, description="Report what would be done, without writing, removing or waiting.")

    @field_validator("patience_seconds")
    @classmethod
    def _check_patience(cls, value: int, info: ValidationInfo) -> int:
        settle_seconds = info.data.get("settle_seconds", 0)
        if value < settle_seconds:
            raise ValueError(f"must be at least the settling time, {settle_seconds}, or no step is ever waited for")
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
