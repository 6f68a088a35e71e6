"""Names checkpoints of other libraries, which reshard does not read, by a listing alone.

The table is asked where nothing is there that reshard reads: a directory may have such files beside its own.
"""

import re
from collections.abc import Iterable, Sequence

from reshard.core.errors import CatalogError
from reshard.core.runtime.records import Record
from reshard.core.storage.listing import names_in
from reshard.core.storage.urls import Location

_MAX_LOOKED_INTO = 8


class ForeignLayout(Record):
    """A layout of another library.

    Attributes:
        title: what a directory or file of it is.
        signs: it is recognized by any of them; a sign is patterns, each of which has to match a name that is there.
        advice: how to make something of it that reshard reads.
    """

    title: str
    signs: tuple[tuple[re.Pattern[str], ...], ...]
    advice: str


def _sign(*patterns: str) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(pattern, re.ASCII | re.DOTALL) for pattern in patterns)


_TRACKER = r"latest_checkpointed_iteration\.txt"
_AS_SAFETENSORS = "as model.safetensors with safetensors.numpy.save_file"

FOREIGN_LAYOUTS = (
    ForeignLayout(
        "one rank's part of a DeepSpeed checkpoint",
        (
            _sign(r"([a-z0-9]+_)?(zero_pp|expp)_rank_\d+_mp_rank_\d+_(model|optim)_states\.pt"),
            _sign(r"(layer_\d+_)?(expert_\d+_)?mp_rank_\d+_model_states\.pt"),
            _sign(r"layer_\d+-(model_\d+-)?model_states\.pt"),
        ),
        "name the directory of its tag, which has the files of all ranks",
    ),
    ForeignLayout(
        "a DeepSpeed training's directory without files of ranks",
        (_sign("latest", r"global_step\d+"), _sign(r"zero_to_fp32\.py")),
        "get the files of a tag as well (global_stepN/…_states.pt)",
    ),
    ForeignLayout(
        "one rank's part of a Megatron-LM checkpoint",
        (_sign(r"(model_optim_rng|distrib_optim)\.pt"),),
        "name the directory of its iteration, which has a folder for each rank",
    ),
    ForeignLayout(
        "a Megatron-LM checkpoint of another format than torch and torch_dist",
        (_sign(r"iter_\d{7,}"), _sign(_TRACKER, "release")),
        "run the training script once with --ckpt-convert-format torch_dist --ckpt-convert-save DIRECTORY, and convert "
        "DIRECTORY",
    ),
    ForeignLayout(
        "one rank's part of an FSDP checkpoint",
        (_sign(r"(model|optim|extra_state)_world_size_\d+_rank_\d+\.pt"),),
        "name the directory that has the files of all its ranks",
    ),
    ForeignLayout(
        "a model that verl saved with Megatron",
        (_sign(r"ckpt_contents\.json"), _sign("dist_ckpt")),
        "name the directory dist_ckpt in it, of which reshard reads torch_dist",
    ),
    ForeignLayout(
        "a training's directory of verl's",
        (_sign(_TRACKER, r"global_step_\d+"),),
        "its steps have no files of FSDP's ranks. If Megatron trained it, name the directory dist_ckpt of a step, such "
        "as global_step_40/actor/dist_ckpt; if none has one, merge a step with `python -m verl.model_merger merge "
        "--backend megatron --local_dir global_step_N/actor --target_dir DIRECTORY`, and convert DIRECTORY",
    ),
    ForeignLayout(
        "a GGUF model of llama.cpp",
        (_sign(r".+\.gguf"),),
        "convert the model that it was made from: most are quantized, which cannot be undone",
    ),
    ForeignLayout(
        "an Orbax checkpoint of JAX",
        (_sign("_CHECKPOINT_METADATA"), _sign(r"manifest\.ocdbt"), _sign(r"ocdbt\.process_\d+")),
        f"restore it with orbax.checkpoint, and save its arrays {_AS_SAFETENSORS}",
    ),
    ForeignLayout(
        "a TensorFlow checkpoint",
        (_sign(r".+\.data-\d{5}-of-\d{5}"), _sign(r"saved_model\.pb"), _sign("checkpoint", r".+\.index")),
        f"read it with tf.train.load_checkpoint, and save its tensors {_AS_SAFETENSORS}",
    ),
    ForeignLayout(
        "a Keras model",
        (_sign(r".+\.(h5|hdf5|keras)"),),
        f"load it with Keras, and save its weights {_AS_SAFETENSORS}",
    ),
    ForeignLayout(
        "a Flax model",
        (_sign(r"flax_model.*\.msgpack(\.index\.json)?"),),
        f"load it with Flax, and save its parameters {_AS_SAFETENSORS}",
    ),
    ForeignLayout(
        "a PaddlePaddle model",
        (_sign(r".+\.pdparams"),),
        "load it with PaddlePaddle, and save its tensors with safetensors.paddle.save_file",
    ),
    ForeignLayout(
        "a NeMo archive",
        (_sign(r".+\.nemo"),),
        "unpack it with tar, and convert what is in it if that is torch_dist",
    ),
    ForeignLayout(
        "a NumPy archive",
        (_sign(r".+\.np[zy]"),),
        f"load it with numpy.load, and save its arrays {_AS_SAFETENSORS}",
    ),
)
"""Particular ones first: a file of DeepSpeed's is also one of PyTorch's."""


def find_foreign(names: Iterable[str]) -> ForeignLayout | None:
    """Return the foreign layout of a directory with these names, or of the file of this name; None if it has none."""
    there = tuple(names)
    for layout in FOREIGN_LAYOUTS:
        for sign in layout.signs:
            if all(any(pattern.fullmatch(name) for name in there) for pattern in sign):
                return layout
    return None


def foreign_text(location: Location, names: Iterable[str]) -> str:
    """Return the refusal of a directory with these names, or of the file of this name; empty if it is not foreign."""
    layout = find_foreign(names)
    return f"{location}: is {layout.title}, which reshard does not read: {layout.advice}" if layout else ""


def check_not_foreign(location: Location, names: Iterable[str]) -> None:
    """Raise a CatalogError if a directory with these names, or the file of this name, is of another library."""
    if refusal := foreign_text(location, names):
        raise CatalogError(refusal)


def foreign_below(folders: Sequence[Location]) -> str:
    """Return the refusal of the first of some folders that is foreign; empty if none is. The last ones are listed."""
    for folder in folders[-_MAX_LOOKED_INTO:]:
        if refusal := foreign_text(folder, names_in(folder)):
            return refusal
    return ""
