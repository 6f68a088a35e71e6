"""Groups of a conversion's options: the same in the command's help and in the forms of deployments."""

from reshard.core.layouts.all_options import LAYOUT_OPTIONS
from reshard.core.layouts.options import own_names

_OF_FILES = (
    *("format", "prefix", "append_info", "write_crc"),
    *("encrypt_key", "encrypt_mode", "remove_redundancy", "replicas"),
)
_OF_LAYOUTS = tuple(name for name in own_names(LAYOUT_OPTIONS) if name not in _OF_FILES)

GROUPS = {
    "Source and target": (
        *("source_strategy", "auto_strategy", "target_strategy", "step", "source_prefix", "root", "ranks"),
        *("integrated_save", "unmatched", "allow_missing", "shared_parameters"),
    ),
    "Parameters and their changes": (
        *("select", "include", "exclude", "rename", "cast", "cast_overflow", "fp8", "transpose", "changes"),
        *("preset", "names", "switch", "dialect", "lora", "lora_alpha"),
        *("training_config", "config_json", "allow_model"),
    ),
    "Output": ("layout", *_OF_LAYOUTS, *_OF_FILES),
    "Encrypted and damaged sources": ("decrypt_key", "decrypt_mode", "recover", "fault_ranks"),
    "Checks": (
        *("verify", "sha256", "check_crc", "check_replicas", "trust_strategy", "require_signed_by"),
        *("overwrite", "dry_run"),
    ),
    "Signature": ("sign", "sign_passphrase", "sign_certificate"),
    "Detecting saved steps, and retention": (
        *("settle_seconds", "patience_seconds", "keep_checkpoint_max", "keep_checkpoint_per_n_minutes"),
    ),
    "Resources": (
        *("workers", "memory_limit", "bandwidth_limit", "source_storage", "target_storage"),
        *("dask_scheduler", "concurrency_limit"),
    ),
}
"""Fields of the requests by group, in the order in which they are shown; source and target are in none."""
