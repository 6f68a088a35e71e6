"""What a user may ask of a conversion: the one definition behind the command line, the flow's form and programs."""

import os
import re
from collections.abc import Callable
from enum import StrEnum
from fractions import Fraction
from typing import Annotated, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator
from pydantic.config import JsonDict

from reshard.core.errors import InputError
from reshard.core.request.changes import OverflowPolicy, Selection, parse_cast, parse_rename
from reshard.core.request.info_texts import InfoValue, parse_info
from reshard.core.runtime.keys import EncryptionMode
from reshard.core.runtime.named_values import KEY_ADVICE, NAME_ADVICE, is_name
from reshard.core.runtime.secrets import ADVICE, carries_credentials
from reshard.core.storage.unified_names import UnifiedNaming

_DECIMAL_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS = _DECIMAL_UNITS | {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
_SIZE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*$")
_RANGE = re.compile(r"^\s*(\d+)\s*(?:-\s*(\d+)\s*)?$")
_STEP = re.compile(r"([0-9]+_[0-9]+(_breakpoint)?)?")
SMALLEST_MEMORY_LIMIT_BYTES = 16 * 2**20
_DASK_SCHEDULER = re.compile(r"^(local|(tcp|tls|ucx)://[^/@\s]+:\d+)?$")
SHARED_PARAMETERS = re.compile(r"^(first|fail|[0-9]{1,9})$")
_HIGHEST_RANK = 1_000_000
_KEY_ADVICE = (
    "Where the key is kept: env:NAME, file:PATH or block:NAME. The key is the UTF-8 bytes of what stands there, unless "
    "that begins with hex: or base64:."
)


_NOT_OF_UNIFIED = {
    "prefix": "the files of a unified target have names of their own (--unified-naming): leave it out",
    "encrypt_key": "a unified target is .safetensors files, of which MindSpore knows no encrypted ones: name no key",
    "remove_redundancy": "a unified target has everything once: leave it out",
}


def _pattern(pattern: str) -> JsonDict:
    """Lets those who know a field only by its JSON schema, such as Prefect's forms, refuse what is plainly wrong.

    They show the pattern to the user, so it is short rather than exact: the validators below are exact.
    """
    return {"pattern": pattern}


_NO_PASSWORD = r"(?!.*://[^/@]*(:(?!\d+[/?#])|%3[Aa])[^@]*@)(?!.*(https?|HTTPS?|s3a?|obs|gs)://[^/?#]+@)"
_SECRET_FIELDS = (
    r"[\w.-]*([Tt]oken|TOKEN|[Ss]ignature|[Ss]ecret|[Pp]assword|[Cc]redential|([Aa]pi|[Aa]ccess|[Ss]ecret)[-_]?[Kk]ey)"
)
WITHOUT_CREDENTIALS = _pattern(rf"^{_NO_PASSWORD}(?!.*://.*[?&;#]({_SECRET_FIELDS}|([\w.-]*[-_.])?[Ss]ig)=)")
"""What is refused by its schema is not even stored."""
STEP_PATTERN = _pattern(r"^([0-9]+_[0-9]+(_breakpoint)?)?$")
_SIZE_PATTERN = _pattern(r"^ *[0-9.]+ *[KkMmGgTt]?[Ii]?[Bb]? *$")
STORAGE_NAME = _pattern(r"^((env|file|block):\S.*)?$")


class OutputFormat(StrEnum):
    """Kind of the target's files."""

    SAME = "same"
    CKPT = "ckpt"
    SAFETENSORS = "safetensors"


class VerifyLevel(StrEnum):
    """How closely the result is checked before it counts."""

    NONE = "none"
    STRUCTURE = "structure"
    CHECKSUM = "checksum"
    CONTENT = "content"

    @property
    def of_files(self) -> "VerifyLevel":
        """How closely files alone can be checked; contents are compared when all files are there."""
        return VerifyLevel.CHECKSUM if self is VerifyLevel.CONTENT else self

    def is_below(self, other: "VerifyLevel") -> bool:
        """Whether it looks less closely than `other`."""
        levels = list(VerifyLevel)
        return levels.index(self) < levels.index(other)


class TargetLayout(StrEnum):
    """What files the target is made of."""

    RANKS = "ranks"
    UNIFIED = "unified"


class IntegratedSave(StrEnum):
    """Whether every source rank holds whole tensors, whatever its strategy cuts: MindSpore's `integrated_save`."""

    AUTO = "auto"
    YES = "yes"
    NO = "no"


class UnmatchedPolicy(StrEnum):
    """What happens to parameters that the target's strategy has no place for."""

    DROP = "drop"
    FAIL = "fail"


def checked_prefix(prefix: str) -> str:
    """Checks the prefix of a target's file names.

    Raises:
        ValueError: the prefix would lead out of the rank's directory, or name no file.
    """
    if "/" in prefix or "\\" in prefix or prefix.startswith(".") or ".." in prefix or "\0" in prefix:
        raise ValueError("must be a plain name: no '/', no '..', no dot in front")
    return prefix


def checked_memory_limit(size: str) -> str:
    """Check a memory limit.

    Raises:
        ValueError: it is no size, or too small.
    """
    if parse_size(size) < SMALLEST_MEMORY_LIMIT_BYTES:
        raise ValueError("must be at least 16MiB")
    return size


def checked_patterns(patterns: list[str]) -> list[str]:
    """Check patterns of names.

    Raises:
        ValueError: one is empty.
    """
    if "" in patterns:
        raise ValueError("a pattern is empty")
    return patterns


def core_count() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0))


def without_credentials(url: str) -> str:
    """A URL as it is.

    Raises:
        ValueError: it carries a password: requests are stored and logged.
    """
    if carries_credentials(url):
        raise ValueError(ADVICE)
    return url


def epoch_and_step(step: str) -> str:
    """An epoch and a step, or nothing, as it is.

    Raises:
        ValueError: it is something else.
    """
    if not _STEP.fullmatch(step):
        raise ValueError("must be EPOCH_STEP, such as 10_5, or EPOCH_STEP_breakpoint")
    return step


def storage_name(name: str) -> str:
    """The name of storage options, or nothing, as it is.

    Raises:
        ValueError: it is no name, and may be a secret.
    """
    if name and not is_name(name):
        raise ValueError(NAME_ADVICE)
    return name


def key_name(name: str) -> str:
    """The name of a key, or nothing, as it is.

    Raises:
        ValueError: it is no name, and may be the key.
    """
    if name and not is_name(name):
        raise ValueError(KEY_ADVICE)
    return name


def mode_with_key(mode: EncryptionMode, key: str | None, option: str) -> EncryptionMode:
    """A mode as it is; `key` is the name of the key that goes with it, None if that is wrong, and told already.

    Raises:
        ValueError: there is no key, so that nothing would be encrypted, or decrypted, in that mode.
    """
    if key == "" and mode is not EncryptionMode.AES_GCM:
        raise ValueError(f"says how, and nothing says with which key: name it with {option}")
    return mode


StorageName = Annotated[
    str,
    AfterValidator(storage_name),
    Field(
        title="Storage",
        description="Where endpoint and keys are kept: env:NAME, file:PATH or block:NAME, which hold fsspec's storage "
        "options as a JSON object. Empty: as the environment says.",
        json_schema_extra=STORAGE_NAME,
    ),
]
"""The field of requests that are about one storage."""

KEY_DESCRIPTION = f"Of an encrypted checkpoint. {_KEY_ADVICE} Empty: it is not encrypted."
KeyName = Annotated[
    str,
    AfterValidator(key_name),
    Field(
        title="Decryption key",
        description=KEY_DESCRIPTION,
        json_schema_extra=STORAGE_NAME,
    ),
]
"""The field of requests that are about one checkpoint, which may be encrypted."""


class ConversionOptions(BaseModel):
    """What every conversion is told: of one checkpoint, or of the newest that training has left."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    source: Annotated[
        str,
        Field(
            title="Source",
            min_length=1,
            description="The checkpoint: a directory with rank_0, rank_1, … in it, a pattern with {rank}, one file, or "
            "a directory of whole tensors with an index, as Hugging Face's. A path or any URL that fsspec knows, "
            "without a password.",
            json_schema_extra=WITHOUT_CREDENTIALS,
        ),
    ]
    target: Annotated[
        str,
        Field(
            title="Target",
            min_length=1,
            description="The directory to be made: it will hold rank_0, rank_1, …; it appears when all of it is right.",
            json_schema_extra=WITHOUT_CREDENTIALS,
        ),
    ]
    source_strategy: Annotated[
        str,
        Field(
            title="Source strategy",
            description="How the source is cut: a strategy file, or a directory of the ranks' strategy files. "
            "Empty: as its own records say if reshard made it, or else not cut, one rank.",
            json_schema_extra=WITHOUT_CREDENTIALS,
        ),
    ] = ""
    target_strategy: Annotated[
        str,
        Field(
            title="Target strategy",
            description="How the target is to be cut, likewise. Empty: whole, one rank.",
            json_schema_extra=WITHOUT_CREDENTIALS,
        ),
    ] = ""
    source_storage: Annotated[
        str,
        Field(
            title="Source storage",
            description="Where endpoint and keys of the source, its strategy and the changes are kept: env:NAME, "
            "file:PATH or block:NAME, which hold fsspec's storage options as a JSON object. Empty: as the environment "
            "says.",
            json_schema_extra=STORAGE_NAME,
        ),
    ] = ""
    target_storage: Annotated[
        str,
        Field(
            title="Target storage",
            description="Where those of the target and its strategy are kept, likewise.",
            json_schema_extra=STORAGE_NAME,
        ),
    ] = ""
    format: Annotated[
        OutputFormat, Field(title="Format", description="Kind of the target's files; same: the source's.")
    ] = OutputFormat.SAME
    layout: Annotated[
        TargetLayout,
        Field(
            title="Layout",
            description="ranks: a file for each target rank. unified: whole tensors, each in one of a few .safetensors "
            "files with an index, as Hugging Face's loaders want them.",
        ),
    ] = TargetLayout.RANKS
    max_shard_size: Annotated[
        str,
        Field(
            title="Largest shard",
            description="Of a unified target: how large its files become at most, unless one tensor alone is larger: "
            "5GB, 512MiB.",
            json_schema_extra=_SIZE_PATTERN,
        ),
    ] = "5GB"
    unified_naming: Annotated[
        UnifiedNaming,
        Field(
            title="Naming",
            description="Of a unified target. huggingface: model-00001-of-00003.safetensors and "
            "model.safetensors.index.json. mindspore: part0.safetensors and param_name_map.json.",
        ),
    ] = UnifiedNaming.HUGGINGFACE
    select: Annotated[
        Selection,
        Field(
            title="Select",
            description="weights-only: without optimizer moments, gradient accumulators, loss scale and what else only "
            "training needs.",
        ),
    ] = Selection.ALL
    include: Annotated[
        list[str],
        Field(
            title="Include",
            description="Patterns (model.layers.*) of source parameters that are taken. Empty: all.",
        ),
    ] = []
    exclude: Annotated[
        list[str],
        Field(title="Exclude", description="Patterns of source parameters that are left out."),
    ] = []
    rename: Annotated[
        list[str],
        Field(
            title="Rename",
            description="OLD=NEW, a parameter's name and its new one; or re:PATTERN=NEW, a regular expression of whole "
            "names and what they become, with its groups (re:layers\\.(\\d+)\\.(.*)=h.\\1.\\2). Of several that fit "
            "the first counts.",
        ),
    ] = []
    cast: Annotated[
        list[str],
        Field(
            title="Cast",
            description="PATTERN=DTYPE (*=bfloat16): floating-point parameters that get another dtype, rounded to the "
            "nearest. Of several that fit the first counts.",
        ),
    ] = []
    cast_overflow: Annotated[
        OverflowPolicy,
        Field(
            title="Overflow",
            description="If a finite value becomes infinite in the dtype that it is cast to: fail, or allow it and say "
            "how many did.",
        ),
    ] = OverflowPolicy.FAIL
    transpose: Annotated[
        list[str],
        Field(
            title="Transpose",
            description="Patterns of parameters whose axes are reversed. Of several rules that fit the first counts.",
        ),
    ] = []
    changes: Annotated[
        str,
        Field(
            title="Changes",
            description="A YAML or JSON file that declares all these changes, and splits and joins of fused parameters "
            "(qkv, gate-up) as well. Options come before what it says.",
            json_schema_extra=WITHOUT_CREDENTIALS,
        ),
    ] = ""
    prefix: Annotated[
        str,
        Field(
            title="File prefix",
            description="Target files are rank_{r}/{prefix}{r}.{format}.",
            json_schema_extra=_pattern(r"^(?!\.)(?!.*\.\.)[^/\\]*$"),
        ),
    ] = "checkpoint_"
    source_prefix: Annotated[
        str,
        Field(title="Source prefix", description="Which of several runs in the source's folders: CKP or CKP_1, say."),
    ] = ""
    workers: Annotated[
        int,
        Field(
            title="Workers",
            ge=0,
            le=1024,
            description="Threads, for as many ranks at once, or several for one; with Dask, of all its processes "
            "together. 0: one for each core (with Dask: all that its workers have), and at least 8 if a side is on a "
            "remote storage, for whose answers they mostly wait.",
        ),
    ] = 0
    memory_limit: Annotated[
        str,
        Field(
            title="Memory limit",
            description="For the buffers of a process, of all its workers together: 2GiB, 512MiB; at least 16MiB.",
            json_schema_extra=_SIZE_PATTERN,
        ),
    ] = "2GiB"
    verify: Annotated[
        VerifyLevel,
        Field(
            title="Verification",
            description="structure: names, dtypes and shapes. checksum: also every byte, read back from the target. "
            "content: also every value, of every copy, against the source's. none: nothing is checked.",
        ),
    ] = VerifyLevel.CHECKSUM
    check_crc: Annotated[
        bool,
        Field(
            title="Check CRC",
            description="Of source files that carry a CRC: read them whole once, and check it, before anything is "
            "written.",
        ),
    ] = True
    unmatched: Annotated[
        UnmatchedPolicy,
        Field(
            title="Unmatched parameters",
            description="Parameters of the source's strategy that the target's lacks (optimizer state, often): "
            "drop them and say so, or fail.",
        ),
    ] = UnmatchedPolicy.DROP
    allow_missing: Annotated[
        list[str],
        Field(
            title="Allowed to be missing",
            description="Patterns (adam_*) of target parameters that the source need not have.",
        ),
    ] = []
    decrypt_key: Annotated[
        str,
        Field(
            title="Decryption key",
            description=f"Of an encrypted source. {_KEY_ADVICE} Empty: the source is not encrypted.",
            json_schema_extra=STORAGE_NAME,
        ),
    ] = ""
    decrypt_mode: Annotated[
        EncryptionMode, Field(title="Decryption mode", description="How an encrypted source is encrypted.")
    ] = EncryptionMode.AES_GCM
    encrypt_key: Annotated[
        str,
        Field(
            title="Encryption key",
            description="Encrypt the target's files, and what is recorded of them. Where the key is kept, likewise. "
            "Empty: the target is not encrypted.",
            json_schema_extra=STORAGE_NAME,
        ),
    ] = ""
    encrypt_mode: Annotated[
        EncryptionMode, Field(title="Encryption mode", description="How the target is encrypted.")
    ] = EncryptionMode.AES_GCM
    write_crc: Annotated[
        bool,
        Field(title="Write CRC", description="Give the target's files a CRC, which MindSpore checks with crc_check."),
    ] = False
    append_info: Annotated[
        list[str],
        Field(
            title="Appended information",
            description="NAME=VALUE (epoch_num=5) for every target file, in place of what the source has under that "
            "name. A value is true or false, a number, or else text; after text: it is text in any case "
            "(version=text:2.0).",
        ),
    ] = []
    remove_redundancy: Annotated[
        bool,
        Field(
            title="Remove redundancy",
            description="Of a slice that several target ranks share, only some of them get a copy; MindSpore loads "
            "such a checkpoint with remove_redundancy=True.",
        ),
    ] = False
    replicas: Annotated[
        int,
        Field(title="Replicas", ge=1, description="How many copies of each slice stay when redundancy is removed."),
    ] = 1
    integrated_save: Annotated[
        IntegratedSave,
        Field(
            title="Integrated save",
            description="yes: every source rank holds whole tensors (MindSpore's integrated_save), whatever the "
            "strategy cuts. no: ranks hold slices, even if these are equal. auto: known shapes decide, else the "
            "strategy does; if contents look whole and no shape is known, refuse.",
        ),
    ] = IntegratedSave.AUTO
    trust_strategy: Annotated[
        bool,
        Field(
            title="Trust strategy",
            description="Convert although most of the source's contents that were looked at contradict its strategy.",
        ),
    ] = False
    check_replicas: Annotated[
        bool,
        Field(
            title="Check replicas",
            description="Read every copy of each slice that source ranks share, and stop if copies differ.",
        ),
    ] = False
    shared_parameters: Annotated[
        str,
        Field(
            title="Shared parameters",
            description="Of a parameter that several pipeline stages of the source hold, such as tied embeddings, with "
            "different contents: first, take the first stage's; a number, that stage's; fail.",
            json_schema_extra=_pattern(SHARED_PARAMETERS.pattern),
        ),
    ] = "first"
    dask_scheduler: Annotated[
        str,
        Field(
            title="Dask scheduler",
            description="Who writes the ranks: tcp://HOST:PORT, the workers of that Dask cluster; local, processes of "
            "this machine. Empty: threads of the run's own process.",
            json_schema_extra=_pattern(_DASK_SCHEDULER.pattern),
        ),
    ] = ""
    concurrency_limit: Annotated[
        str,
        Field(
            title="Concurrency limit",
            description="Name of a global concurrency limit of Prefect: a rank is begun when a slot of it is free, "
            "whichever runs have the others. Empty: none.",
        ),
    ] = ""

    @field_validator("source", "target", "source_strategy", "target_strategy", "changes")
    @classmethod
    def _check_url(cls, value: str) -> str:
        return without_credentials(value)

    @field_validator("source_storage", "target_storage")
    @classmethod
    def _check_name(cls, value: str) -> str:
        return storage_name(value)

    @field_validator("decrypt_key", "encrypt_key")
    @classmethod
    def _check_key_name(cls, value: str) -> str:
        return key_name(value)

    @field_validator("encrypt_key")
    @classmethod
    def _check_encrypted_format(cls, value: str, info: ValidationInfo) -> str:
        if value and info.data.get("format") is OutputFormat.SAFETENSORS:
            raise ValueError("MindSpore knows no encrypted .safetensors files: choose the format ckpt, or name no key")
        return value

    @field_validator("decrypt_mode", "encrypt_mode")
    @classmethod
    def _check_mode(cls, value: EncryptionMode, info: ValidationInfo) -> EncryptionMode:
        side = str(info.field_name).removesuffix("_mode")
        return mode_with_key(value, info.data.get(f"{side}_key"), f"--{side}-key")

    @field_validator("layout")
    @classmethod
    def _check_layout(cls, value: TargetLayout, info: ValidationInfo) -> TargetLayout:
        if value is TargetLayout.UNIFIED and info.data.get("target_strategy"):
            raise ValueError("whole tensors are cut by no strategy: name no --target-strategy")
        if value is TargetLayout.UNIFIED and info.data.get("format") is OutputFormat.CKPT:
            raise ValueError("is of .safetensors files: leave out --format")
        return value

    @field_validator("max_shard_size", "unified_naming")
    @classmethod
    def _check_of_unified(cls, value: str, info: ValidationInfo) -> str:
        is_default = value == cls.model_fields[str(info.field_name)].default
        if not is_default and info.data.get("layout") is TargetLayout.RANKS:
            raise ValueError("is of a unified target only: ask for that, too, --layout unified")
        return value

    @field_validator("prefix", "encrypt_key", "remove_redundancy")
    @classmethod
    def _check_not_of_unified(cls, value: str | bool, info: ValidationInfo) -> str | bool:
        is_default = value == cls.model_fields[str(info.field_name)].default
        if not is_default and info.data.get("layout") is TargetLayout.UNIFIED:
            raise ValueError(_NOT_OF_UNIFIED[str(info.field_name)])
        return value

    @field_validator("write_crc")
    @classmethod
    def _check_no_crc_of_encrypted(cls, value: bool, info: ValidationInfo) -> bool:
        if value and info.data.get("encrypt_key"):
            raise ValueError("an encrypted file has no CRC (MindSpore): ask for one of the two")
        return value

    @field_validator("prefix")
    @classmethod
    def _check_prefix(cls, value: str) -> str:
        return checked_prefix(value)

    @field_validator("memory_limit")
    @classmethod
    def _check_memory_limit(cls, value: str) -> str:
        return checked_memory_limit(value)

    @field_validator("max_shard_size")
    @classmethod
    def _check_max_shard_size(cls, value: str) -> str:
        if parse_size(value) < 1:
            raise ValueError("must be at least 1 byte")
        return value

    @field_validator("replicas")
    @classmethod
    def _check_replicas(cls, value: int, info: ValidationInfo) -> int:
        if value > 1 and not info.data.get("remove_redundancy", True):
            raise ValueError("says how many copies stay when redundancy is removed: ask for that, too")
        return value

    @field_validator("include", "exclude", "transpose")
    @classmethod
    def _check_patterns(cls, value: list[str]) -> list[str]:
        return checked_patterns(value)

    @field_validator("rename")
    @classmethod
    def _check_rename(cls, value: list[str]) -> list[str]:
        _ = [parse_rename(text) for text in value]
        return value

    @field_validator("cast")
    @classmethod
    def _check_cast(cls, value: list[str]) -> list[str]:
        _ = [parse_cast(text) for text in value]
        return value

    @field_validator("append_info")
    @classmethod
    def _check_append_info(cls, value: list[str]) -> list[str]:
        parse_info(value)
        return value

    @field_validator("shared_parameters")
    @classmethod
    def _check_shared_parameters(cls, value: str) -> str:
        if not SHARED_PARAMETERS.fullmatch(value):
            raise ValueError("must be first, fail, or the number of a pipeline stage")
        return value

    @field_validator("dask_scheduler")
    @classmethod
    def _check_dask_scheduler(cls, value: str) -> str:
        if not _DASK_SCHEDULER.fullmatch(value):
            raise ValueError("must be the address of a Dask scheduler, such as tcp://10.0.0.5:8786, or local")
        return value

    @property
    def memory_limit_bytes(self) -> int:
        """The memory limit in bytes."""
        return parse_size(self.memory_limit)

    @property
    def info(self) -> tuple[tuple[str, InfoValue], ...]:
        """Names and values that every target file gets."""
        return parse_info(self.append_info)

    @property
    def worker_count(self) -> int:
        """Ranks worked on at once."""
        return self.workers or core_count()


class ConversionRequest(ConversionOptions):
    """Convert a MindSpore checkpoint from the strategy that it was trained under to another one."""

    step: Annotated[
        str,
        Field(
            title="Step",
            description="Epoch and step of the source, as in its file names: 10_5, or 10_5_breakpoint. "
            "Empty: the newest that every rank has.",
            json_schema_extra=STEP_PATTERN,
        ),
    ] = ""
    ranks: Annotated[
        str,
        Field(
            title="Ranks",
            description="Convert just these target ranks (0-3,7), or files of a unified target, counted from 0; other "
            "machines do the others. Empty: all.",
            json_schema_extra=_pattern(r"^[0-9, -]*$"),
        ),
    ] = ""
    overwrite: Annotated[
        bool,
        Field(
            title="Overwrite",
            description="Replace what is at the target; the old checkpoint stays until the new one is whole.",
        ),
    ] = False

    recover: Annotated[
        bool,
        Field(
            title="Recover",
            description="Where source files are missing, truncated, fail their CRC or are named as faulty, take what "
            "they held from other ranks that hold the same, and say so.",
        ),
    ] = False
    fault_ranks: Annotated[
        str,
        Field(
            title="Faulty ranks",
            description="Source ranks (3,7) whose files are not to be read; needs 'recover'.",
            json_schema_extra=_pattern(r"^[0-9, -]*$"),
        ),
    ] = ""

    @field_validator("step")
    @classmethod
    def _check_step(cls, value: str) -> str:
        return epoch_and_step(value)

    @field_validator("ranks", "fault_ranks")
    @classmethod
    def _check_ranks(cls, value: str) -> str:
        parse_ranks(value)
        return value

    @field_validator("fault_ranks")
    @classmethod
    def _check_fault_ranks(cls, value: str, info: ValidationInfo) -> str:
        if value.strip() and not info.data.get("recover"):
            raise ValueError("ranks are left out, and others stand in for them, only together with --recover")
        return value

    def chosen_ranks(self, all_ranks: range) -> tuple[int, ...]:
        """The target ranks that are asked for, out of all.

        Raises:
            InputError: one is asked for that the target does not have.
        """
        if not self.ranks.strip():
            return tuple(all_ranks)
        chosen = parse_ranks(self.ranks)
        unknown = [rank for rank in chosen if rank not in all_ranks]
        if unknown:
            raise InputError(
                f"--ranks {self.ranks}: the target has ranks {all_ranks.start} to {all_ranks.stop - 1}, "
                f"not {', '.join(map(str, unknown[:8]))}"
            )
        return chosen


Request = TypeVar("Request", bound=BaseModel)


def build_request(**options: object) -> ConversionRequest:
    """The request for a conversion, from loose options; see `build_options`."""
    return build_options(ConversionRequest, **options)


def build_options(model: type[Request], name_of: Callable[[str], str] | None = None, /, **options: object) -> Request:
    """A request of any kind, from loose options; `name_of` says what fields are called, if not as by `option_of`.

    Raises:
        InputError: options are wrong; the message names each.
    """
    try:
        return model.model_validate(options)
    except ValidationError as error:
        raise InputError(describe_validation(error, name_of or option_of)) from error


def option_of(name: str) -> str:
    """A field as the command line calls it."""
    return name.upper() if name in ("source", "target") else "--" + name.replace("_", "-")


def describe_validation(error: ValidationError, name_of: Callable[[str], str] = option_of) -> str:
    """What is wrong with a request, one line a field, which `name_of` calls as its user knows it."""
    lines = []
    for detail in error.errors():
        # a name that is no text has no place
        name = str(detail["loc"][0] if detail["loc"] else detail["input"])
        # the input of what is missing is all the rest, and a secret is not repeated; what is no name may be one
        secret = "storage" in name or "_key" in name or carries_credentials(str(detail["input"]))
        # what is wrong with one of several is said of that one
        hidden = detail["type"] == "missing" or secret or isinstance(detail["input"], list | tuple)
        given = "" if hidden else f" {detail['input']!r}"
        lines.append(f"{name_of(name)}{given}: {detail['msg'].removeprefix('Value error, ')}")
    return "\n".join(lines)


def parse_size(text: str) -> int:
    """Bytes of a size such as "2GiB" or "500 MB".

    Raises:
        ValueError: it is not a size.
    """
    match = _SIZE.match(text)
    unit = match and _UNITS.get(match[2].upper())
    if not match or unit is None:
        raise ValueError("must be a size such as 512MiB or 2GiB")
    return int(Fraction(match[1]) * unit)


def parse_ranks(text: str) -> tuple[int, ...]:
    """Ranks of a list such as "0-3,7", ascending, each once.

    Raises:
        ValueError: it is not such a list.
    """
    ranges: set[tuple[int, int]] = set()
    for part in filter(None, (part.strip() for part in text.split(","))):
        match = _RANGE.match(part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not first <= last <= _HIGHEST_RANK:
            raise ValueError("must be ranks such as 0-3,7")
        ranges.add((first, last))
    if text.strip() and not ranges:
        raise ValueError("must be ranks such as 0-3,7")
    ranks: list[int] = []
    for first, last in sorted(ranges):  # which may overlap: no rank is counted twice
        ranks += range(max(first, ranks[-1] + 1 if ranks else 0), last + 1)
    return tuple(ranks)
