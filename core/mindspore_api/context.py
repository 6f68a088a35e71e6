"""MindSpore's process-wide settings, which scripts set first: accepted and remembered, without effect.

Nothing runs on devices here, and each function takes paths and strategies as arguments. Any setting is accepted;
MindSpore refuses unknown ones. `get_context` and `get_auto_parallel_context` return the value that was set, else
MindSpore's default, else None. The seed has an effect: it is numpy's, as in MindSpore.
"""

from typing import Any, ClassVar

import numpy as np

from reshard.core.mindspore_api.arguments import check_type

GRAPH_MODE = 0
PYNATIVE_MODE = 1

_DEFAULTS = {"mode": PYNATIVE_MODE, "device_target": "CPU", "device_id": 0}
_PARALLEL_DEFAULTS = {
    "device_num": 1,
    "global_rank": 0,
    "parallel_mode": "stand_alone",
    "pipeline_stages": 1,
    "full_batch": False,
    "enable_parallel_optimizer": False,
    "strategy_ckpt_load_file": "",
    "strategy_ckpt_save_file": "",
}

_context: dict[str, Any] = {}
_parallel_context: dict[str, Any] = {}
_seeds: list[int] = []


class ParallelMode:
    """The values of `parallel_mode`."""

    STAND_ALONE = "stand_alone"
    DATA_PARALLEL = "data_parallel"
    HYBRID_PARALLEL = "hybrid_parallel"
    SEMI_AUTO_PARALLEL = "semi_auto_parallel"
    AUTO_PARALLEL = "auto_parallel"
    MODE_LIST: ClassVar = [STAND_ALONE, DATA_PARALLEL, HYBRID_PARALLEL, SEMI_AUTO_PARALLEL, AUTO_PARALLEL]


def set_context(**kwargs: Any) -> None:
    """Remembers settings: `mode`, `device_target`, `device_id` and others."""
    _context.update(kwargs)


def get_context(attr_key: str) -> Any:
    """The value of a setting from `set_context` or `set_device`, or its default."""
    return (_DEFAULTS | _context).get(attr_key)


def set_device(device_target: str, device_id: int | None = None) -> None:
    """Remembers the device that a script selects."""
    set_context(device_target=device_target, device_id=device_id or 0)


def set_auto_parallel_context(**kwargs: Any) -> None:
    """Remembers settings of parallel training: `parallel_mode`, `strategy_ckpt_load_file` and others."""
    _parallel_context.update(kwargs)


def get_auto_parallel_context(attr_key: str) -> Any:
    """The value of a setting from `set_auto_parallel_context`, or its default."""
    return (_PARALLEL_DEFAULTS | _parallel_context).get(attr_key)


def reset_auto_parallel_context() -> None:
    """Forgets the settings of parallel training."""
    _parallel_context.clear()


def set_seed(seed: int) -> None:
    """Seed numpy's random numbers.

    Raises:
        TypeError: the seed is not an int.
        ValueError: it is negative, or has more than 32 bits.
    """
    check_type("seed", seed, int)
    if not 0 <= seed < 2**32:
        raise ValueError(f"'seed' has to be from 0 to 2**32 - 1, not {seed}")
    np.random.seed(seed)
    _seeds[:] = [seed]


def get_seed() -> int | None:
    """The seed from `set_seed`; None without one."""
    return _seeds[0] if _seeds else None
