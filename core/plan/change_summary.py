"""What the changes that were declared do to each parameter, and what they leave out; for tables, JSON and programs."""

from collections import Counter
from collections.abc import Iterator, Sequence

from pydantic import BaseModel, ConfigDict

from reshard.core.plan.plan import ConversionPlan
from reshard.core.runtime.wording import listed

CAST = "cast"
_KINDS = ("renamed", "split", "joined", "transposed", CAST)
_MOST_TOLD = 6


class _Summary(BaseModel):
    model_config = ConfigDict(frozen=True)


class ParameterEffect(_Summary):
    """What becomes of a target parameter besides being cut anew.

    Attributes:
        parameter: its name in the target.
        sources: names of the source parameters that it is made from.
        how: what is done: `renamed`, `split` (off), `joined`, `transposed`, `cast`.
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


class ExcludedParameter(_Summary):
    """A source parameter that is left out; `by` is what says so."""

    parameter: str
    by: str


def effects_of(plan: ConversionPlan) -> tuple[ParameterEffect, ...]:
    """The target parameters that are more than cut anew."""
    return tuple(each for each in (*_moved(plan), *_carried(plan)) if each.how)


def excluded_of(plan: ConversionPlan) -> tuple[ExcludedParameter, ...]:
    """The source parameters that are left out."""
    return tuple(ExcludedParameter(parameter=name, by=by) for name, by in plan.match.excluded.items())


def effects_text(effects: Sequence[ParameterEffect]) -> str:
    """How many parameters are changed in which way, in a sentence; nothing if none is."""
    counts = Counter(kind for effect in effects for kind in effect.how)
    dtypes = dict.fromkeys(effect.dtype for effect in effects if CAST in effect.how)
    told = [f"{counts[kind]} {kind}" for kind in _KINDS if counts[kind]]
    if dtypes:
        told[-1] += f" to {' or '.join(dtypes)}"
    return f"changed, as declared: {'; '.join(told)}" if told else ""


def excluded_text(excluded: Sequence[ExcludedParameter]) -> str:
    """What is left out by what, in a sentence; nothing if all is taken."""
    names: dict[str, list[str]] = {}
    for each in excluded:
        names.setdefault(each.by, []).append(each.parameter)
    told = [f"{len(those)} by {by} ({listed(those, _MOST_TOLD)})" for by, those in names.items()]
    return f"left out, as declared: {listed(told, _MOST_TOLD)}" if told else ""


def _moved(plan: ConversionPlan) -> Iterator[ParameterEffect]:
    for parameter in plan.match.resharded:
        dtypes = tuple(dict.fromkeys(source.dtype.name for source in parameter.sources))
        yield ParameterEffect(
            parameter=parameter.name,
            sources=tuple(source.name for source in parameter.sources),
            how=_how(parameter.steps, dtypes, parameter.dtype.name),
            source_dtypes=dtypes,
            dtype=parameter.dtype.name,
            source_shapes=tuple(source.shape for source in parameter.sources),
            shape=parameter.shape,
        )


def _carried(plan: ConversionPlan) -> Iterator[ParameterEffect]:
    for carried in plan.match.passed_through:
        entry = plan.source_entry(min(carried.owners), carried.source_name)
        yield ParameterEffect(
            parameter=carried.name,
            sources=(carried.source_name,),
            how=_how(carried.steps, (entry.dtype.name,), carried.dtype.name),
            source_dtypes=(entry.dtype.name,),
            dtype=carried.dtype.name,
            source_shapes=(entry.shape,),
            shape=entry.shape,
        )


def _how(steps: Sequence[str], source_dtypes: Sequence[str], dtype: str) -> tuple[str, ...]:
    return (*steps, *([CAST] if any(each != dtype for each in source_dtypes) else []))
