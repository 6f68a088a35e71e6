"""Compiles one table of a preset, a world of names in one direction, to the steps of declared changes.

What decides is known before any byte is read: names and numbers of axes, `config.json`, and the training's
configuration. What none of them shows is asked for, never guessed: a wrong guess gives plausible values.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any

from msgspec import field

from reshard.core.changes.changes import CastRule, Changes
from reshard.core.changes.changes_file import validated_changes
from reshard.core.changes.expressions import whole_number
from reshard.core.changes.inverse import inverted
from reshard.core.changes.preset import MINDFORMERS, Names, Preset, Row, Switch
from reshard.core.changes.templates import Template, parse_template
from reshard.core.changes.training_config import GENERATIONS, TrainingConfig
from reshard.core.changes.training_state import STATE_PREFIXES
from reshard.core.errors import InputError
from reshard.core.plan.name_index import NameIndex
from reshard.core.runtime.records import Record
from reshard.core.text.options import option

_UNREADABLE = 10**49
_MAX_NUMBER = 2**20
"""Layers, experts, rows: what a config.json says is counted through."""
_PLACEHOLDER = re.compile(r"\{[^{}]*\}")
_ALL_OF = ".{e}"
"""Added to MindFormers' name while a stack is apart, and each of it several parameters."""
_EVEN_ROWS, _ODD_ROWS = ".even rows", ".odd rows"
"""Added to a name while its heads' rows are apart."""


class Direction(StrEnum):
    """From which side of a table to which."""

    TO_HF = "to Hugging Face"
    FROM_HF = "from Hugging Face"


class KnownNames(Record):
    """Names on both sides, as far as they are known before planning.

    Attributes:
        axes: name in the source -> number of its axes.
        target: the same of the target's strategy, or of the directory that the target is modelled on; empty without.
    """

    axes: Mapping[str, int]
    target: Mapping[str, int] = field(default_factory=dict)


class Settings(Record):
    """What a user, a training's configuration, a model's config.json and the layouts of source and target say.

    Attributes:
        given: switch -> value, as named.
        training: the training's configuration; None without one.
        config: fields of config.json; None without one.
        origin: the place of config.json, for messages.
        allowed_models: values of `model_type` in config.json that count as the preset's.
        numbers: what the source itself says of the model, by the fields of config.json.
        of_source: switch -> the value that the source's layout always has; `names` is its world.
        of_target: the same of the target's layout.
        padded_vocabulary: rows that embedding and head get in Megatron's names; 0: those of the vocabulary.
        row_multiple: what the source's training pads the rows of a vocabulary to a multiple of; 0: unknown.
    """

    given: Mapping[str, str]
    training: TrainingConfig | None
    config: Mapping[str, Any] | None
    origin: str
    allowed_models: tuple[str, ...] = ()
    numbers: Mapping[str, int] = field(default_factory=dict)
    of_source: Mapping[str, str] = field(default_factory=dict)
    of_target: Mapping[str, str] = field(default_factory=dict)
    padded_vocabulary: int = 0
    row_multiple: int = 0


class Table(Record):
    """One world of a preset's names, in one direction.

    Attributes:
        is_spelling: a table of spellings, which has those in place of Hugging Face's names.
        in_chain: another table follows, or comes before.
    """

    preset: Preset
    world: str
    direction: Direction
    is_spelling: bool = False
    in_chain: bool = False

    @property
    def names(self) -> Names:
        """Its rows."""
        return self.preset.names[self.world]

    @property
    def to_hf(self) -> bool:
        """True on the way to Hugging Face's names, or to a spelling."""
        return self.direction is Direction.TO_HF


class CompiledTable(Record):
    """A table for the names of one source.

    Attributes:
        steps: what it does, as a document of changes has it.
        rows: the rows that count, with the prefix of their layer.
        variables: their values.
        kept: casts of parameters whose dtype is always the same, under their new names.
        decided: switch -> value.
        notes: what else was decided, in sentences.
    """

    steps: Changes
    rows: tuple[tuple[str, Row], ...]
    variables: Mapping[str, int]
    kept: tuple[CastRule, ...]
    decided: Mapping[str, str]
    notes: tuple[str, ...]


def without_state(name: str) -> str:
    """Return the name of the parameter that a state belongs to; the name itself if it is not a state."""
    prefix = next((prefix for prefix in STATE_PREFIXES if name.startswith(prefix)), "")
    return name.removeprefix(prefix)


def parsed(text: str, variables: Mapping[str, int]) -> Template | None:
    """Parse a template of a preset; None if it has a variable that is not known."""
    try:
        return parse_template(text, variables)
    except ValueError:
        return None


def fitting(texts: Iterable[str], names: NameIndex, variables: Mapping[str, int]) -> frozenset[str]:
    """Return the names that fit templates; those with variables that are not known fit none."""
    templates = [template for text in texts if (template := parsed(text, variables))]
    return frozenset(name for template in templates for name in names.fitting(template))


def variables_of(preset: Preset, settings: Settings) -> dict[str, int]:
    """Return the variables by config.json and the source; those that both lack are missed where they are needed.

    Raises:
        InputError: a number is too large for any model, or they contradict each other.
    """
    config = {name: value for name, value in (settings.config or {}).items() if type(value) is int and value >= 0}
    found: dict[str, int] = {}
    for name, alternatives in preset.variables.items():
        _check_agree(name, alternatives, config, settings)
        for expression in alternatives:
            try:
                number = whole_number(expression, {**settings.numbers, **config})
            except ValueError:
                continue
            if number > _MAX_NUMBER:
                origin = settings.origin or "config.json"
                given = str(number) if number < _UNREADABLE else "a number of 50 digits or more"
                raise InputError(f"{origin}: {expression} is {given}, more than {_MAX_NUMBER:,}, the limit")
            found[name] = number
            break
    return found


def _check_agree(name: str, fields: Sequence[str], config: Mapping[str, int], settings: Settings) -> None:
    """Refuse a field of config.json that contradicts what the source says; fields of a variable are synonyms."""
    ours = next((field for field in fields if field in config), "")
    theirs = next((field for field in fields if field in settings.numbers), "")
    if ours and theirs and config[ours] != settings.numbers[theirs]:
        raise InputError(
            f"{settings.origin}: config.json has {ours} {config[ours]}, and the source itself says {theirs} "
            f"{settings.numbers[theirs]}: name the config.json of the model itself"
        )


def compile_table(table: Table, known: KnownNames, settings: Settings, variables: Mapping[str, int]) -> CompiledTable:
    """Compile a table for the names of a source.

    Raises:
        InputError: a number is not in config.json, or a switch is not known.
    """
    return _Compiler(table, known, settings, variables).compiled()


class _Compiler:
    def __init__(self, table: Table, known: KnownNames, settings: Settings, variables: Mapping[str, int]) -> None:
        self._table = table
        self._preset = table.preset
        self._known = known
        self._settings = settings
        is_of_source = table.to_hf != table.is_spelling
        self._said = settings.of_source if is_of_source else settings.of_target
        self._notes: list[str] = []
        self._decided: dict[str, str] = {}
        self._weights = {without_state(name): axes for name, axes in known.axes.items()}
        self._targets = {without_state(name): axes for name, axes in known.target.items()}
        self._source, self._target = NameIndex(self._weights), NameIndex(self._targets)
        self._variables = dict(variables)

    def compiled(self) -> CompiledTable:
        names, direction = self._table.names, self._table.direction
        self._count()
        rows = tuple(self._rows(names, direction))
        steps: list[dict[str, Any]] = []
        for _, row in rows:
            steps += self._steps(row)
        steps += self._copies(names)
        changes = self._changes(steps)
        if direction is Direction.FROM_HF:
            steps = inverted(changes).model_dump(exclude_defaults=True).get("steps", [])
            steps = [*self._dequantization(), *steps]
        changes = self._changes([*steps, *self._padding(rows), *self._renamed_states(names)])
        kept = tuple(self._kept(rows, direction))
        return CompiledTable(changes, rows, self._variables, kept, self._decided, tuple(self._notes))

    def _changes(self, steps: list[dict[str, Any]]) -> Changes:
        origin = f"preset {self._preset.preset}, with the numbers of {self._settings.origin or 'config.json'}"
        return validated_changes({"variables": self._variables, "steps": steps}, origin)

    def _fitting(self, texts: Collection[str], names: NameIndex | None = None) -> frozenset[str]:
        return fitting(texts, names or self._source, self._variables)

    def _has(self, text: str, names: NameIndex | None = None) -> bool:
        return bool(self._fitting([text], names))

    def _count(self) -> None:
        """Set the variables that count indexes of names."""
        for name, texts in self._preset.counted.items():
            self._variables[name] = len(self._fitting(texts))

    def _rows(self, names: Names, direction: Direction) -> Iterator[tuple[str, Row]]:
        """The rows that count: their switches have the values, and what they need of config.json is there."""
        for prefix, row in names.rows:
            here = row.mf if direction is Direction.TO_HF else row.hf
            present = all(self._has(text) for text in here)
            if self._table.is_spelling and not self._table.to_hf:
                counts = present  # names of spellings differ, and layers may differ in them
            else:
                counts = all(self._is_so(switch, value, needed=present) for switch, value in row.when.items())
            if not counts:
                continue
            missing = self._missing_variables(row)
            if missing and present:
                raise self._lacks(missing, row)
            if missing:
                continue
            if any(expression and self._number(expression) < 1 for expression in (row.groups, row.stacked)):
                if present:
                    raise self._contradiction(f"{row.name!r} has nothing in it ({row.groups or row.stacked} is 0)")
                continue
            yield prefix, row

    def _missing_variables(self, row: Row) -> str:
        """A variable that the row's steps need and that is not known; empty if there is none."""
        expressions = [row.groups, row.stacked, *row.rope.values()]
        if row.padded and not self._table.to_hf:  # the first rows are to be kept
            expressions += [shape[0] for shape in row.hf.values()]
        if len(row.parts) > 1 or row.rope:
            expressions += [shape[row.rows_axis] for shape in row.parts.values() if shape]
        for expression in filter(None, expressions):
            try:
                whole_number(expression, self._variables)
            except ValueError:
                return expression
        return "" if all(self._is_known(text) for text in (*row.mf, *row.hf)) else "N"

    def _number(self, expression: str) -> int:
        return whole_number(expression, self._variables)

    def _is_known(self, text: str) -> bool:
        return parsed(text, self._variables) is not None

    def _lacks(self, expression: str, row: Row) -> InputError:
        fields = {
            name: " or ".join(alternatives)
            for name, alternatives in self._preset.variables.items()
            if name not in self._variables and name in expression
        }
        wanted = ", ".join(f"{name} ({text})" for name, text in fields.items()) or expression
        where = self._settings.origin
        if self._settings.config is None and not self._settings.numbers:
            return InputError(
                f"preset {self._preset.preset}: {row.name!r} needs numbers of config.json, {wanted}: {where} has none: "
                f"put the model's there, or name it with {option('config_json')}"
            )
        return InputError(
            f"{where}: has no {wanted}, which preset {self._preset.preset} needs for {row.name!r}: name the model's "
            f"config.json with {option('config_json')}"
        )

    def _is_so(self, name: str, value: str, *, needed: bool) -> bool:
        """True if a switch has a value; it is decided for the first row whose parameters are there, `needed`."""
        if name not in self._decided and needed:
            found = self._switch(name)
            if found is None:
                raise self._unknown(name)
            self._decided[name] = found
        return self._decided.get(name) == value

    def _switch(self, name: str) -> str | None:
        switch = self._preset.switches[name]
        shown = self._shown(switch)
        given, said = self._settings.given.get(name), self._said.get(name)
        if given is not None and given not in switch.values:
            raise InputError(f"{option('switch', [f'{name}={given}'])}: must be one of {', '.join(switch.values)}")
        if self._is_first_of_chain and (shown or said):
            return said or shown  # what is given is about the target
        if given is not None and said is not None and given != said:
            raise InputError(f"{option('switch', [f'{name}={given}'])}: the layout always has {said}")
        given = said or given
        if given is not None and shown is not None and given != shown:
            raise InputError(f"{option('switch', [f'{name}={given}'])}: the names and axes show that it is {shown}")
        if shown or given:
            return shown or given
        return self._by_training(name) or switch.otherwise or None

    @property
    def _is_first_of_chain(self) -> bool:
        return self._table.in_chain and self._table.to_hf and not self._table.is_spelling

    def _by_training(self, name: str) -> str:
        """What the training's configuration says, or means by not saying it; empty if neither."""
        switch, training = self._preset.switches[name], self._settings.training
        if training is None or self._table.names.whose != MINDFORMERS:
            return ""
        value = training.value_of(name)
        if value and value not in switch.values:
            raise InputError(f"{training.url}: says {name}: {value}, not {' or '.join(switch.values)}")
        if value or not switch.default:
            return value
        default = switch.default_of(training.generation)
        if not default:
            raise InputError(f"{training.unknown_default(name)}: say {self._choices(name)}")
        versions = GENERATIONS.get(training.generation, "MindFormers")
        self._notes.append(f"the training's configuration does not say {name}: the default of {versions} is {default}")
        return default

    def _shown(self, switch: Switch) -> str | None:
        """The value that names or axes show."""
        for value, text in switch.shown_by.items():
            if self._has(text) or self._has(text, self._target):
                return value
        for index, known in ((self._source, self._weights), (self._target, self._targets)):
            axes = {str(known[name]) for name in self._fitting([switch.axes_of], index)} & switch.values.keys()
            if len(axes) == 1:
                return axes.pop()
        return None

    def _unknown(self, name: str) -> InputError:
        return InputError(
            f"preset {self._preset.preset}: a checkpoint does not show {self._preset.switches[name].about}. Name the "
            f"training's YAML with {option('training_config')}, or say {self._choices(name)}"
        )

    def _choices(self, name: str) -> str:
        switch = self._preset.switches[name]
        return " or ".join(
            f"{option('switch', [f'{name}={value}'])} ({meaning}{switch.default_text(value)})"
            for value, meaning in switch.values.items()
        )

    def _kept(self, rows: tuple[tuple[str, Row], ...], direction: Direction) -> Iterator[CastRule]:
        for _, row in rows:
            here, there = row.mf, row.hf
            if direction is Direction.FROM_HF:
                here, there = there, here
            if row.dtype and all(map(self._has, here)):
                patterns = (_PLACEHOLDER.sub("*", text) for text in there)
                yield from (CastRule(parameters=pattern, dtype=row.dtype) for pattern in patterns)

    def _steps(self, row: Row) -> list[dict[str, Any]]:
        """The steps of a row from MindFormers to Hugging Face; they may fit nothing."""
        steps: list[dict[str, Any]] = []
        targets, apart = list(row.hf), row.is_apart

        def add(kind: str, parameters: str | list[str], **fields: Any) -> None:
            steps.append({kind: {"parameters": parameters, **fields, "optional": True}})

        def add_rope(name: str) -> None:
            rows, heads = self._halves(row, name)
            halves = [f"{name}{_EVEN_ROWS}", f"{name}{_ODD_ROWS}"]
            add("split", name, into=halves, axis=0, groups=heads)
            add("join", halves, into=name, axis=0, groups=rows)

        def add_single(mf: str) -> str:
            """What a parameter becomes before it is split, joined or renamed; its name then."""
            current = mf
            if row.boxed:
                add("merge", current, count=1)
            if row.merged:
                add("divide", current, count=row.stacked)
            if apart:
                is_last = len(targets) == len(row.mf) == 1
                current = targets[0] if is_last else f"{mf}{_ALL_OF}"
                add("unstack", mf, into=current, count=row.stacked)
            if row.boxed:
                add("merge", current, count=1)
            if row.transposed:
                add("transpose", current, axes=[0, 2, 1] if row.stacked and not apart else [1, 0])
            return current

        current = [add_single(mf) for mf in row.mf]
        axis = row.rows_axis
        if len(current) > 1:
            for name in row.rope:
                add_rope(name)
            add("join", current, into=targets[0], axis=axis, parts=self._parts(row, axis), groups=row.groups or 1)
            return steps
        if len(targets) > 1:
            add("split", current[0], into=targets, axis=axis, parts=self._parts(row, axis), groups=row.groups or 1)
        elif current != targets and row.beside:
            steps += self._renames_beside(row)
        elif current != targets:
            add("rename", current[0], to=targets[0])
        for name in row.rope:
            add_rope(name)
        return steps

    def _renames_beside(self, row: Row) -> Iterator[dict[str, Any]]:
        """A rename for each layer that has the other parameter."""
        old, new, beside = (parse_template(text) for text in (row.name, next(iter(row.hf)), row.beside))
        for name in self._source.fitting(beside if self._table.to_hf else new):
            values = (beside if self._table.to_hf else new).fitting(name) or {}
            yield {"rename": {"parameters": old.expanded(values), "to": new.expanded(values), "optional": True}}

    def _padding(self, rows: tuple[tuple[str, Row], ...]) -> Iterator[dict[str, Any]]:
        """Rows of padding are left out, or made."""
        for _, row in rows:
            if not row.padded:
                continue
            [(hf, [rows_there, *_])] = row.hf.items()
            if not self._table.to_hf:
                yield {"slice": {"parameters": row.name, "stop": self._number(rows_there), "optional": True}}
            elif self._settings.padded_vocabulary:
                yield {"pad": {"parameters": hf, "length": self._settings.padded_vocabulary, "optional": True}}

    def _renamed_states(self, names: Names) -> Iterator[dict[str, Any]]:
        for state in names.states:
            here, there = (state.mf, state.hf) if self._table.to_hf else (state.hf, state.mf)
            for prefix in here:
                yield {"rename": {"parameters": f"{prefix}{{x:*}}", "to": f"{there[0]}{{x:*}}", "optional": True}}

    def _parts(self, row: Row, axis: int) -> list[int]:
        """The rows of each part in a group; `axis` is that of rows."""
        groups = self._number(row.groups) if row.groups else 1
        rows = [self._number(shape[axis]) if shape else groups for shape in row.parts.values()]
        if any(count < 1 or count % max(1, groups) for count in rows):
            raise self._contradiction(f"{row.name!r} would have {' and '.join(map(str, rows))} rows in {groups} groups")
        return [count // groups for count in rows]

    def _halves(self, row: Row, name: str) -> tuple[int, int]:
        """Half the rows of a part, and its heads."""
        rows = self._number(row.parts[name][0])
        of_head = self._number(row.rope[name])
        if of_head < 2 or of_head % 2 or rows % of_head:
            raise self._contradiction(f"{name!r} would have {rows} rows, {of_head} for each head")
        return rows // 2, rows // of_head

    def _contradiction(self, text: str) -> InputError:
        return InputError(f"{self._settings.origin or 'config.json'}: its numbers do not go together: {text}")

    def _copies(self, names: Names) -> Iterator[dict[str, Any]]:
        # between two worlds nobody would have them
        for hf, copy in () if self._table.in_chain else names.copies.items():
            try:
                count = self._number(copy.count)
            except ValueError as error:
                raise InputError(f"preset {self._preset.preset}: copies of {copy.of!r}: {error}") from error
            if count:
                yield {"repeat": {"parameters": copy.of, "to": hf, "count": count, "optional": True}}

    def _dequantization(self) -> list[dict[str, Any]]:
        ending = self._preset.quantized
        if not ending or not any(name.endswith(f".weight{ending}") for name in self._weights):
            return []
        return [{"dequantize": {"parameters": "{x:*}.weight", "scale": f"{{x:*}}.weight{ending}"}}]
