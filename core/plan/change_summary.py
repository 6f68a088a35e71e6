"""Summarizes declared changes: what they do to each parameter, and which they leave out."""

from collections import Counter
from collections.abc import Iterator, Sequence

from reshard.core.plan.plan import ConversionPlan
from reshard.core.runtime.summary import Summary
from reshard.core.runtime.wording import listed

CAST = "cast"
_KINDS = ("adapted", "renamed", "split", "joined", "transposed", CAST)
_MAX_NAMES = 6


class ParameterChange(Summary):
    """A target parameter that is changed, not only resharded.

    Attributes:
        parameter: its name in the target.
        sources: names of its source parameters.
        how: its changes: `adapted` (it, or another part of its source), `renamed`, `split` (off), `joined`,
            `transposed`, `cast`.
        source_dtypes: element types of the sources, each once.
        dtype: element type in the target.
        source_shapes: whole shapes of the sources, in their order.
        shape: its whole shape in the target.
    """

    parameter: str
    sources: tuple[str, ...]
    how: tuple[str, ...]
    source_dtypes: tuple[str, ...]
    dtype: str
    source_shapes: tuple[tuple[int, ...], ...]
    shape: tuple[int, ...]


class ExcludedParameter(Summary):
    """A source parameter that is left out; `by` is the declaration."""

    parameter: str
    by: str


def changes_of(plan: ConversionPlan) -> tuple[ParameterChange, ...]:
    """Return the target parameters that are not only resharded."""
    return (*_of_resharded(plan), *_of_passed_through(plan))


def excluded_parameters(plan: ConversionPlan) -> tuple[ExcludedParameter, ...]:
    """Return the source parameters that are left out."""
    return tuple(ExcludedParameter(parameter=name, by=by) for name, by in plan.match.left_out.sources.items())


def changes_text(changes: Sequence[ParameterChange]) -> str:
    """Format how many parameters are changed in which way; empty if none is."""
    counts = Counter(kind for change in changes for kind in change.how)
    dtypes = dict.fromkeys(change.dtype for change in changes if CAST in change.how)
    parts = [f"{counts[kind]} {kind}" for kind in _KINDS if counts[kind]]
    if dtypes:
        parts[-1] += f" to {' or '.join(dtypes)}"
    return f"changed, as declared: {'; '.join(parts)}" if parts else ""


def excluded_text(excluded: Sequence[ExcludedParameter]) -> str:
    """Format which parameters are left out by which declaration; empty if none is."""
    names: dict[str, list[str]] = {}
    for each in excluded:
        names.setdefault(each.by, []).append(each.parameter)
    parts = [f"{len(those)} by {by} ({listed(those, _MAX_NAMES)})" for by, those in names.items()]
    return f"left out, as declared: {listed(parts, _MAX_NAMES)}" if parts else ""


def _of_resharded(plan: ConversionPlan) -> Iterator[ParameterChange]:
    for parameter in plan.match.resharded:
        dtypes = tuple(dict.fromkeys(source.dtype.name for source in parameter.sources))
        how = _how(parameter.steps, dtypes, parameter.dtype.name)
        if not how:  # the usual case, of thousands
            continue
        yield ParameterChange(
            parameter=parameter.name,
            sources=tuple(source.name for source in parameter.sources),
            how=how,
            source_dtypes=dtypes,
            dtype=parameter.dtype.name,
            source_shapes=tuple(source.shape for source in parameter.sources),
            shape=parameter.shape,
        )


def _of_passed_through(plan: ConversionPlan) -> Iterator[ParameterChange]:
    for passed in plan.match.passed_through:
        entry = plan.source_entry(min(passed.owners), passed.source_name)
        how = _how(passed.steps, (entry.dtype.name,), passed.dtype.name)
        if not how:
            continue
        yield ParameterChange(
            parameter=passed.name,
            sources=(passed.source_name,),
            how=how,
            source_dtypes=(entry.dtype.name,),
            dtype=passed.dtype.name,
            source_shapes=(entry.shape,),
            shape=entry.shape,
        )


def _how(steps: Sequence[str], source_dtypes: Sequence[str], dtype: str) -> tuple[str, ...]:
    return (*steps, *([CAST] if any(each != dtype for each in source_dtypes) else []))
