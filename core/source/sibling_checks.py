"""Compares whole shapes with those of other parameters of the same layer: evidence that a strategy cuts one wrongly.

A matrix of a transformer's layer has the length of the layer's norms on one side: on its input side if it is a query,
key, value, gate or up projection, on its output side if it is an output or down projection. Embeddings have it on one
of theirs. Optimizer states have the shape of their parameter.

Other networks have other rules. So a matrix contradicts its siblings only if the strategy shards it, nothing confirms
its shape, the same shards sharded along another axis would go with the siblings, and every matrix that is not sharded,
or is confirmed, goes with them.
"""

import re
from collections.abc import Iterator, Mapping, Sequence

from reshard.core.changes.training_state import STATE_PREFIXES
from reshard.core.plan.whole_shapes import Whole, folded, other_cuts
from reshard.core.runtime.records import Record
from reshard.core.runtime.wording import listed
from reshard.core.source.findings import OWN_STRATEGY, Cause, Finding, findings_by_cause
from reshard.core.tensor.slices import Shape

_ROLE = re.compile(
    r"(?P<attention_in>w[qkv]|[qkv]_proj|linear_[qkv]|query|key|value|w_?qkv|qkv|qkv_proj|linear_qkv|query_key_value"
    r"|q_a_proj|kv_a_proj_with_mqa|linear_q_proj|linear_(?:q|kv|qkv)_down_proj)"
    r"|(?P<attention_out>wo|o_proj|out_proj|linear_proj)"
    r"|(?P<feed_forward_in>w[13]|w_gate_hidden|gate_proj|up_proj|gate_up_proj|linear_fc1|fc1|dense_h_to_4h"
    r"|router|gate)"
    r"|(?P<feed_forward_out>w2|down_proj|linear_fc2|fc2|dense_4h_to_h)"
)
"""Usual names of matrices, and on which side each has the hidden length."""
_TABLE = re.compile(r"embed|\bwte\b|lm_head|output_layer")
_NORM = re.compile(r"(?!(?:q|k|kv|query|key)_)\w*(?:norm|\bln|_ln)\w*")
_ENDINGS = (".weight", ".embedding_weight", ".gamma")
_MAX_SIBLINGS = 2

_UNLIKE_SIBLINGS = Cause(
    "by the strategy, whole shapes contradict those of other parameters of the layer",
    "the strategy shards one of them along another axis than the saving job did",
    OWN_STRATEGY,
)
_UNLIKE_PARAMETER = Cause(
    "by the strategy, optimizer states have other whole shapes than their parameters",
    "the strategy shards one of them along another axis, or into other pieces, than the saving job did",
    OWN_STRATEGY,
)


class _Matrix(Record):
    """A matrix of a layer; `hidden_axis` is the one that has the norms' length if weights are stored as [out, in]."""

    name: str
    whole: Whole
    hidden_axis: int


class _Rule(Record):
    """The length that matrices of a group share, and whether their axes are stored as [in, out]."""

    length: int
    is_transposed: bool

    def fits(self, matrix: _Matrix, shape: Shape) -> bool:
        return shape[matrix.hidden_axis ^ self.is_transposed] == self.length


def sibling_findings(wholes: Mapping[str, Whole]) -> list[Finding]:
    """Whole shapes that contradict those of other parameters; `wholes` are all of a source, by name."""
    if all(whole.confirmed_by for whole in wholes.values()):
        return []
    kinds: dict[tuple[str, Whole], str] = {}
    for name, whole in wholes.items():
        if not name.startswith(STATE_PREFIXES):
            kinds.setdefault((folded(name), whole), name)
    details = {
        _UNLIKE_SIBLINGS: [*_in_layers(kinds), *_in_tables(kinds)],
        _UNLIKE_PARAMETER: list(_in_states(wholes)),
    }
    return findings_by_cause("shapes", {cause: texts for cause, texts in details.items() if texts})


def _in_layers(kinds: Mapping[tuple[str, Whole], str]) -> Iterator[str]:
    norms = _norms(kinds)
    groups: dict[tuple[str, str, str], list[_Matrix]] = {}
    for (kind, whole), name in kinds.items():
        layer, number, rest = kind.partition(".*.")
        path, _, last = _without_ending(rest).rpartition(".")
        found = _ROLE.fullmatch(last)
        if number and found and len(whole.shape) == 2 and "cross" not in kind:
            part, _, side = str(found.lastgroup).rpartition("_")
            groups.setdefault((layer, path, part), []).append(_Matrix(name, whole, int(side == "in")))
    for (layer, _, _), matrices in groups.items():
        yield from _contradictions(matrices, norms.get(layer, {}))


def _contradictions(matrices: Sequence[_Matrix], norms: Mapping[int, str]) -> Iterator[str]:
    """Matrices that contradict the rule which most of them follow; `norms`: length of a norm -> its name."""
    lengths = norms or dict.fromkeys(length for matrix in matrices for length in matrix.whole.shape)
    rules = [_Rule(length, is_transposed) for length in lengths for is_transposed in (False, True)]
    if not rules:
        return
    rule = max(rules, key=lambda each: sum(each.fits(matrix, matrix.whole.shape) for matrix in matrices))
    fitting = [matrix for matrix in matrices if rule.fits(matrix, matrix.whole.shape)]
    others = [matrix for matrix in matrices if matrix not in fitting]
    if not norms and len(fitting) < max(2, len(others) + 1):
        return
    mended = [
        next((shape for shape in other_cuts(matrix.whole) if rule.fits(matrix, shape)), None) for matrix in others
    ]
    if any(matrix.whole.confirmed_by for matrix in others) or None in mended:
        return
    siblings = [_shown(matrix.name, matrix.whole.shape) for matrix in fitting[:_MAX_SIBLINGS]]
    if rule.length in norms:
        siblings.append(_shown(norms[rule.length], (rule.length,)))
    for matrix, shape in zip(others, mended, strict=True):
        yield _contradiction(matrix.name, matrix.whole, siblings, shape or ())


def _in_tables(kinds: Mapping[tuple[str, Whole], str]) -> Iterator[str]:
    """Embeddings and heads without an axis of the length that all norms of layers have."""
    norms = {length: name for of_layer in _norms(kinds).values() for length, name in of_layer.items()}
    if len(norms) != 1:
        return
    [(length, norm)] = norms.items()
    for (kind, whole), name in kinds.items():
        is_table = len(whole.shape) == 2 and ".*." not in kind and _TABLE.search(kind)
        if is_table and not whole.confirmed_by and length not in whole.shape:
            mended = next((shape for shape in other_cuts(whole) if length in shape), None)
            if mended is not None:
                yield _contradiction(name, whole, [_shown(norm, (length,))], mended)


def _in_states(wholes: Mapping[str, Whole]) -> Iterator[str]:
    for name, whole in wholes.items():
        prefix, dot, owner = name.partition(".")
        if f"{prefix}{dot}" not in STATE_PREFIXES or owner not in wholes:
            continue
        of_owner = wholes[owner]
        if whole.shape != of_owner.shape and not (whole.confirmed_by and of_owner.confirmed_by):
            yield f"{_shown(name, whole.shape)} beside {_shown(owner, of_owner.shape)}"


def _norms(kinds: Mapping[tuple[str, Whole], str]) -> dict[str, dict[int, str]]:
    """Layer -> the lengths of its own norms, which are not those of heads or of parts of the layer, and their names."""
    found: dict[str, dict[int, str]] = {}
    for (kind, whole), name in kinds.items():
        layer, number, rest = kind.partition(".*.")
        if number and len(whole.shape) == 1 and _NORM.fullmatch(_without_ending(rest)):
            found.setdefault(layer, {}).setdefault(whole.shape[0], name)
    return found


def _without_ending(name: str) -> str:
    return next((name.removesuffix(ending) for ending in _ENDINGS if name.endswith(ending)), name)


def _contradiction(name: str, whole: Whole, siblings: Sequence[str], mended: Shape) -> str:
    return (
        f"{_shown(name, whole.shape)} beside {listed(siblings)}; the same shards, sharded along another axis, make "
        f"{list(mended)}"
    )


def _shown(name: str, shape: Shape) -> str:
    return f"{name!r} {list(shape)}"
