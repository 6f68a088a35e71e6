"""Names in a universal checkpoint of DeepSpeed, and what its loaders do with the files.

latest_universal                              the tag, `global_step40_universal`; written last
global_step40_universal/
  zero/NAME/fp32.pt                           {"param": the whole tensor in float32}
  zero/NAME/exp_avg.pt, exp_avg_sq.pt         Adam's moments, in such dicts
  zero/NAME/step.pt                           Adam's step, a tensor without axes
  zero/optimizer_state.pt                     what the optimizer has for all parameters
  mp_rank_00_model_states.pt                  numbers of the training, for ZeRO 1 and 2
  zero_pp_rank_0_mp_rank_00_model_states.pt   the same for ZeRO 3

Tried with DeepSpeed 0.19.8 and torch 2.13.0, on one to three processes: checkpoints of ZeRO 1 and 3 went through its
`ds_to_universal`, and were loaded with `{"checkpoint": {"load_universal": true}}` and stages 1, 2 and 3.

- Stages 1 and 2 load whatever `.pt` files are in a parameter's folder; `step.pt` has to be the same for all parameters
  of a group, or missing for all. torch's AdamW wants a tensor there; DeepSpeed's FusedAdam takes one, too.
- Stage 3 needs both moments of every parameter, and takes the step from `optimizer_state.pt`, in
  `optimizer_state_dict.state[0]`. A tensor there is one for all groups and sub-groups of the optimizer, each of which
  adds one to it at every step: with two groups Adam counts twice as fast. With a number FusedAdam counts right, and
  torch's AdamW refuses its first step, until each state has a tensor of its own.
- Stages 1 and 2 load as many groups of parameters as `param_groups` has entries, and pass over the rest without a word.
  What an entry says replaces the training's own setting; an empty one leaves that as it is.
- Nothing else is loaded into the model: neither frozen parameters nor buffers; `module` is not looked at.
- `lr_scheduler` is asked for if the training has one, unless it is loaded with `load_lr_scheduler_states=False`.
- `optimizer_state.pt` has to name a `ds_version`; with gradients clipped it is the training's value that counts.
"""

import re

from reshard.core.layouts.tracker import Tracker

WEIGHT, MOMENTS, STEP = "fp32", ("exp_avg", "exp_avg_sq"), "step"
STATE_FOLDER = "zero"
OPTIMIZER_NAME = f"{STATE_FOLDER}/optimizer_state.pt"
MODEL_NAMES = ("mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_model_states.pt")
_BEFORE, _AFTER = "global_step", "_universal"
LATEST = Tracker(
    "latest_universal",
    "step",
    "is not the tag of a step, such as global_step40_universal",
    before=_BEFORE,
    after=_AFTER,
    gate=".reshard-latest-universal",
)
_TAG = re.compile(rf"{_BEFORE}(\d{{1,18}}){_AFTER}", re.ASCII)
_OWN = re.compile(r"zero/([^/]+/((fp32|exp_avg|exp_avg_sq|step)\.pt)?)?", re.ASCII | re.DOTALL)
_SUFFIX = ".pt"


def tag_name(number: int) -> str:
    """Return the name of a step's directory."""
    return LATEST.text_of(number)


def parse_tag(name: str) -> int | None:
    """Return the number in the name of a step's directory; None for other names."""
    match = _TAG.fullmatch(name)
    return int(match[1]) if match else None


def tensor_path(name: str, state: str) -> str:
    """Return the path of one file of a parameter."""
    return f"{STATE_FOLDER}/{name}/{state}{_SUFFIX}"


def is_own_path(path: str) -> bool:
    """True for the path of a file of a universal checkpoint, below its directory, or of a folder, with a slash."""
    return path == OPTIMIZER_NAME or path in MODEL_NAMES or _OWN.fullmatch(path) is not None


def archive_name(path: str) -> str:
    """Return the prefix of the records of a file, as torch names them."""
    return path.rpartition("/")[2].removesuffix(_SUFFIX)


def parse_state(name: str) -> tuple[str, str]:
    """Return which moment a tensor is, empty for a weight, and the name of the parameter."""
    state, dot, parameter = name.partition(".")
    return (state, parameter) if dot and state in MOMENTS else ("", name)
