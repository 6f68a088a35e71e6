"""Splits, joins and transpositions of whole arrays, the plain way: what pieces are compared with."""

from collections.abc import Iterable, Sequence

import numpy as np

from reshard.core.tensor.segments import Piece


def split_array(array: np.ndarray, axis: int, shares: Sequence[int], groups: int) -> list[np.ndarray]:
    """The parts of a fused array."""
    runs = np.split(array, groups, axis)
    cut = [np.split(run, np.cumsum(shares)[:-1] * (run.shape[axis] // sum(shares)), axis) for run in runs]
    return [np.concatenate([run[number] for run in cut], axis) for number in range(len(shares))]


def join_arrays(arrays: Sequence[np.ndarray], axis: int, groups: int) -> np.ndarray:
    """The reverse."""
    cut = [np.split(array, groups, axis) for array in arrays]
    return np.concatenate([part[group] for group in range(groups) for part in cut], axis)


def assembled(pieces: Iterable[Piece], shape: Sequence[int], sources: Sequence[np.ndarray]) -> np.ndarray:
    """What pieces make of their sources; what they leave out is -1."""
    whole = np.full(shape, -1, sources[0].dtype)
    for piece in pieces:
        whole[piece.target_box.as_index()] = piece.arranged(sources[piece.source][piece.box.as_index()])
    return whole
