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
from reshard.core.changes.model_config import has_field
from reshard.core.changes.preset import MINDFORMERS, Names, Preset, Switch
from reshard.core.changes.preset_rows import Row
from reshard.core.changes.templates import Template, parse_template
from reshard.core.changes.training_config import GENERATIONS, TrainingConfig
from reshard.core.changes.training_state import STATE_PREFIXES
from reshard.core.errors import InputError
from reshard.core.plan.mxfp4 import BLOCKS, SCALES, packed_names
from reshard.core.plan.name_index import NameIndex
from reshard.core.plan.row_steps import Numbers, row_steps
from reshard.core.runtime.records import Record
from reshard.core.text.options import option

_UNREADABLE = 10**49
_MAX_NUMBER = 2**20
"""Layers, experts, rows: what a config.json says is counted through."""
_PLACEHOLDER = re.compile(r"\{[^{}]*\}")


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
        names: whose names the target gets, as named: a world, `hf` or `mindformers`; empty: not said.
        training: the training's configuration; None without one.
        config: fields of config.json; None without one.
        origin: the place of config.json, for messages.
        allowed_models: values of `model_type` in config.json that count as the preset's.
        numbers: what the source itself says of the model, by the fields of config.json.
        dialect: the dialect of Hugging Face's names that the target is to have, as named; empty: not named.
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
    dialect: str = ""
    of_source: Mapping[str, str] = field(default_factory=dict)
    of_target: Mapping[str, str] = field(default_factory=dict)
    padded_vocabulary: int = 0
    row_multiple: int = 0
    names: str = ""


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


def compile_unchanged(
    table: Table, known: KnownNames, settings: Settings, variables: Mapping[str, int]
) -> CompiledTable:
    """Compile the rows of a table for a source whose names are Hugging Face's, and stay so.

    Raises:
        InputError: a number is not in config.json.
    """
    return _Compiler(table, known, settings, variables).unchanged()


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
        self._numbers = Numbers(self._variables, settings.origin or "config.json")

    def compiled(self) -> CompiledTable:
        names, direction = self._table.names, self._table.direction
        self._count()
        rows = tuple(self._rows(names, direction))
        steps: list[dict[str, Any]] = []
        for _, row in rows:
            steps += row_steps(row, self._numbers, self._renames_beside(row) if row.beside else ())
        steps = [*self._tied(names, rows), *steps, *self._copies(names)]
        changes = self._changes(steps)
        if direction is Direction.FROM_HF:
            steps = inverted(changes).model_dump(exclude_defaults=True).get("steps", [])
            steps = [*self._dequantization(), *steps]
        changes = self._changes([*steps, *self._padding(rows), *self._renamed_states(names)])
        kept = tuple(self._kept(rows, to_hf=self._table.to_hf))
        return CompiledTable(changes, rows, self._variables, kept, self._decided, tuple(self._notes))

    def unchanged(self) -> CompiledTable:
        """The table's rows whatever its switches, and no steps but those to plain weights: names stay."""
        self._count()
        distinct = {tuple(row.hf): (prefix, row) for prefix, row in self._table.names.rows}
        rows = tuple(
            (prefix, self._as_asked_for(row))
            for prefix, row in distinct.values()
            if self._has_numbers(row, needed=all(self._has(text) for text in row.hf))
        )
        kept = tuple(self._kept(rows, to_hf=True))
        return CompiledTable(self._changes(self._dequantization()), rows, self._variables, kept, {}, ())

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
            if row.refused and present:
                chosen = [f"{switch}={value}" for switch, value in row.when.items()]
                raise InputError(f"{option('switch', chosen)}: {row.refused}")
            if self._has_numbers(row, needed=present):
                yield prefix, self._as_asked_for(row)

    def _as_asked_for(self, row: Row) -> Row:
        """The row, which may not be absent where config.json asks for what it has."""
        config = self._settings.config
        loaded = [self._preset.loaded.get(text) for text in row.hf]
        if not row.optional or config is None:
            return row
        for each in loaded:
            if each is None or not has_field(config, each.field, default=each.default):
                return row
            if each.part and (each.part, each.variant) != (row.part, row.variant):  # some layers have none
                return row
        return row.model_copy(update={"optional": False})

    def _has_numbers(self, row: Row, *, needed: bool) -> bool:
        """True if all numbers of a row are known, and not 0; if they are not, nothing `needed` may depend on them."""
        missing = self._missing_variables(row)
        if missing and needed:
            raise self._lacks(missing, row)
        if missing:
            return False
        empty = next((each for each in self._counts(row) if self._numbers.value(each) < 1), "")
        if empty and needed:
            raise self._numbers.contradiction(f"{row.name!r} has nothing in it ({empty} is 0)")
        return not empty

    def _counts(self, row: Row) -> Iterator[str]:
        """What a row has a number of, at least one if it is there."""
        yield from filter(None, (row.groups, row.stacked))
        if len(row.parts) > 1:
            yield from (shape[row.rows_axis] for shape in row.parts.values() if shape)

    def _missing_variables(self, row: Row) -> str:
        """A variable that the row's steps need and that is not known; empty if there is none."""
        expressions = [row.groups, row.stacked, *row.rope.values()]
        if row.padded and not self._table.to_hf:  # the first rows are to be kept
            expressions += [shape[0] for shape in row.hf.values()]
        if row.positions:
            expressions += [row.positions.head, row.positions.rows, next(iter(row.hf.values()))[0]]
        for name, each in row.regrouped.items():
            expressions += [*each.parts, each.mf, each.hf, row.hf[name][each.axis]]
        if len(row.parts) > 1 or row.rope:
            expressions += [shape[row.rows_axis] for shape in row.parts.values() if shape]
        for expression in filter(None, expressions):
            try:
                whole_number(expression, self._variables)
            except ValueError:
                return expression
        return "" if all(self._is_known(text) for text in (*row.mf, *row.hf)) else "N"

    def _is_known(self, text: str) -> bool:
        return parsed(text, self._variables) is not None

    def _lacks(self, expression: str, row: Row) -> InputError:
        fields = [
            " or ".join(alternatives)
            for name, alternatives in self._preset.variables.items()
            if name not in self._variables and name in expression
        ]
        wanted = ", ".join(fields) or expression
        where = self._settings.origin
        if self._settings.config is None and not self._settings.numbers:
            return InputError(
                f"the layout of {row.name!r} depends on {wanted} of config.json, and {where} has none: put the model's "
                f"there, or name it with {option('config_json')}"
            )
        return InputError(
            f"{where}: config.json has no number {wanted}, on which the layout of {row.name!r} depends: name the "
            f"model's config.json with {option('config_json')}"
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

    def _kept(self, rows: tuple[tuple[str, Row], ...], *, to_hf: bool) -> Iterator[CastRule]:
        """The casts of parameters that are there, under the names of Hugging Face or of the world."""
        for _, row in rows:
            here = row.mf if self._table.to_hf else row.hf
            if row.dtype and all(map(self._has, here)):
                patterns = (_PLACEHOLDER.sub("*", text) for text in (row.hf if to_hf else row.mf))
                yield from (CastRule(parameters=pattern, dtype=row.dtype) for pattern in patterns)

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
                yield {"slice": {"parameters": row.name, "stop": self._numbers.value(rows_there), "optional": True}}
            elif self._settings.padded_vocabulary:
                yield {"pad": {"parameters": hf, "length": self._settings.padded_vocabulary, "optional": True}}

    def _renamed_states(self, names: Names) -> Iterator[dict[str, Any]]:
        for state in names.states:
            here, there = (state.mf, state.hf) if self._table.to_hf else (state.hf, state.mf)
            for prefix in here:
                yield {"rename": {"parameters": f"{prefix}{{x:*}}", "to": f"{there[0]}{{x:*}}", "optional": True}}

    def _copies(self, names: Names) -> Iterator[dict[str, Any]]:
        # between two worlds nobody would have them
        for hf, copy in () if self._table.in_chain else names.copies.items():
            try:
                count = self._numbers.value(copy.count)
            except ValueError as error:
                raise InputError(f"preset {self._preset.preset}: copies of {copy.of!r}: {error}") from error
            if count:
                yield {"repeat": {"parameters": copy.of, "to": hf, "count": count, "optional": True}}

    def _tied(self, names: Names, rows: tuple[tuple[str, Row], ...]) -> Iterator[dict[str, Any]]:
        """A head that is a copy of the embedding on this side is left out; on the way here it is made."""
        if not (self._settings.config or {}).get("tie_word_embeddings"):
            return
        for name, copy_of in names.tied.items():
            hf = [text for _, row in rows if name in row.mf for text in row.hf]
            if self._table.to_hf or not self._fitting(hf):
                yield {"drop": {"parameters": name, "copy_of": copy_of, "optional": True}}

    def _dequantization(self) -> list[dict[str, Any]]:
        ending = self._preset.quantized
        if ending == SCALES and packed_names(self._weights):
            return [{"unpack": {"parameters": f"{{x:*}}{BLOCKS}", "scale": f"{{x:*}}{SCALES}", "to": "{x:*}"}}]
        if not ending or not any(name.endswith(f".weight{ending}") for name in self._weights):
            return []
        return [{"dequantize": {"parameters": "{x:*}.weight", "scale": f"{{x:*}}.weight{ending}"}}]
