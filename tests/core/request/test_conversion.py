"""What may be asked for, and how the rest is refused: by the option's name on the command line."""

import os
import pickle

import pytest
from pydantic import ValidationError

from reshard.core.changes.changes import Fp8, OverflowPolicy, Selection
from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.errors import InputError
from reshard.core.layouts.registry import TargetLayout
from reshard.core.layouts.torch_dist.options import TransformerImpl
from reshard.core.layouts.unified.names import UnifiedNaming
from reshard.core.request.changing import UnmatchedPolicy
from reshard.core.request.conversion import ConversionRequest, build_request
from reshard.core.request.target import OutputFormat, Sha256Level
from reshard.core.runtime.keys import EncryptionMode
from tests.support.requests import refusal, request

# ---- the form ----


def test_two_fields_are_enough() -> None:
    asked = build_request(source="/src", target="/out")
    assert asked.model_dump(exclude={"source", "target"}) == {
        "source_strategy": "",
        "auto_strategy": True,
        "target_strategy": "",
        "source_storage": "",
        "target_storage": "",
        "format": OutputFormat.SAME,
        "prefix": "checkpoint_",
        "source_prefix": "",
        "root": "",
        "workers": 0,
        "memory_limit": "2GiB",
        "bandwidth_limit": "",
        "verify": VerifyLevel.CHECKSUM,
        "sha256": Sha256Level.NONE,
        "sign": "",
        "sign_passphrase": "",
        "sign_certificate": "",
        "check_crc": True,
        "unmatched": UnmatchedPolicy.DROP,
        "allow_missing": [],
        "decrypt_key": "",
        "decrypt_mode": EncryptionMode.AES_GCM,
        "encrypt_key": "",
        "encrypt_mode": EncryptionMode.AES_GCM,
        "write_crc": False,
        "append_info": [],
        "layout": TargetLayout.RANKS,
        "attention_heads": 0,
        "tensor_parallel": 1,
        "pipeline_parallel": 1,
        "virtual_pipeline": 1,
        "expert_parallel": 1,
        "expert_tensor_parallel": 0,
        "pipeline_first_layers": 0,
        "pipeline_last_layers": 0,
        "pad_vocab_to": 0,
        "shards": 0,
        "transformer_impl": TransformerImpl.SOURCE,
        "common": [],
        "iteration": "",
        "optimizer_step": 0,
        "max_shard_size": "5GB",
        "unified_naming": UnifiedNaming.HUGGINGFACE,
        "like": "",
        "select": Selection.ALL,
        "include": [],
        "exclude": [],
        "rename": [],
        "cast": [],
        "cast_overflow": OverflowPolicy.FAIL,
        "fp8": Fp8.AUTO,
        "transpose": [],
        "changes": "",
        "preset": "",
        "names": "",
        "switch": [],
        "dialect": "auto",
        "training_config": "",
        "config_json": "",
        "lora": "",
        "lora_alpha": 0.0,
        "allow_model": [],
        "remove_redundancy": False,
        "replicas": 1,
        "check_replicas": False,
        "integrated_save": "auto",
        "trust_strategy": False,
        "require_signed_by": "",
        "shared_parameters": "first",
        "recover": False,
        "fault_ranks": "",
        "dask_scheduler": "",
        "concurrency_limit": "",
        "step": "",
        "ranks": "",
        "overwrite": False,
    }
    assert asked.memory_limit_bytes == 2 * 2**30


def test_defaults_are_valid() -> None:
    asked = build_request(source="/src", target="/out")
    assert build_request(**asked.model_dump(mode="json")) == asked


def test_the_form_describes_every_field() -> None:
    schema = ConversionRequest.model_json_schema()
    assert schema["required"] == ["source", "target"]
    assert schema["additionalProperties"] is False
    titles = [field["title"] for field in schema["properties"].values()]
    assert len(set(titles)) == len(titles) == len(ConversionRequest.model_fields)
    for name, field in schema["properties"].items():
        assert len(field["description"]) > 20, name
        assert "anyOf" not in field, f"{name} would be shown as a choice of types"


def test_a_request_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        request().source = "/other"


# ---- refusals ----


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"source": ""}, "source '': must not be empty"),
        ({"target": ""}, "target '': must not be empty"),
        ({"target": 5}, "target 5: must be a path or URL"),
        ({"source_strategy": None}, "source_strategy None: must be a path or URL"),
        ({"format": "npz"}, "format 'npz': must be 'same', 'ckpt' or 'safetensors'"),
        ({"verify": "all"}, "verify 'all': must be 'none', 'structure', 'checksum' or 'content'"),
        ({"unmatched": "keep"}, "unmatched 'keep': must be 'drop' or 'fail'"),
        ({"workers": -1}, "workers -1: must be at least 0"),
        ({"workers": 1025}, "workers 1025: must be at most 1024"),
        ({"workers": "many"}, "workers 'many': must be a whole number"),
        ({"memory_limit": "16MB"}, "memory_limit '16MB': must be at least 16MiB"),
        ({"memory_limit": "lots"}, "memory_limit 'lots': must be a size such as 512MiB or 2GiB"),
        ({"ranks": "0-"}, "ranks '0-': must be ranks such as 0-3,7"),
        ({"dask_scheduler": "10.0.0.5"}, "dask_scheduler '10.0.0.5': must be the address of a Dask scheduler"),
        ({"step": "10_"}, "step '10_': must be EPOCH_STEP, such as 10_5, or EPOCH_STEP_breakpoint, or an iteration"),
        ({"allow_missing": ["a", 5]}, "allow_missing 5: must be a text"),
        ({"allow_missing": 5}, "allow_missing 5: must be a list"),
        ({"overwrite": "perhaps"}, "overwrite 'perhaps': must be true or false"),
        ({"target_strat": "x"}, "target_strat 'x': there is no such option"),
    ],
)
def test_refusals(options: dict[str, object], message: str) -> None:
    assert refusal(**options).startswith(message)


# ---- sizes ----


# ---- ranks and workers ----


def test_chosen_ranks() -> None:
    everything = range(8, 16)
    assert request().chosen_ranks(everything) == tuple(everything)
    assert request(ranks=" ").chosen_ranks(everything) == tuple(everything)
    assert request(ranks="15,8-9").chosen_ranks(everything) == (8, 9, 15)
    with pytest.raises(InputError, match="ranks='0-20': the target has ranks 8 to 15, not 0, 1, 2, 3, 4, 5, 6, 7$"):
        request(ranks="0-20").chosen_ranks(everything)


def test_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    assert request(workers=3).worker_count == 3
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 2, 5})
    assert request().worker_count == 3


def test_a_request_reaches_other_processes_as_it_is() -> None:
    asked = request(layout="dcp", shards=4, step="10_5")
    assert pickle.loads(pickle.dumps(asked)) == asked
