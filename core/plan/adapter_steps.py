"""The steps that lead from an adapter's matrices to those of another world.

B has the rows of its weight. So each B gets the name of its weight, and what a preset does to weights is done to it. A
has the columns, which stay. Each weight that has rows of one needs its A. Where one has rows of several, all must have
the same A, or their matrices are blocks of larger ones:

    W1, W2 += B1 A1, B2 A2      A = A1    B = B1  0
                                    A2         0 B2
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from reshard.core.plan.adapter_groups import WEIGHT, Group
from reshard.core.runtime.records import Record

_NUMBER = re.compile(r"(?<![^.])(?:0|[1-9][0-9]{0,8})(?![^.])")
_SECOND = {"rename": "to", "repeat": "to", "zeros": "to", "join": "into", "drop": "copy_of"}
"""Kind of step -> the field of its second names."""
_LEAVES = ("repeat", "zeros")
"""Kinds that keep the parameters that they match."""
_Pair = tuple[str, str]
"""Names of A and B."""


class _Move(Record):
    """What a step does to parameters of some names; `second` are the names that it makes, or that of an original."""

    parameters: tuple[str, ...]
    second: str
    fields: tuple[tuple[str, int], ...] = ()


def matrix_steps(
    groups: Sequence[Group],
    sources: Mapping[str, _Pair],
    targets: Mapping[str, _Pair],
    of_weights: Sequence[Mapping[str, Any]],
    blocks: int,
) -> list[Mapping[str, Any]]:
    """Return the steps of all matrices, as a document of changes has them.

    Args:
        groups: the modules that go together.
        sources: module -> the names of its matrices.
        targets: the same of the target's modules.
        of_weights: the steps that lead from the source's weights to the target's.
        blocks: how many matrices become blocks of one, in all modules; 1: those of a group must have the same A.
    """
    document = _Document(name for pair in sources.values() for name in pair)
    _add_a(document, groups, sources, targets, blocks)
    weights = {module: f"{module}{WEIGHT}" for module in sources}
    document.add("rename", [_Move((sources[module][1],), weight) for module, weight in weights.items()])
    if blocks > 1:
        _widen_b(document, groups, blocks)
    lacking = [
        _Move((weights[group.sources[0]],), name, (("axis", 0), ("length", rows)))
        for group in groups
        for name, rows in group.lacking.items()
    ]
    document.add("zeros", lacking)
    made = [made.module for group in groups for made in group.targets]
    parts = {*weights.values(), *(move.second for move in lacking)}
    document.go_on(of_weights, parts, [f"{module}{WEIGHT}" for module in made])
    document.add("rename", [_Move((f"{module}{WEIGHT}",), targets[module][1]) for module in made])
    return document.steps


def sources_of(
    groups: Sequence[Group], sources: Mapping[str, _Pair], targets: Mapping[str, _Pair], blocks: int
) -> dict[str, frozenset[str]]:
    """Return the target's matrices, each with those of the source that it has to be made of."""
    found: dict[str, frozenset[str]] = {}
    for group in groups:
        by_part = {f"{module}{WEIGHT}": sources[module][1] for module in group.sources}
        by_part |= dict.fromkeys(group.lacking, sources[group.sources[0]][1])
        a = [sources[module][0] for module in group.sources]
        for made in group.targets:
            name_a, name_b = targets[made.module]
            found[name_a] = frozenset(a if blocks > 1 else a[:1])
            found[name_b] = frozenset(by_part[part] for part in made.parts)
    return found


def _add_a(
    document: "_Document",
    groups: Sequence[Group],
    sources: Mapping[str, _Pair],
    targets: Mapping[str, _Pair],
    blocks: int,
) -> None:
    """Add the steps of all A: those of a group become one, which each of its targets gets."""
    matrices = [[sources[module][0] for module in group.sources] for group in groups]
    if blocks > 1:
        zeros = [_zeros(names[0], range(len(names), blocks)) for names in matrices]
        blocked = list(zip(matrices, zeros, strict=True))
        document.add("zeros", [_Move((names[0],), name) for names, those in blocked for name in those])
        document.add("join", [_Move((*names, *those), names[0], (("axis", 0),)) for names, those in blocked])
    else:
        document.add("drop", [_Move((name,), names[0]) for names in matrices for name in names[1:]])
    repeats, renames = list[_Move](), list[_Move]()
    for group, names in zip(groups, matrices, strict=True):
        first, *others = (targets[made.module][0] for made in group.targets)
        repeats += [_Move((names[0],), other) for other in others]
        renames.append(_Move((names[0],), first))
    document.add("repeat", repeats)
    document.add("rename", renames)


def _widen_b(document: "_Document", groups: Sequence[Group], blocks: int) -> None:
    """Add the steps that put each B in its block of columns, between zeros."""
    wide: list[_Move] = []
    for group in groups:
        for number, module in enumerate(group.sources):
            weight = f"{module}{WEIGHT}"
            parts = _zeros(weight, range(blocks))
            parts[number] = weight
            wide.append(_Move(tuple(parts), weight, (("axis", 1),)))
    zeros = [_Move((move.second,), name) for move in wide for name in move.parameters if name != move.second]
    document.add("zeros", zeros)
    document.add("join", wide)


def _zeros(name: str, numbers: Iterable[int]) -> list[str]:
    return [f"{name} zeros {number}" for number in numbers]


class _Document:
    """Steps so far, and the names that they leave.

    What is done to the same names but for numbers is one step, unless others would match it.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self.steps: list[Mapping[str, Any]] = []
        self._names = set(names)

    def add(self, kind: str, moves: Sequence[_Move]) -> None:
        """Add steps of a kind."""
        by_template: dict[_Move, list[_Move]] = defaultdict(list)
        for move in moves:
            by_template[_template(move)].append(move)
        fitting: dict[str, set[str]] = defaultdict(set)
        for name in self._names.union(move.second for move in moves):  # a step sees what those before it make
            fitting[_with_placeholders(name)].add(name)
        wanted: dict[str, list[_Move]] = defaultdict(list)
        for template in by_template:
            wanted[template.parameters[0]].append(template)
        for template, those in by_template.items():
            is_alone = (kind in _LEAVES or len(wanted[template.parameters[0]]) == 1) and all(
                fitting.get(text) == {move.parameters[number] for move in those}
                for number, text in enumerate(template.parameters)
            )
            for move in [template] if is_alone else map(_escaped, those):
                self.steps.append(_step(kind, move))
        for move in moves:
            if kind not in _LEAVES:
                self._names.difference_update(move.parameters)
        if kind != "drop":
            self._names.update(move.second for move in moves)

    def go_on(self, steps: Iterable[Mapping[str, Any]], parameters: Iterable[str], made: Iterable[str]) -> None:
        """Add other steps, which make parameters of others."""
        self.steps += steps
        self._names.difference_update(parameters)
        self._names.update(made)


def _step(kind: str, move: _Move) -> dict[str, Any]:
    parameters = move.parameters if kind == "join" else move.parameters[0]
    # options may leave some out
    return {kind: {"parameters": parameters, _SECOND[kind]: move.second, **dict(move.fields), "optional": True}}


def _template(move: _Move) -> _Move:
    """What is done, with the numbers in names as placeholders; as it is if they differ."""
    names = (*move.parameters, move.second)
    if len({tuple(_NUMBER.findall(name)) for name in names}) > 1:
        return _escaped(move)
    *parameters, second = map(_with_placeholders, names)
    return _Move(tuple(parameters), second, move.fields)


def _escaped(move: _Move) -> _Move:
    return _Move(tuple(map(_plain, move.parameters)), _plain(move.second), move.fields)


def _with_placeholders(name: str) -> str:
    numbers: Iterator[int] = iter(range(len(name)))
    return _NUMBER.sub(lambda _: f"{{n{next(numbers)}}}", _plain(name))


def _plain(name: str) -> str:
    return name.replace("{", "{{").replace("}", "}}")
