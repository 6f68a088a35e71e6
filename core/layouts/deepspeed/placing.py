"""Places the parameters of a save in its flat groups, and proves from lengths and paddings that they are there."""

from collections.abc import Sequence

from reshard.core.errors import LayoutError
from reshard.core.layouts.deepspeed.flat_groups import FlatParameter, JoinedGroup, joined_group, partitioned_groups
from reshard.core.layouts.deepspeed.model_file import ModelFile, Shapes
from reshard.core.layouts.deepspeed.optimizer_file import FlatGroup, Fragment, OptimizerFile
from reshard.core.runtime.records import Record


class FlatPlaces(Record):
    """Where parameters are.

    Attributes:
        parameters: those of all groups, in order.
        part_lengths: elements of a rank's part of each group, with padding.
        unproven: why only values can prove the order of parameters; empty if files say where each is.
    """

    parameters: tuple[FlatParameter, ...] = ()
    part_lengths: tuple[int, ...] = ()
    unproven: str = ""


def flat_places(model: ModelFile, optimizers: Sequence[OptimizerFile], *, is_partitioned: bool) -> FlatPlaces:
    """Return where the parameters of the model are in the files of the optimizer.

    Raises:
        LayoutError: lengths and paddings are not those of its shapes.
    """
    groups = model.groups or ()
    if not optimizers:
        return FlatPlaces()
    if is_partitioned:
        return _partitioned(groups, optimizers)
    if len(groups) != len(optimizers[0].groups):
        raise LayoutError(
            f"its model has {len(groups)} groups of parameters, its optimizer has {len(optimizers[0].groups)}"
        )
    joined = [_joined(number, shapes, optimizers) for number, shapes in enumerate(groups)]
    return FlatPlaces(
        tuple(parameter for group in joined for parameter in group.parameters),
        tuple(group.part_length for group in joined),
        next(filter(None, (_unproven(number, group, optimizers) for number, group in enumerate(joined))), ""),
    )


def _partitioned(groups: Sequence[Shapes], optimizers: Sequence[OptimizerFile]) -> FlatPlaces:
    lengths = [[_length(group) for group in file.groups] for file in optimizers]
    for file, of_file in zip(optimizers, lengths, strict=True):
        if of_file != lengths[0]:
            raise LayoutError(
                f"the flat groups of {optimizers[0].file.path} and of {file.file.path} have different lengths, in "
                "stage 3 all ranks have the same"
            )
    parameters = partitioned_groups(groups, lengths[0], len(optimizers))
    return FlatPlaces(tuple(parameters), tuple(lengths[0]))


def _joined(number: int, shapes: Shapes, optimizers: Sequence[OptimizerFile]) -> JoinedGroup:
    """The row of a group, whose length is checked against the parts of all ranks."""
    ranks = [file.groups[number] for file in optimizers]
    if any(rank.alignment != ranks[0].alignment for rank in ranks):
        raise LayoutError(f"ranks differ in the param_alignment_paddings of group {number}")
    row = joined_group(number, shapes, ranks[0].alignment, max(map(_length, ranks)), len(ranks))
    if ranks[0].padding:  # parts may be saved without it
        part_length = max(row.part_length, row.content_of(0) + ranks[0].padding)
        row = joined_group(number, shapes, ranks[0].alignment, part_length, len(ranks))
    _check_paddings(number, row, ranks)
    for rank, (part, file) in enumerate(zip(ranks, optimizers, strict=True)):
        length, least = _length(part), row.content_of(rank)
        if not least <= length <= row.part_length:
            raise LayoutError(
                f"{file.file.path} has {length} elements of group {number}, by the shapes of its parameters there are "
                f"{least} to {row.part_length} on rank {rank}"
            )
    return row


def _check_paddings(number: int, row: JoinedGroup, ranks: Sequence[FlatGroup]) -> None:
    """Check that parts end where the parameters do, but for the padding that files say or that is usual."""
    padding = row.part_length * len(ranks) - row.length
    said = [rank.padding for rank in ranks]
    of_each: list[int | None] = [row.part_length - row.content_of(rank) for rank in range(len(ranks))]
    of_last: list[int | None] = [*[0] * (len(ranks) - 1), padding]
    if said in (of_each, of_last):
        return
    is_usual = all(each is None for each in said) and padding < 2 * len(ranks)
    if not is_usual:
        raise LayoutError(
            f"the parts of group {number} have {row.part_length * len(ranks)} elements, its parameters {row.length}: "
            "the group_paddings in its files do not make up for it"
        )


def _unproven(number: int, row: JoinedGroup, optimizers: Sequence[OptimizerFile]) -> str:
    """Why the files of a group do not prove where parameters are; empty if they do."""
    expected: list[dict[str, Fragment]] = [{} for _ in optimizers]
    for parameter in row.parameters:
        for piece in parameter.pieces:
            expected[piece.rank][parameter.name] = Fragment(piece.stop - piece.start, piece.offset)
    for file, wanted in zip(optimizers, expected, strict=True):
        fragments = file.groups[number].fragments
        if fragments is None:
            return f"{file.file.path} does not say where parameters are (param_slice_mappings)"
        if {name: each for name, each in fragments.items() if each.count} != wanted:
            return f"{file.file.path} says other places of parameters (param_slice_mappings) than param_shapes"
    return ""


def _length(group: FlatGroup) -> int:
    return group.master.shape[0]
