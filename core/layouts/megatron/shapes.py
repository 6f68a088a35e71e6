"""Shapes of parameters: as they are planned, in the model, and in a rank's file.

mlp.linear_fc1.weight     planned [2, F, H]       in the model [2 F, H]       in a file the same
mlp.experts.weight1       planned [E, H, 2, F]    in the model [E, H, 2 F]    in a file [H, E 2 F]
mlp.experts.weight2       planned [E, F, H]       in the model the same       in a file [E F, H]
"""

import re
from collections.abc import Mapping

from reshard.core.errors import LayoutError
from reshard.core.layouts.megatron.cuts import stored_shape
from reshard.core.tensor.slices import Shape

_FIRST_MATRIX = re.compile(
    r"(?P<mlp>.*\.)(?:linear_fc1\.(?P<kind>weight|bias)(?P<expert>\d*)|experts\.weight1)", re.ASCII | re.DOTALL
)
"""Names of what may be a gate and an up matrix in one."""
_STACKED = re.compile(r".*\.experts\.weight[12]", re.ASCII | re.DOTALL)


def model_shape(weight: str, planned: Shape) -> Shape:
    """Return the shape in the model of what is planned in a shape, or of a rank's slice of it."""
    match = _FIRST_MATRIX.fullmatch(weight)
    if match is None:
        return planned
    axis = 0 if match["kind"] else 2
    axes = {"weight": 2, "bias": 1}.get(match["kind"], 3)
    if len(planned) == axes:
        return planned
    return (*planned[:axis], planned[axis] * planned[axis + 1], *planned[axis + 2 :])


def file_shape(weight: str, planned: Shape) -> Shape:
    """Return the shape in a file of a rank's slice."""
    shape = model_shape(weight, planned)
    return stored_shape(weight, shape) if _STACKED.fullmatch(weight) else shape


def is_gated(weight: str, shapes: Mapping[str, Shape]) -> bool:
    """True for the first matrix of an MLP with twice as many rows as the second one has columns.

    Raises:
        LayoutError: the two do not go together.
    """
    match = _FIRST_MATRIX.fullmatch(weight)
    if match is None:
        return False
    is_stacked = weight.endswith("experts.weight1")
    beside = f"{weight[:-1]}2" if is_stacked else f"{match['mlp']}linear_fc2.weight{match['expert']}"
    second, rows = shapes.get(beside, ()), shapes[weight][-1 if is_stacked else 0 :][:1]
    if len(second) == (3 if is_stacked else 2):
        for halves in (1, 2):
            if rows == (halves * second[1],):
                return halves == 2
    raise LayoutError(
        f"its shape {list(shapes[weight])} does not go with that of {beside!r}, "
        f"{list(second) if second else 'which is not there'}"
    )
