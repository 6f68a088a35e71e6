"""What a user may ask of a comparison of two checkpoints."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from reshard.core.request.changes import Selection
from reshard.core.request.conversion import (
    STEP_PATTERN,
    WITHOUT_CREDENTIALS,
    IntegratedSave,
    KeyName,
    StorageName,
    build_options,
    epoch_and_step,
    mode_with_key,
    without_credentials,
)
from reshard.core.request.source import FingerprintRequest
from reshard.core.runtime.keys import EncryptionMode

_Url = Annotated[str, Field(json_schema_extra=WITHOUT_CREDENTIALS)]
_Step = Annotated[str, Field(json_schema_extra=STEP_PATTERN)]


class ComparisonRequest(BaseModel):
    """Compare two checkpoints, whatever their strategies and formats: are they the same model?"""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    a: Annotated[
        _Url,
        Field(
            title="A",
            min_length=1,
            description="A checkpoint: a directory with rank_0, rank_1, … in it, a pattern with {rank}, or one file; "
            "or what 'reshard fingerprint --json' told of one. A path or any URL of fsspec's, without a password.",
        ),
    ]
    b: Annotated[_Url, Field(title="B", min_length=1, description="The other one, likewise.")]
    strategy_a: Annotated[
        _Url,
        Field(
            title="Strategy of A",
            description="How A is cut: a strategy file, or a directory of the ranks' strategy files. Empty: as its own "
            "records say if reshard made it, or else not cut.",
        ),
    ] = ""
    strategy_b: Annotated[_Url, Field(title="Strategy of B", description="How B is cut, likewise.")] = ""
    step_a: Annotated[
        _Step,
        Field(
            title="Step of A",
            description="Epoch and step, as in its file names: 10_5. Empty: the newest that every rank has.",
        ),
    ] = ""
    step_b: Annotated[_Step, Field(title="Step of B", description="Likewise.")] = ""
    integrated_save_a: Annotated[
        IntegratedSave,
        Field(
            title="Integrated save of A",
            description="yes: every rank of A holds whole tensors (integrated_save), whatever its strategy cuts. no: "
            "ranks hold slices, even if these are equal. auto: known shapes decide, else the strategy does; if "
            "contents look whole and no shape is known, refuse.",
        ),
    ] = IntegratedSave.AUTO
    integrated_save_b: Annotated[
        IntegratedSave, Field(title="Integrated save of B", description="The same for the ranks of B.")
    ] = IntegratedSave.AUTO
    select: Annotated[
        Selection,
        Field(
            title="Select",
            description="weights-only: do not compare optimizer moments, gradient accumulators, loss scale and what "
            "else only training needs.",
        ),
    ] = Selection.ALL
    include: Annotated[
        list[str], Field(title="Include", description="Patterns (model.layers.*) of parameters to compare. Empty: all.")
    ] = []
    exclude: Annotated[
        list[str], Field(title="Exclude", description="Patterns of parameters that are not compared.")
    ] = []
    ignore_dtype: Annotated[
        bool,
        Field(
            title="Ignore dtype",
            description="Count floating-point parameters as the same if they are equal when those of the wider dtype "
            "are cast to the other.",
        ),
    ] = False
    decrypt_key_a: Annotated[KeyName, Field(title="Decryption key of A")] = ""
    decrypt_mode_a: Annotated[
        EncryptionMode, Field(title="Decryption mode of A", description="How A is encrypted, if it is.")
    ] = EncryptionMode.AES_GCM
    decrypt_key_b: Annotated[KeyName, Field(title="Decryption key of B")] = ""
    decrypt_mode_b: Annotated[
        EncryptionMode, Field(title="Decryption mode of B", description="How B is encrypted, if it is.")
    ] = EncryptionMode.AES_GCM
    storage_a: Annotated[StorageName, Field(title="Storage of A")] = ""
    storage_b: Annotated[StorageName, Field(title="Storage of B")] = ""
    workers: Annotated[int, Field(title="Workers", ge=0, le=1024, description="Threads. 0: one for each core.")] = 0
    memory_limit: Annotated[
        str,
        Field(
            title="Memory limit",
            description="For the buffers of all workers together: 2GiB, 512MiB. With little of it fewer work at once.",
        ),
    ] = "2GiB"

    @field_validator("a", "b", "strategy_a", "strategy_b")
    @classmethod
    def _check_url(cls, value: str) -> str:
        return without_credentials(value)

    @field_validator("step_a", "step_b")
    @classmethod
    def _check_step(cls, value: str) -> str:
        return epoch_and_step(value)

    @field_validator("decrypt_mode_a", "decrypt_mode_b")
    @classmethod
    def _check_mode(cls, value: EncryptionMode, info: ValidationInfo) -> EncryptionMode:
        side = str(info.field_name)[-1]
        return mode_with_key(value, info.data.get(f"decrypt_key_{side}"), f"--decrypt-key-{side}")

    def side(self, letter: Literal["a", "b"]) -> FingerprintRequest:
        """The part of it that is about one side.

        Raises:
            InputError: it is wrong.
        """
        return build_options(
            FingerprintRequest,
            source=getattr(self, letter),
            source_strategy=getattr(self, f"strategy_{letter}"),
            source_storage=getattr(self, f"storage_{letter}"),
            step=getattr(self, f"step_{letter}"),
            integrated_save=getattr(self, f"integrated_save_{letter}"),
            decrypt_key=getattr(self, f"decrypt_key_{letter}"),
            decrypt_mode=getattr(self, f"decrypt_mode_{letter}"),
            select=self.select,
            include=self.include,
            exclude=self.exclude,
            workers=self.workers,
            memory_limit=self.memory_limit,
        )


def build_comparison(**options: object) -> ComparisonRequest:
    """The request for a comparison, from loose options.

    Raises:
        InputError: options are wrong; the message names each.
    """
    request = build_options(ComparisonRequest, _option_of, **options)
    request.side("a")  # what both have in common is checked there
    return request


def _option_of(name: str) -> str:
    return name.upper() if name in ("a", "b") else "--" + name.replace("_", "-")
