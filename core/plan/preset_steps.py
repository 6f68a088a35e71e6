"""Compiles a preset to the steps of declared changes, in the direction that the source's names tell.

What decides is known before any byte is read: names and numbers of axes, `config.json`, and the training's
configuration. What none of them shows is asked for, never guessed: a wrong guess gives plausible values.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from enum import StrEnum
from typing import Any

from msgspec import field

from reshard.core.changes.changes import CastRule, Changes
from reshard.core.changes.changes_file import validated_changes
from reshard.core.changes.expressions import whole_number
from reshard.core.changes.inverse import inverted
from reshard.core.changes.preset import Names, Preset, Row, Switch
from reshard.core.changes.templates import Template, parse_template
from reshard.core.changes.training_config import GENERATIONS, TrainingConfig
from reshard.core.changes.training_state import STATE_PREFIXES
from reshard.core.errors import InputError
from reshard.core.plan.name_index import NameIndex
from reshard.core.runtime.records import Record
from reshard.core.runtime.suggestions import did_you_mean
from reshard.core.runtime.wording import listed, quoted
from reshard.core.text.options import option, spelled

_MAX_LISTED = 4
_MAX_NUMBER = 2**20
"""Layers, experts, rows: what a config.json says is counted through."""
_PLACEHOLDER = re.compile(r"\{[^{}]*\}")
_ALL_OF = ".{e}"
"""Added to MindFormers' name while a stack is apart, and each of it several parameters."""
_EVEN_ROWS, _ODD_ROWS = ".even rows", ".odd rows"
"""Added to a name while its heads' rows are apart."""


class Direction(StrEnum):
    """From whose names to whose."""

    TO_HF = "MindFormers to Hugging Face"
    FROM_HF = "Hugging Face to MindFormers"


class KnownNames(Record):
    """Names on both sides, as far as they are known before planning.

    Attributes:
        axes: name in the source -> number of its axes.
        target: the same of the target's strategy, or of the directory that the target is modelled on; empty without.
    """

    axes: Mapping[str, int]
    target: Mapping[str, int] = field(default_factory=dict)


class Settings(Record):
    """What a user, a training's configuration and a model's config.json say.

    Attributes:
        given: switch -> value, as named.
        training: the training's configuration; None without one.
        config: fields of config.json; None without one.
        origin: the place of config.json, for messages.
        allowed_models: values of `model_type` in config.json that count as the preset's.
    """

    given: Mapping[str, str]
    training: TrainingConfig | None
    config: Mapping[str, Any] | None
    origin: str
    allowed_models: tuple[str, ...] = ()


class CompiledPreset(Record):
    """A preset for one source.

    Attributes:
        steps: what it does, as a document of changes has it.
        rows: the rows that count, with the prefix of their layer.
        names: the world of MindFormers' names.
        variables: their values.
        kept: casts of parameters whose dtype is always the same, under their new names.
        notes: what was decided, in sentences.
        left_out: patterns of the source's parameters that no model needs.
    """

    preset: Preset
    direction: Direction
    steps: Changes
    rows: tuple[tuple[str, Row], ...]
    names: Names
    variables: Mapping[str, int]
    kept: tuple[CastRule, ...]
    notes: tuple[str, ...]
    left_out: tuple[str, ...] = ()


def compile_preset(preset: Preset, known: KnownNames, settings: Settings) -> CompiledPreset:
    """Compile a preset for a source.

    Raises:
        InputError: the source's names are not the preset's, or of both sides; a number is not in config.json; or a
            switch is not known.
    """
    compiler = _Compiler(preset, known, settings)
    return compiler.compiled()


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


class _Compiler:
    def __init__(self, preset: Preset, known: KnownNames, settings: Settings) -> None:
        self._preset = preset
        self._known = known
        self._settings = settings
        self._notes: list[str] = []
        self._decided: dict[str, str] = {}
        self._weights = {without_state(name): axes for name, axes in known.axes.items()}
        self._targets = {without_state(name): axes for name, axes in known.target.items()}
        self._source, self._target = NameIndex(self._weights), NameIndex(self._targets)
        self._check_model()
        self._variables = dict(self._of_config())
        world = settings.given.get("names")
        if world is not None and world not in preset.worlds:
            raise InputError(f"{option('switch', [f'names={world}'])}: must be one of {', '.join(preset.worlds)}")
        unknown = settings.given.keys() - preset.switches.keys() - {"names"}
        if unknown:
            switch, switches = min(unknown), ", ".join(preset.switches) or "none"
            suggestion = did_you_mean(switch, preset.switches)
            listing = f"{suggestion} It has {switches}" if suggestion else f": it has {switches}"
            raise InputError(f"preset {preset.preset} has no switch {quoted(switch)}{listing}")

    def compiled(self) -> CompiledPreset:
        direction, world = self._direction()
        names = self._preset.names[world]
        self._count()
        rows = tuple(self._rows(names, direction))
        steps: list[dict[str, Any]] = []
        for _, row in rows:
            steps += self._steps(row)
        steps += self._copies(names)
        changes = self._changes(steps)
        if direction is Direction.FROM_HF:
            steps = inverted(changes).model_dump(exclude_defaults=True).get("steps", [])
            changes = self._changes([*self._dequantization(), *steps])
        decided = "".join(f", {name} {value}" for name, value in self._decided.items())
        self._notes.insert(0, f"preset {self._preset.preset}: {direction} ({world} names{decided})")
        if not self._preset.is_run(world):
            self._notes.append(
                f"preset {self._preset.preset}: the rules of its {world} names were read in MindFormers' code, and "
                "never compared with what that code makes"
            )
        kept = tuple(self._kept(rows, direction))
        return CompiledPreset(
            self._preset, direction, changes, rows, names, self._variables, kept, tuple(map(spelled, self._notes))
        )

    def _changes(self, steps: list[dict[str, Any]]) -> Changes:
        origin = f"preset {self._preset.preset}, with the numbers of {self._settings.origin or 'config.json'}"
        return validated_changes({"variables": self._variables, "steps": steps}, origin)

    def _check_model(self) -> None:
        """Refuse the config.json of another family, whose layouts may differ although its names fit.

        Raises:
            InputError: the preset does not list its `model_type`, nor is it allowed.
        """
        config, preset = self._settings.config, self._preset
        if config is None or not preset.models:
            return
        model = config.get("model_type")
        if not isinstance(model, str) or not model:
            self._notes.append(
                f"preset {preset.preset}: config.json has no model_type, so that the model's family was not checked"
            )
        elif model in preset.models:
            return
        elif model in self._settings.allowed_models:
            self._notes.append(
                f"preset {preset.preset}: made for {' and '.join(preset.models)}, and used for {model}, as allowed"
            )
        else:
            raise InputError(
                f"{self._settings.origin}: config.json is a {quoted(model)} model's, and preset {preset.preset} is for "
                f"{' and '.join(preset.models)}: name the preset of its family (reshard presets lists them), or, if "
                f"its names and layouts are those of the preset, {option('allow_model', [model])}"
            )

    def _of_config(self) -> Iterator[tuple[str, int]]:
        """Variables by config.json; those that it lacks are missed where they are needed.

        Raises:
            InputError: a number is too large for any model.
        """
        config = self._settings.config or {}
        numbers = {name: value for name, value in config.items() if type(value) is int and value >= 0}
        for name, alternatives in self._preset.variables.items():
            for expression in alternatives:
                try:
                    number = whole_number(expression, numbers)
                except ValueError:
                    continue
                if number > _MAX_NUMBER:
                    raise InputError(
                        f"{self._settings.origin or 'config.json'}: {expression} is {number}, more than "
                        f"{_MAX_NUMBER:,}, the limit"
                    )
                yield name, number
                break

    def _direction(self) -> tuple[Direction, str]:
        """The direction, and the world of MindFormers' names, by the source's."""
        hf = self._fitting(frozenset[str]().union(*map(_hf_texts, self._preset.names.values())))
        mf = {world: self._fitting(_mf_texts(names)) for world, names in self._preset.names.items()}
        all_mf = frozenset[str]().union(*mf.values())
        only_hf, only_mf = hf - all_mf, all_mf - hf
        if only_hf and only_mf:
            raise InputError(
                f"preset {self._preset.preset}: the source has names of both sides, {min(only_mf)!r} as MindFormers "
                f"and {min(only_hf)!r} as Hugging Face: convert a checkpoint that has one side's names only"
            )
        if not only_hf and not only_mf:
            some = listed([repr(name) for name in sorted(self._weights)], _MAX_LISTED)
            raise InputError(
                f"preset {self._preset.preset}: none of the source's names is one of its ({some}): is it a preset of "
                "another family? reshard presets lists them"
            )
        if only_mf:
            return Direction.TO_HF, max(mf, key=lambda world: len(mf[world] - hf))
        return Direction.FROM_HF, self._target_world()

    def _target_world(self) -> str:
        """The world of names to make: as asked for, the target strategy's, or the first."""
        worlds = self._preset.worlds
        asked = self._settings.given.get("names")
        if asked:
            return asked
        if len(worlds) == 1:
            return worlds[0]
        fitting = {world: self._fitting(_mf_texts(names), self._target) for world, names in self._preset.names.items()}
        best = max(worlds, key=lambda world: len(fitting[world]))
        if not fitting[best]:
            others = " or ".join(option("switch", [f"names={world}"]) for world in worlds[1:])
            self._notes.append(f"preset {self._preset.preset}: {best} names, unless asked for others, {others}")
        return best

    def _fitting(self, texts: Collection[str], names: NameIndex | None = None) -> frozenset[str]:
        templates = [template for text in texts if (template := parsed(text, self._variables))]
        index = names or self._source
        return frozenset(name for template in templates for name in index.fitting(template))

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
            if not all(self._is_so(switch, value, needed=present) for switch, value in row.when.items()):
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
        if self._settings.config is None:
            return InputError(
                f"preset {self._preset.preset}: {row.name!r} needs numbers of config.json, {wanted}: {where} has none: "
                "put the model's there, or name its Hugging Face directory with "
                f"{option('like')}{self._advice_on_states()}"
            )
        return InputError(f"{where}: has no {wanted}, which preset {self._preset.preset} needs for {row.name!r}")

    def _advice_on_states(self) -> str:
        if all(name == without_state(name) for name in self._known.axes):
            return ""
        without = option("select", "weights-only")
        return f"; the latter only without the optimizer's moments ({without}), which no such directory has"

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
        given = self._settings.given.get(name)
        if given is not None and given not in switch.values:
            raise InputError(f"{option('switch', [f'{name}={given}'])}: must be one of {', '.join(switch.values)}")
        if given is not None and shown is not None and given != shown:
            raise InputError(f"{option('switch', [f'{name}={given}'])}: the names and axes show that it is {shown}")
        if shown or given:
            return shown or given
        return self._by_training(name) or switch.otherwise or None

    def _by_training(self, name: str) -> str:
        """What the training's configuration says, or means by not saying it; empty if neither."""
        switch, training = self._preset.switches[name], self._settings.training
        if training is None:
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
        elif current != targets:
            add("rename", current[0], to=targets[0])
        for name in row.rope:
            add_rope(name)
        return steps

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
        for hf, copy in names.copies.items():
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


def _hf_texts(names: Names) -> frozenset[str]:
    return frozenset(text for _, row in names.rows for text in row.hf).union(names.copies)


def _mf_texts(names: Names) -> frozenset[str]:
    return frozenset(text for _, row in names.rows for text in row.mf)
