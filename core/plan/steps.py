"""Applies the steps of declared changes to names: each sees the parameters that the one before left.

A step holds for a parameter and for its states, such as `adam_m.` and its name, which are sharded alike. Factored
states, which have other shapes than their parameters, can be renamed only.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import singledispatchmethod
from itertools import islice

from reshard.core.changes.steps import (
    AddStep,
    AnyStep,
    DequantizeStep,
    DivideStep,
    DropStep,
    JoinStep,
    MergeStep,
    PadStep,
    RenameStep,
    RepeatStep,
    SliceStep,
    SplitStep,
    StackStep,
    StepRule,
    TransposeStep,
    UnpackStep,
    UnstackStep,
    ZerosStep,
    index_of,
)
from reshard.core.changes.templates import Template, Values
from reshard.core.changes.training_state import MASTER_PREFIXES
from reshard.core.plan.making import Making, MakingNames
from reshard.core.plan.operations import (
    Adapted,
    Added,
    Dequantized,
    DividedAxis,
    Joined,
    MergedAxes,
    Operation,
    Padded,
    Repeated,
    Sliced,
    SplitOff,
    Stacked,
    Transposed,
    Unpacked,
    Unstacked,
    Zeros,
)
from reshard.core.runtime.records import Record
from reshard.core.runtime.wording import listed, quoted
from reshard.core.text.options import option

_FACTORED = ("exp_avg_sq_row_", "exp_avg_sq_col_", "exp_avg_insta_row_", "exp_avg_insta_col_")
"""Prefixes of the states of Adafactor and CAME that keep sums along axes of their parameter."""
_MAX_LISTED = 6


class DroppedCopy(Record):
    """A source parameter that is left out because it has the same content as another; `rule` says so."""

    name: str
    copy_of: str
    rule: str


class _Fitting(Record):
    """A parameter that fits a template: the prefix of its states, what placeholders stand for, the parameter."""

    prefix: str
    values: Values
    making: Making


class _Gathered(Record):
    """What becomes one parameter: the templates of its parts, by their numbers, or one of all with an index.

    Attributes:
        count: how many parts it has.
        index: the placeholder that numbers the parts; empty if each has a template.
    """

    templates: Sequence[Template]
    count: int
    index: str = ""

    def name_of(self, number: int, values: Values) -> str:
        """Return the name of a part; `values` are those of another."""
        if self.index:
            return self.templates[0].expanded({**values, self.index: number})
        return self.templates[number].expanded(values)


class StepNames:
    """Parameters by their names, to which steps are applied; what is wrong is added to `problems`.

    Attributes:
        current: the parameters that the steps left, by their names.
        dropped_copies: those that were left out as copies of others.
    """

    def __init__(self, current: Mapping[str, Making], state_prefixes: Sequence[str], problems: list[str]) -> None:
        self.current = dict(current)
        self.dropped_copies: list[DroppedCopy] = []
        self._problems = problems
        # the longest first: `exp_avg_sq.` is not `exp_avg`
        self._prefixes = tuple(sorted({*state_prefixes, *_FACTORED}, key=len, reverse=True))
        self._known_prefixes: dict[str, str] = {}

    def apply(self, rule: AnyStep) -> bool:
        """Apply a step; False if it fits nothing."""
        return self._apply(rule)

    @singledispatchmethod
    def _apply(self, rule: StepRule) -> bool:
        raise NotImplementedError(type(rule))

    @_apply.register
    def _(self, rule: RenameStep) -> bool:
        old, new = rule.templates
        return self._replace(
            rule, old, lambda each: [each.making.named(each.prefix + new.expanded(each.values))], keeps_shape=True
        )

    @_apply.register
    def _(self, rule: SplitStep) -> bool:
        fused, *parts = rule.templates

        def split(each: _Fitting) -> Iterator[Making]:
            for number, part in enumerate(parts):
                operation = SplitOff(str(rule), rule.axis, rule.shares, rule.groups, number)
                yield each.making.made(each.prefix + part.expanded(each.values), operation)

        return self._replace(rule, fused, split, makes=len(parts))

    @_apply.register
    def _(self, rule: JoinStep) -> bool:
        *parts, into = rule.templates
        gathered = _Gathered(parts, len(parts))
        return self._gather(rule, gathered, into, Joined(str(rule), rule.axis, rule.groups, rule.shares))

    @_apply.register
    def _(self, rule: StackStep) -> bool:
        family, one = rule.templates
        gathered = _Gathered([family], rule.count, index_of(family, one))
        return self._gather(rule, gathered, one, Stacked(str(rule)))

    @_apply.register
    def _(self, rule: UnstackStep) -> bool:
        one, family = rule.templates
        index = index_of(family, one)

        def unstack(each: _Fitting) -> Iterator[Making]:
            for number in range(rule.count):
                name = each.prefix + family.expanded({**each.values, index: number})
                yield each.making.made(name, Unstacked(str(rule), rule.count, number))

        return self._replace(rule, one, unstack, makes=rule.count)

    @_apply.register
    def _(self, rule: TransposeStep) -> bool:
        return self._change(rule, Transposed(str(rule), rule.axes))

    @_apply.register
    def _(self, rule: MergeStep) -> bool:
        return self._change(rule, MergedAxes(str(rule), rule.count))

    @_apply.register
    def _(self, rule: DivideStep) -> bool:
        return self._change(rule, DividedAxis(str(rule), rule.count))

    @_apply.register
    def _(self, rule: SliceStep) -> bool:
        return self._change(rule, Sliced(str(rule), rule.axis, rule.start, rule.stop))

    @_apply.register
    def _(self, rule: PadStep) -> bool:
        return self._change(rule, Padded(str(rule), rule.axis, rule.length))

    @_apply.register
    def _(self, rule: AddStep) -> bool:
        [template] = rule.templates
        operation = Added(str(rule), rule.number)

        def add(each: _Fitting) -> list[Making]:
            has_values = not each.prefix or each.prefix in MASTER_PREFIXES
            return [each.making.made(each.making.name, operation) if has_values else each.making]

        return self._replace(rule, template, add, keeps_shape=True, needs_values=False)

    @_apply.register
    def _(self, rule: RepeatStep) -> bool:
        one, family = rule.templates
        index = index_of(family, one)

        def repeat(each: _Fitting) -> Iterator[Making]:
            yield each.making
            for number in range(rule.count):
                name = each.prefix + family.expanded({**each.values, index: number})
                yield each.making.made(name, Repeated(str(rule)))

        return self._replace(rule, one, repeat, makes=1 + rule.count)

    @_apply.register
    def _(self, rule: ZerosStep) -> bool:
        one, new = rule.templates
        operation = Zeros(str(rule), rule.axis, rule.length)

        def zeros(each: _Fitting) -> Iterator[Making]:
            yield each.making
            yield each.making.made(each.prefix + new.expanded(each.values), operation)

        return self._replace(rule, one, zeros, makes=2)

    @_apply.register
    def _(self, rule: DropStep) -> bool:
        family, one = rule.templates
        index = index_of(family, one)
        found: dict[tuple[str, str], set[int]] = {}

        def drop(each: _Fitting) -> Iterator[Making]:
            name = each.prefix + one.expanded(each.values)
            original = self.current.get(name)
            found.setdefault((each.prefix, name), set()).add(int(each.values.get(index, 0)))
            if original is None:
                self._problems.append(f"{rule}: there is no {name!r}, of which {each.making.name!r} is to be a copy")
            elif original.operation is not None or each.making.operation is not None:
                is_adapted = any(isinstance(making.operation, Adapted) for making in (original, each.making))
                advice = "drop it before other steps change them"
                if is_adapted:
                    advice = "convert first, then merge the adapter, which changes one of them"
                self._problems.append(
                    f"{rule}: {each.making.name!r} and {name!r} can only be compared as the source has them: {advice}"
                )
            else:
                self.dropped_copies.append(DroppedCopy(each.making.source, original.source, str(rule)))
            return iter(())

        fits = self._replace(rule, family, drop)
        for (_, name), indexes in found.items():
            # numbers from 0 on, each once
            if index and not len(indexes) == max(indexes) + 1 == rule.count:
                self._problems.append(
                    f"{rule}: of the {rule.count} copies of {name!r}, numbered from 0 on, there are "
                    f"{listed(list(map(str, sorted(indexes))), _MAX_LISTED)}: correct 'count'"
                )
        return fits

    @_apply.register
    def _(self, rule: DequantizeStep) -> bool:
        weight, scale = rule.templates
        scales: set[str] = set()
        operation = Dequantized(str(rule), rule.block)
        fitting = list(self._fitting(rule, weight))
        for each in fitting:
            name = each.prefix + scale.expanded(each.values)
            factors = self.current.get(name)
            if factors is None or name == each.making.name:
                continue
            scales.add(name)
            for making in (each.making, factors):
                if making.operation is not None:
                    self._problems.append(
                        f"{rule}: {making.name!r} can only be used as the source has it: dequantize before other steps "
                        "change it"
                    )

        def dequantize(each: _Fitting) -> Iterator[Making]:
            name = each.prefix + scale.expanded(each.values)
            if each.making.name in scales:
                return
            if name not in scales:
                yield each.making
                return
            of = (each.making, self.current[name])
            yield Making(each.making.name, operation=operation, of=of, renamed=each.making.renamed)

        self._replace(rule, weight, dequantize, keeps_shape=True)
        for name in scales:
            self.current.pop(name, None)
        return bool(scales)

    @_apply.register
    def _(self, rule: UnpackStep) -> bool:
        blocks, scale, to = rule.templates
        found: dict[str, Making] = {}
        operations = Unpacked(str(rule)), Transposed(str(rule), (0, 2, 1))
        for each in self._fitting(rule, blocks):
            factors = self.current.get(each.prefix + scale.expanded(each.values))
            if factors is None:
                self._problems.append(f"{rule}: {each.making.name!r} has no scales")
                continue
            for making in (each.making, factors):
                if making.operation is not None:
                    self._problems.append(
                        f"{rule}: {making.name!r} can only be used as the source has it: unpack before other steps "
                        "change it"
                    )
            name = each.prefix + to.expanded(each.values)
            unpacked = Making(name, operation=operations[0], of=(each.making, factors), renamed=True)
            found[each.making.name] = unpacked.made(name, operations[1])
            found[factors.name] = found[each.making.name]
        after = MakingNames(rule, self._problems)
        for name, making in self.current.items():
            if name not in found:
                after.keep(making)
            elif found[name].of[0].of[0] is making:
                after.put(found[name])
        self.current = after.by_name
        return bool(found)

    def _fitting(self, rule: StepRule, template: Template, *, needs_values: bool = True) -> Iterator[_Fitting]:
        """The parameters that fit a template, prefixes apart unless it begins with one."""
        is_of_states = str(template).startswith(self._prefixes)
        for name, making in self.current.items():
            prefix = "" if is_of_states else self._prefix(name)
            ways = template.ways(name[len(prefix) :])
            if not ways:
                continue
            if len(ways) > 1 and needs_values:
                one, other = ways
                at = next(placeholder for placeholder in one if one[placeholder] != other[placeholder])
                self._problems.append(
                    f"{rule}: {name!r} matches {quoted(str(template))} in several ways: {at} is {one[at]!r}, or "
                    f"{other[at]!r}. Say more of the name between its placeholders"
                )
            yield _Fitting(prefix, ways[0], making)

    def _prefix(self, name: str) -> str:
        """The prefix of a state; empty for a parameter."""
        known = self._known_prefixes.get(name)
        if known is None:
            # few names are a state's: this asks once for most
            some = self._prefixes if name.startswith(self._prefixes) else ()
            known = next((prefix for prefix in some if name.startswith(prefix)), "")
            self._known_prefixes[name] = known
        return known

    def _change(self, rule: StepRule, operation: Operation) -> bool:
        """Apply an operation to each parameter that fits the only template of a step."""
        [template] = rule.templates
        return self._replace(
            rule, template, lambda each: [each.making.made(each.making.name, operation)], needs_values=False
        )

    def _replace(
        self,
        rule: StepRule,
        template: Template,
        results: "Callable[[_Fitting], Iterator[Making] | Sequence[Making]]",
        *,
        makes: int = 1,
        keeps_shape: bool = False,
        needs_values: bool = True,
    ) -> bool:
        """Put the results of each parameter that fits a template, `makes` at most, in its place; False if none does."""
        fitting = {each.making.name: each for each in self._fitting(rule, template, needs_values=needs_values)}
        if not fitting:
            return False
        after = MakingNames(rule, self._problems)
        after.expect(len(fitting) * makes)
        for name, making in self.current.items():
            each = fitting.get(name)
            if each is None:
                after.keep(making)
                continue
            if not keeps_shape:
                self._check_not_factored(rule, each)
            for result in results(each):
                after.put(result)
        self.current = after.by_name
        return True

    def _gather(
        self,
        rule: StepRule,
        gathered: _Gathered,
        into: Template,
        operation: Operation,
    ) -> bool:
        """Make one parameter of those that fit templates with the same placeholders; False if none fits."""
        found: dict[str, dict[int, _Fitting]] = {}
        member_of: dict[str, str] = {}
        for number, template in enumerate(gathered.templates):
            for each in self._fitting(rule, template):
                place = int(each.values[gathered.index]) if gathered.index else number
                name = each.prefix + into.expanded(each.values)
                if each.making.name in member_of:
                    self._problems.append(f"{rule}: {each.making.name!r} matches several of its parts")
                member_of[each.making.name] = name
                known = found.setdefault(name, {}).setdefault(place, each)
                if known is not each:  # such as 1 and 11, 11 and 1 in `{i}{j}`
                    self._problems.append(
                        f"{rule}: {known.making.name!r} and {each.making.name!r} would be the same part of {name!r}"
                    )
                self._check_not_factored(rule, each)
        after = MakingNames(rule, self._problems)
        for old, making in self.current.items():
            name = member_of.get(old, "")
            if not name:
                after.keep(making)
                continue
            parts = found.pop(name, None)
            if parts is None:  # the result has its place already
                continue
            if self._is_complete(rule, name, parts, gathered):
                of = tuple(parts[number].making for number in range(gathered.count))
                after.put(Making(name, operation=operation, of=of, renamed=any(each.renamed for each in of)))
        self.current = after.by_name
        return bool(member_of)

    def _is_complete(self, rule: StepRule, name: str, parts: Mapping[int, _Fitting], gathered: _Gathered) -> bool:
        first = next(iter(parts.values()))
        count = sum(number < gathered.count for number in parts)
        missing = (
            repr(first.prefix + gathered.name_of(number, first.values))
            for number in range(gathered.count)
            if number not in parts
        )
        if count < gathered.count:
            few = [*islice(missing, _MAX_LISTED)]
            further = gathered.count - count - len(few)
            self._problems.append(
                f"{rule}: for {name!r} there is no {', '.join(few)}{f' and {further:,} more' if further else ''}, but "
                f"there is {first.making.name!r}: correct the step's names{' or count' if gathered.index else ''}"
            )
        further_parts = [repr(parts[number].making.name) for number in sorted(parts) if number >= gathered.count]
        if further_parts:
            self._problems.append(
                f"{rule}: for {name!r} there are more than {gathered.count}: {listed(further_parts, _MAX_LISTED)}; "
                "correct 'count'"
            )
        return count == gathered.count and not further_parts

    def _check_not_factored(self, rule: StepRule, each: _Fitting) -> None:
        if each.prefix in _FACTORED:
            self._problems.append(
                f"{rule}: {each.making.name!r} is a factored state, whose shape is not its parameter's: it can only be "
                f"renamed. Leave it out: {option('select', 'weights-only')}"
            )
