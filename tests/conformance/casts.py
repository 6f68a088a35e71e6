"""Casts, judged by MindSpore's own `astype`: every value of 16 bits, and many of more, in every bit but those of NaNs.

A NaN has to be one in both; which it is differs. Float64 to float16 is rounded twice by MindSpore, by way of float32,
and once here: of what is cast to float16 all float64 values are float32's as well.
"""

from collections.abc import Iterator
from pathlib import Path

import ml_dtypes
import numpy as np

from reshard.core.conversion.convert import convert
from reshard.core.request.conversion import build_request
from tests.conformance.mindspore_process import Judge
from tests.support.checkpoints import Contents, read_ckpt

NUMPY = {"Float16": np.float16, "BFloat16": ml_dtypes.bfloat16, "Float32": np.float32, "Float64": np.float64}
_RANDOM_COUNT = 20_000


def check_casts(judge: Judge, directory: Path) -> list[str]:
    """What is not as it should be."""
    problems = []
    for target in NUMPY:
        source = directory / target / "source.ckpt"
        judge.save({source: _contents(target)}, {})
        judge.cast(source, directory / target / "theirs.ckpt", target.lower())
        request = {"cast": [f"*={target.lower()}"], "cast_overflow": "allow", "verify": "none"}
        convert(build_request(source=str(source), target=str(directory / target / "ours"), **request))
        ours = read_ckpt(directory / target / "ours" / "rank_0" / "checkpoint_0.ckpt")
        theirs = read_ckpt(directory / target / "theirs.ckpt")
        problems += [f"to {target}: {problem}" for problem in _differences(ours, theirs, target)]
    return problems


def _contents(target: str) -> Contents:
    found: Contents = {}
    for name, dtype in NUMPY.items():
        values = _values(name, target).view(dtype)
        found[f"from_{name}"] = (name, values.shape, values.tobytes())
    return found


def _values(name: str, target: str) -> np.ndarray:
    """Bits of values of a dtype: all, or random ones and those that lie halfway between two of the target's."""
    if np.dtype(NUMPY[name]).itemsize == 2:
        return np.arange(2**16, dtype=np.uint16)
    generator = np.random.default_rng(11)
    any_bits = generator.integers(0, 2**32, _RANDOM_COUNT, dtype=np.uint32)
    near_one = generator.integers(0x30000000, 0x48000000, _RANDOM_COUNT, dtype=np.uint32)
    halfway = [near_one >> np.uint32(n) << np.uint32(n) | np.uint32(1 << (n - 1)) for n in (13, 16)]
    bits = np.concatenate([any_bits, near_one, *halfway, np.array([0, 1, 0x7F7F8000, 0x7F7F7FFF], np.uint32)])
    if name == "Float32":
        return bits
    with np.errstate(all="ignore"):
        doubles = bits.view(np.float32).astype(np.float64).view(np.uint64)
    if target == "Float16":
        return doubles
    return np.concatenate([doubles, generator.integers(0, 2**64, _RANDOM_COUNT, dtype=np.uint64)])


def _differences(ours: Contents, theirs: Contents, target: str) -> Iterator[str]:
    if ours.keys() != theirs.keys():
        yield f"other parameters: {sorted(ours)}, not {sorted(theirs)}"
        return
    for name, (dtype, shape, content) in theirs.items():
        if ours[name][:2] != (dtype, shape):
            yield f"{name}: {ours[name][:2]}, not {(dtype, shape)}"
            continue
        mine, wanted = (np.frombuffer(each, NUMPY[target]) for each in (ours[name][2], content))
        bits = f"u{mine.itemsize}"
        with np.errstate(invalid="ignore"):
            unlike = (mine.view(bits) != wanted.view(bits)) & ~(np.isnan(mine) & np.isnan(wanted))
        if unlike.any():
            first = int(np.argmax(unlike))
            difference = f"{mine.view(bits)[first]:#x}, not {wanted.view(bits)[first]:#x}"
            yield f"{name}: {np.count_nonzero(unlike)} values differ, the first at {first}: {difference}"
