"""Compares two checkpoints, whatever their strategies and formats: are they the same model?

The dtype, shape and fingerprint of each parameter follow from a side's own files and layout; all replicas are read.
Parameters that differ are read again from both sides, to locate and measure the difference.
"""

import time
from collections.abc import Iterator, Mapping
from functools import cached_property
from threading import Event
from typing import Literal

from msgspec.structs import asdict, replace

from reshard.core.changes.changes import Fp8
from reshard.core.errors import InputError
from reshard.core.request.comparison import ComparisonRequest
from reshard.core.request.resources import resources_of
from reshard.core.request.source import FingerprintRequest
from reshard.core.runtime.named_values import Resolver
from reshard.core.runtime.progress import Progress, SilentProgress, advancing, current_progress, reporting_to
from reshard.core.runtime.records import Record
from reshard.core.runtime.threads import in_threads
from reshard.core.runtime.wording import counted, size_text
from reshard.core.tensor.dtypes import MAP_TENSOR, TEXT, DType
from reshard.core.text.options import option, options_of_side, spelled
from reshard.core.text.printing import printable
from reshard.core.verification.accumulator import Contents
from reshard.core.verification.common_values import InCommon, held_against_common
from reshard.core.verification.comparison_report import (
    ComparisonReport,
    Kind,
    ParameterDifference,
    SideSummary,
    difference_words,
)
from reshard.core.verification.differences import Located, common_float, locate
from reshard.core.verification.fingerprint_file import ModelFingerprint, names_fingerprints
from reshard.core.verification.views import (
    CheckpointView,
    FingerprintsView,
    Tensor,
    View,
    open_checkpoint_view,
    open_fingerprints,
)

_MAX_TEXT_LENGTH = 40


def compare_checkpoints(
    request: ComparisonRequest, progress: Progress | None = None, resolvers: Mapping[str, Resolver] | None = None
) -> ComparisonReport:
    """Compare two checkpoints; `resolvers` look up names of keys and storages beyond `env:` and `file:`.

    Raises:
        InputError: a side is neither a complete checkpoint nor a document of fingerprints, or options are wrong.
        StorageError: a side cannot be read.
    """
    started = time.monotonic()
    with reporting_to(progress or SilentProgress()):
        a: View
        if request.preset or request.changes or request.lora or request.fp8 is not Fp8.AUTO:
            a, b = _changed(request, _opened(request, "b", resolvers), resolvers)
        else:
            a, b = _opened(request, "a", resolvers), _opened(request, "b", resolvers)
        _check_selection(a.unused & b.unused, [a.url, b.url])
        if not a.tensors and not b.tensors:
            both = f"{printable(a.url)} and {printable(b.url)}"
            raise InputError(f"nothing is left to compare of {both}: no parameter is included")
        read_bytes = a.stored_bytes(a.tensors) + b.stored_bytes(b.tensors)
        current_progress().begin("comparing", read_bytes)
        is_secret = bool(request.decrypt_key_a or request.decrypt_key_b)
        comparison = _Comparison(a, b, a.contents(a.tensors), b.contents(b.tensors), is_secret)
        differences, notes = comparison.differences(request.ignore_dtype)
        in_common_b, in_common_a = comparison.in_common
        only_a = tuple(name for name in a.tensors if name not in b.tensors and name not in in_common_b.names)
        only_b = tuple(name for name in b.tensors if name not in a.tensors and name not in in_common_a.names)
        if differences and not (isinstance(a, CheckpointView) and isinstance(b, CheckpointView)):
            notes.append("fingerprints alone do not show where contents differ, and by how much")
        if only_a and only_b and len(only_a) == len(a.tensors):
            notes.append(
                spelled(
                    "A and B have no parameter name in common; if parameters of one were renamed, convert the other "
                    f"with the same {option('rename')}, and compare the result"
                )
            )
        sides = (_summary(a, comparison.contents_a), _summary(b, comparison.contents_b))
        faults = list(_faults(sides, only_a, only_b, differences))
        return ComparisonReport(
            same=not faults,
            verdict=f"NOT the same: {', '.join(faults)}" if faults else _same_text(sides),
            a=sides[0],
            b=sides[1],
            only_a=only_a,
            only_b=only_b,
            differences=tuple(differences),
            notes=tuple(notes),
            read_bytes=read_bytes,
            seconds=round(time.monotonic() - started, 3),
        )


def fingerprint_checkpoint(
    request: FingerprintRequest, progress: Progress | None = None, resolvers: Mapping[str, Resolver] | None = None
) -> ModelFingerprint:
    """Return the fingerprints of a checkpoint's parameters.

    Raises:
        InputError: the checkpoint is incomplete, or options are wrong.
        StorageError: the checkpoint cannot be read.
    """
    with reporting_to(progress or SilentProgress()):
        view = open_checkpoint_view(request, resolvers)
        _check_selection(view.unused, [view.url])
        if not view.tensors:
            raise InputError(f"{printable(view.url)}: there is nothing to fingerprint: no parameter is included")
        current_progress().begin("reading", view.stored_bytes(view.tensors))
        return view.document_of(view.contents(view.tensors))


def _check_selection(unused: frozenset[str], urls: list[str]) -> None:
    """Refuse patterns that match nothing: a mistyped one would compare what it should leave out."""
    if unused:
        raise InputError(f"{', '.join(sorted(unused))}: no parameter of {' or '.join(urls)} has such a name")


def _opened(request: ComparisonRequest, letter: Literal["a", "b"], resolvers: Mapping[str, Resolver] | None) -> View:
    side = request.side(letter)
    with options_of_side(letter):
        return (open_fingerprints if names_fingerprints(side.source) else open_checkpoint_view)(side, resolvers)


def _changed(
    request: ComparisonRequest, b: View, resolvers: Mapping[str, Resolver] | None
) -> tuple[FingerprintsView, View]:
    """A as a preset or declared changes make it, and B with what corresponds to the selection of A."""
    from reshard.core.plan.preset_checks import rotary_buffers, rotary_buffers_note
    from reshard.core.source.adapter import AdapterChoice
    from reshard.core.source.preset_changes import PresetChoice  # loads YAML
    from reshard.core.verification.changed_view import open_changed_view

    like = request.b if isinstance(b, CheckpointView) and b.has_whole_tensors else ""
    choice = None
    if request.preset and isinstance(b, CheckpointView):
        with options_of_side("b"), resources_of(request.side("b"), resolvers):
            choice = PresetChoice.of_comparison(request, like)
    elif request.preset:
        choice = PresetChoice.of(request, like)
    with options_of_side("a"), resources_of(request.side("b"), resolvers):
        changed = open_changed_view(
            request.side("a"),
            choice,
            request.changes,
            b.all_tensors,
            resolvers,
            fp8=request.fp8,
            casts=request.ignore_dtype,
            lora=AdapterChoice(request.lora, request.lora_alpha, request.training_config) if request.lora else None,
        )
    a, everything = changed.view, b.all_tensors
    buffers = rotary_buffers(everything.keys() - a.tensors.keys()) if request.preset else []
    left_out = changed.left_out.union(buffers)
    b = b.selecting(name for name in everything if (name in b.tensors or name in a.tensors) and name not in left_out)
    return a, replace(b, notes=(*b.notes, rotary_buffers_note(buffers))) if buffers else b


class _Comparison(Record, dict=True):
    a: View
    b: View
    contents_a: Contents
    contents_b: Contents
    is_secret: bool
    """True if a side is encrypted: reports, which are printed, logged and stored, then show no values."""

    @cached_property
    def in_common(self) -> tuple[InCommon, InCommon]:
        """The parameters of A that B has in common.json only, and those of B that A has there only."""
        return (
            _held_against(self.a, self.contents_a, self.b),
            _held_against(self.b, self.contents_b, self.a),
        )

    def differences(self, ignore_dtype: bool) -> tuple[list[ParameterDifference], list[str]]:
        """Differences of parameters that both have, in the order of A, and notes on some that do not differ."""
        found: list[ParameterDifference] = []
        notes: list[str] = []
        unequal: dict[str, DType] = {}
        for name in self.a.tensors:
            if name not in self.b.tensors:
                continue
            one, other = self.a.tensors[name], self.b.tensors[name]
            if _is_same_dtype(one.dtype, other.dtype) and (one.shape == other.shape or one.dtype in (TEXT, MAP_TENSOR)):
                ones, others = self.contents_a.fingerprints[name], self.contents_b.fingerprints[name]
                if self._same_contents(ones, others):
                    notes += _note_on_rank_contents(name, len(ones), len(others))
                else:
                    unequal[name] = one.dtype
            elif one.shape == other.shape and one.dtype.is_float and other.dtype.is_float:
                unequal[name] = common_float(one.dtype, other.dtype)
            else:
                found.append(_difference(name, one, other))
        cast = self._equal_when_cast(unequal)
        to_locate = [name for name in unequal if not cast.get(name)]
        located = self._located(to_locate)
        for name in unequal:
            if not (cast.get(name) and ignore_dtype):
                one, other = self.a.tensors[name], self.b.tensors[name]
                text = self._texts(name) if one.dtype is TEXT else None
                difference = _difference(name, one, other, cast.get(name), located.get(name), text)
                found.append(self._with_counts(difference))
        if ignore_dtype and any(cast.values()):
            count = sum(equal is True for equal in cast.values())
            notes.append(f"{counted(count, 'parameter')} of other dtypes, equal when cast")
        found += self._different_in_common("B", self.a, self.b, self.in_common[0])
        found += self._different_in_common("A", self.b, self.a, self.in_common[1])
        for letter, in_common in zip("BA", self.in_common, strict=True):
            if in_common.equal:
                notes.append(f"in common.json of {letter}, with equal values: {', '.join(in_common.equal)}")
        order = {name: place for place, name in enumerate([*self.a.tensors, *self.b.tensors])}
        return sorted(found, key=lambda each: order[each.name]), notes

    def _different_in_common(
        self, letter: str, side: View, other: View, in_common: InCommon
    ) -> Iterator[ParameterDifference]:
        for name in in_common.different:
            tensor, value = side.tensors[name], "another value" if self.is_secret else other.common[name]
            yield _difference(name, tensor, tensor).model_copy(
                update={"message": f"common.json of {letter} has {value}"}
            )

    def _same_contents(self, ones: tuple[int, ...], others: tuple[int, ...]) -> bool:
        """True if ranks' contents are the same; a side may lack some that a conversion would not take.

        Every target rank takes those of the source rank at its place in the stage: with one stage, and no more ranks
        than the target's stages have, all are taken.
        """
        if len(ones) == len(others):
            return set(ones) == set(others)
        few, many = (self.a, self.b) if len(ones) < len(others) else (self.b, self.a)
        may_lack = many.stages > 1 or few.ranks_of_stage < many.ranks_of_stage
        return may_lack and (set(ones) <= set(others) or set(others) <= set(ones))

    def _with_counts(self, difference: ParameterDifference) -> ParameterDifference:
        """The difference, with the number of different contents if a side has several."""
        ones, others = (len(side.fingerprints[difference.name]) for side in (self.contents_a, self.contents_b))
        if max(ones, others) == 1:
            return difference
        counts = f"between ranks {ones} different contents in A, {others} in B"
        return difference.model_copy(update={"message": "; ".join(filter(None, [difference.message, counts]))})

    def _equal_when_cast(self, unequal: Mapping[str, DType]) -> dict[str, bool | None]:
        """For parameters of different dtypes: True if they are equal in the common one; None if unknown."""
        casts = [
            {name: dtype for name, dtype in unequal.items() if side.tensors[name].dtype is not dtype}
            for side in (self.a, self.b)
        ]
        if not any(casts):
            return {}
        current_progress().note("reading parameters of different dtypes again, to compare them in the narrower one")
        fingerprints = []
        for side, contents, wanted in zip((self.a, self.b), (self.contents_a, self.contents_b), casts, strict=True):
            cast = side.contents(wanted, wanted).fingerprints if wanted and isinstance(side, CheckpointView) else {}
            known = {name: found for name, found in contents.fingerprints.items() if name not in wanted}
            fingerprints.append({**known, **cast})
        ones, others = fingerprints
        return {
            name: ones[name] == others[name] if name in ones and name in others else None
            for wanted in casts
            for name in wanted
        }

    def _located(self, names: list[str]) -> dict[str, Located | None]:
        a, b = self.a, self.b
        names = [
            name
            for name in names
            if a.tensors[name].dtype is not TEXT and a.tensors[name].shape == b.tensors[name].shape
        ]
        if not (names and isinstance(a, CheckpointView) and isinstance(b, CheckpointView)):
            return {}
        progress, stop = current_progress(), Event()
        again = f"locating differences of {counted(len(names), 'parameter')}"
        progress.begin(again, sum(side.tensors[name].size_bytes for side in (a, b) for name in names))
        advance = advancing(progress, stop)

        def work(name: str) -> Located | None:
            with a.reading(name, advance) as read_a, b.reading(name, advance) as read_b:
                return locate(a.tensors[name].shape, read_a, a.tensors[name].dtype, read_b, b.tensors[name].dtype)

        located = in_threads(work, names, min(a.workers, b.workers), stop)
        if self.is_secret:
            located = [each and replace(each, values=None) for each in located]
        return dict(zip(names, located, strict=True))

    def _texts(self, name: str) -> tuple[str, str] | None:
        if not (isinstance(self.a, CheckpointView) and isinstance(self.b, CheckpointView)) or self.is_secret:
            return None
        texts = self.a.text(name) or "", self.b.text(name) or ""
        return None if texts[0] == texts[1] else texts  # texts of other ranks may differ


def _is_same_dtype(one: DType, other: DType) -> bool:
    # fingerprints alone do not tell the element size of a foreign dtype
    return one is other or (one.is_foreign and other.is_foreign and one.name == other.name)


def _difference(
    name: str,
    one: Tensor,
    other: Tensor,
    equal_when_cast: bool | None = None,
    located: Located | None = None,
    texts: tuple[str, str] | None = None,
) -> ParameterDifference:
    kind = Kind.SHAPE if one.shape != other.shape and one.dtype is not TEXT else Kind.CONTENT
    if not _is_same_dtype(one.dtype, other.dtype):
        kind = Kind.DTYPE
    common = common_float(one.dtype, other.dtype)
    is_cast = kind is Kind.DTYPE and one.shape == other.shape and one.dtype.is_float and other.dtype.is_float
    difference = ParameterDifference(
        name=name,
        kind=kind,
        dtypes=(one.dtype.name, other.dtype.name),
        shapes=(one.shape, other.shape),
        cast_to=common.name if is_cast else None,
        equal_when_cast=equal_when_cast,
        values=texts and (_shortened(texts[0]), _shortened(texts[1])),
    )
    if located is not None:
        difference = difference.model_copy(update=asdict(located))
    return difference.model_copy(update={"message": "; ".join(difference_words(difference))})


def _shortened(text: str) -> str:
    return text if len(text) <= _MAX_TEXT_LENGTH else f"{text[:_MAX_TEXT_LENGTH]}…"


def _held_against(side: View, contents: Contents, other: View) -> InCommon:
    names = [name for name in side.tensors if name not in other.tensors]
    kinds = {name: (side.tensors[name].dtype, side.tensors[name].shape) for name in names}
    return held_against_common(names, kinds, contents.fingerprints, other.common)


def _note_on_rank_contents(name: str, ones: int, others: int) -> Iterator[str]:
    if max(ones, others) > 1:
        yield (
            f"parameter {name!r}, which no strategy knows, differs between ranks: {ones} different contents in A, "
            f"{others} in B; all contents of one side are among the other's"
        )


def _summary(side: View, contents: Contents) -> SideSummary:
    return SideSummary(
        url=side.url,
        step=side.step,
        ranks=side.ranks,
        unified=side.has_whole_tensors,
        parameters=len(side.tensors),
        size_bytes=side.size_bytes,
        differing=contents.differing,
        notes=side.notes,
        counts_files=side.counts_files,
    )


def _faults(
    sides: tuple[SideSummary, SideSummary],
    only_a: tuple[str, ...],
    only_b: tuple[str, ...],
    differences: list[ParameterDifference],
) -> Iterator[str]:
    for names, letter in ((only_a, "A"), (only_b, "B")):
        if names:
            yield f"{counted(len(names), 'parameter')} only in {letter}"
    for kind in Kind:
        count = sum(difference.kind is kind for difference in differences)
        if count:
            yield f"{counted(count, 'parameter')} of different {kind}"
    for side, letter in zip(sides, "AB", strict=True):
        if side.differing:
            yield f"{letter} is not a single model: replicas of {counted(len(side.differing), 'slice')} differ"


def _same_text(sides: tuple[SideSummary, SideSummary]) -> str:
    a, b = sides
    sizes = dict.fromkeys(size_text(side.size_bytes) for side in sides)
    ranks = f"{a.ranks} and {b.ranks} ranks"
    if a.counts_files or b.counts_files:
        ranks = " and ".join(counted(side.ranks, "file" if side.counts_files else "rank") for side in sides)
    return f"the same model: {counted(a.parameters, 'parameter')}, {' and '.join(sizes)}, {ranks}"
