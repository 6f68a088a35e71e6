"""Options of a comparison of two checkpoints."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from reshard.core.request.changes import Selection
from reshard.core.request.conversion import IntegratedSave
from reshard.core.request.fields import KeyName, Patterns, RequiredUrl, Step, StorageName, Url, with_key
from reshard.core.request.source import FingerprintRequest
from reshard.core.request.validation import build_options
from reshard.core.runtime.keys import EncryptionMode


class ComparisonRequest(BaseModel):
    """Compare two checkpoints, whatever their strategies and formats: are they the same model?"""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    a: Annotated[
        RequiredUrl,
        Field(
            title="A",
            description="A checkpoint: a directory with rank_0, rank_1, … in it, a pattern with {rank}, or one file; "
            "or the output of 'reshard fingerprint --json'. A path or any URL that fsspec knows, without a password.",
        ),
    ]
    b: Annotated[RequiredUrl, Field(title="B", description="The other checkpoint, in the same forms.")]
    strategy_a: Annotated[
        Url,
        Field(
            title="Strategy of A",
            description="How A is sharded: a strategy file, or a directory of the ranks' strategy files. Empty: by its "
            "own records if reshard made it, else not at all.",
        ),
    ] = ""
    strategy_b: Annotated[Url, Field(title="Strategy of B", description="How B is sharded.")] = ""
    step_a: Annotated[
        Step,
        Field(
            title="Step of A",
            description="Epoch and step, as in its file names: 10_5. Empty: the newest that every rank has.",
        ),
    ] = ""
    step_b: Annotated[Step, Field(title="Step of B", description="Epoch and step of B.")] = ""
    integrated_save_a: Annotated[
        IntegratedSave,
        Field(
            title="Integrated save of A",
            description="yes: every rank of A holds whole tensors (integrated_save), whatever its strategy shards. no: "
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
            description="weights-only: do not compare optimizer moments, gradient accumulators, loss scale and other "
            "training state.",
        ),
    ] = Selection.ALL
    include: Annotated[
        Patterns, Field(title="Include", description="Patterns (model.layers.*) of parameters to compare. Empty: all.")
    ] = []
    exclude: Annotated[Patterns, Field(title="Exclude", description="Patterns of parameters to ignore.")] = []
    ignore_dtype: Annotated[
        bool,
        Field(
            title="Ignore dtype",
            description="Compare floating-point parameters of different dtypes after casting the wider dtype to the "
            "other.",
        ),
    ] = False
    decrypt_key_a: Annotated[KeyName, Field(title="Decryption key of A")] = ""
    decrypt_mode_a: Annotated[
        EncryptionMode,
        Field(title="Decryption mode of A", description="How A is encrypted, if it is."),
        with_key("decrypt_key_a"),
    ] = EncryptionMode.AES_GCM
    decrypt_key_b: Annotated[KeyName, Field(title="Decryption key of B")] = ""
    decrypt_mode_b: Annotated[
        EncryptionMode,
        Field(title="Decryption mode of B", description="How B is encrypted, if it is."),
        with_key("decrypt_key_b"),
    ] = EncryptionMode.AES_GCM
    storage_a: Annotated[StorageName, Field(title="Storage of A")] = ""
    storage_b: Annotated[StorageName, Field(title="Storage of B")] = ""
    workers: Annotated[int, Field(title="Workers", ge=0, le=1024, description="Threads. 0: one for each core.")] = 0
    memory_limit: Annotated[
        str,
        Field(
            title="Memory limit",
            description="Memory for the buffers of all workers: 2GiB, 512MiB. Less memory, fewer workers at once.",
        ),
    ] = "2GiB"

    def side(self, letter: Literal["a", "b"]) -> FingerprintRequest:
        """Return one side's options.

        Raises:
            InputError: options are wrong.
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
    """Build the request for a comparison from loose options.

    Raises:
        InputError: options are wrong; the message names each.
    """
    request = build_options(ComparisonRequest, _option_of, **options)
    request.side("a")  # which checks the options that both sides share
    return request


def _option_of(name: str) -> str:
    return name.upper() if name in ("a", "b") else "--" + name.replace("_", "-")
