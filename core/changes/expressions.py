"""Whole numbers as documents write them: `E`, `nh * hd // 2`; one unknown may be added, as in `N + i`."""

import ast
from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from reshard.core.runtime.records import Record
from reshard.core.runtime.wording import quoted

VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]

_LARGEST = 2**63
_LONGEST_TEXT = 200


class Linear(Record):
    """The value of an expression: `offset`, and perhaps an unknown, `factor` times."""

    offset: int
    unknown: str = ""
    factor: int = 0


def whole_number(text: str, variables: Mapping[str, int]) -> int:
    """Return the value of an expression of variables.

    Raises:
        ValueError: it is malformed, or names no variable.
    """
    value = linear(text, variables)
    if value.unknown:
        known = f"; there are {', '.join(variables)}" if variables else ""
        raise ValueError(f"there is no variable {value.unknown!r}{known}")
    return value.offset


def linear(text: str, variables: Mapping[str, int]) -> Linear:
    """Return the value of an expression in which at most one name is not a variable.

    Raises:
        ValueError: it is malformed, or has more unknown names.
    """
    try:
        if len(text) > _LONGEST_TEXT:
            raise SyntaxError
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise ValueError(f"{quoted(text)} is not an expression, such as nh * hd // 2") from error
    return _value(tree, variables, text)


def _value(node: ast.expr, variables: Mapping[str, int], text: str) -> Linear:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return _limited(Linear(node.value), text)
    if isinstance(node, ast.Name):
        return Linear(variables[node.id]) if node.id in variables else Linear(0, node.id, 1)
    if isinstance(node, ast.BinOp):
        left, right = (_value(each, variables, text) for each in (node.left, node.right))
        return _limited(_combined(node.op, left, right, text), text)
    raise ValueError(f"{quoted(text)} has something other than whole numbers, names, + - * // ( )")


def _combined(operator: ast.operator, left: Linear, right: Linear, text: str) -> Linear:
    names = {each.unknown for each in (left, right) if each.unknown}
    if len(names) > 1:
        raise ValueError(f"{quoted(text)} has several names that are not variables: {', '.join(sorted(names))}")
    if isinstance(operator, ast.Add | ast.Sub):
        sign = 1 if isinstance(operator, ast.Add) else -1
        unknown = next(iter(names), "")
        return Linear(left.offset + sign * right.offset, unknown, left.factor + sign * right.factor)
    if isinstance(operator, ast.Mult | ast.FloorDiv) and not names:
        if isinstance(operator, ast.Mult):
            return Linear(left.offset * right.offset)
        if right.offset:
            return Linear(left.offset // right.offset)
        raise ValueError(f"{quoted(text)} divides by 0")
    wrong = f"{quoted(text)} does more with {', '.join(names)} than to add it" if names else f"{quoted(text)} has "
    raise ValueError(wrong if names else f"{wrong}an operator other than + - * //")


def _limited(value: Linear, text: str) -> Linear:
    if abs(value.offset) >= _LARGEST:
        raise ValueError(f"{quoted(text)} is 2^63 or more")
    return value
