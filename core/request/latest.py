"""What a user may ask of a scheduled conversion: of the newest step that training has saved."""

from typing import Annotated

from pydantic import Field, ValidationInfo, field_validator

from reshard.core.request.conversion import WITHOUT_CREDENTIALS, ConversionOptions, ConversionRequest


class LatestConversionRequest(ConversionOptions):
    """Convert the newest step that training has saved completely, if it is not converted yet."""

    source: Annotated[
        str,
        Field(
            title="Source",
            min_length=1,
            description="Where training saves: a directory with rank_0, rank_1, … in it, or a pattern with {rank}. "
            "A path or any URL that fsspec knows, without a password.",
            json_schema_extra=WITHOUT_CREDENTIALS,
        ),
    ]
    target: Annotated[
        str,
        Field(
            title="Target",
            min_length=1,
            description="The directory for the converted checkpoints: step 10_5 becomes TARGET/10_5.",
            json_schema_extra=WITHOUT_CREDENTIALS,
        ),
    ]
    settle_seconds: Annotated[
        int,
        Field(
            title="Settling time",
            ge=0,
            description="A step is complete when none of its files has changed for so many seconds.",
        ),
    ] = 60
    patience_seconds: Annotated[
        int,
        Field(
            title="Patience",
            ge=0,
            validate_default=True,
            description="A newer step that is not complete is waited for while it keeps changing; it is passed over "
            "when nothing of it has changed for so many seconds.",
        ),
    ] = 600
    keep_checkpoint_max: Annotated[
        int,
        Field(
            title="Keep at most",
            ge=0,
            description="How many conversions of this source stay in the target, the newest; older ones are removed, "
            "whether somebody is reading them or not. 0: all.",
        ),
    ] = 0
    keep_checkpoint_per_n_minutes: Annotated[
        int,
        Field(
            title="Keep one per so many minutes",
            ge=0,
            description="Of conversions that were made within so many minutes one stays, and always the newest. Counts "
            "only if 'keep at most' is 0. 0: all stay.",
        ),
    ] = 0
    dry_run: Annotated[
        bool,
        Field(title="Dry run", description="Say what would be done; write, remove and wait for nothing."),
    ] = False

    @field_validator("patience_seconds")
    @classmethod
    def _check_patience(cls, value: int, info: ValidationInfo) -> int:
        settle_seconds = info.data.get("settle_seconds", 0)
        if value < settle_seconds:
            raise ValueError(f"must be at least the settling time, {settle_seconds}: no step could be waited for")
        return value

    def conversion_of(self, step: str) -> ConversionRequest:
        """The conversion of one step, into its own directory."""
        shared = {name: getattr(self, name) for name in ConversionOptions.model_fields}
        return ConversionRequest(**shared | {"step": step, "target": f"{self.target.rstrip('/')}/{step}"})
