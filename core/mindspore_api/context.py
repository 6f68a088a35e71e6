"""MindSpore's process-wide settings, which scripts set first: accepted and remembered, without effect.

Nothing runs on devices here, and each function takes paths and strategies as arguments. Any setting is accepted;
MindSpore refuses unknown ones. `get_context` and `get_auto_parallel_context` return the value that was set, else
MindSpore's default, else None.
"""

from typing import Any

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
