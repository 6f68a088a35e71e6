"""Finds the way from a source's names to the target's by a preset, and compiles its tables one after another.

A preset knows worlds of names, each with a table to Hugging Face's. The way from one world to another leads through
these: what both tables do cancels when pieces are composed. The source's names, the layouts of source and target, and
switches decide the way; it is never guessed. Where Hugging Face's names have dialects, a further table leads from the
source's dialect to the hub's names, or from these to the target's.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from reshard.core.changes.changes import CastRule, Changes
from reshard.core.changes.changes_file import validated_changes
from reshard.core.changes.model_config import has_field
from reshard.core.changes.preset import MEGATRON, MINDFORMERS, Names, Preset, read_spellings
from reshard.core.changes.preset_rows import Row
from reshard.core.errors import InputError
from reshard.core.plan.mxfp4 import SCALES, packed_names
from reshard.core.plan.name_index import NameIndex
from reshard.core.plan.preset_steps import (
    CompiledTable,
    Direction,
    KnownNames,
    Settings,
    Table,
    compile_table,
    compile_unchanged,
    fitting,
    variables_of,
    without_state,
)
from reshard.core.plan.recipes import build_recipes
from reshard.core.runtime.records import Record
from reshard.core.runtime.suggestions import did_you_mean
from reshard.core.runtime.wording import listed, quoted
from reshard.core.text.options import option, spelled

_MAX_LISTED = 4
_NAMES = "names"
"""The option for the target's names, and the switch of every preset for the source's."""
_TO = "to"
"""A switch of the same meaning as the option: documents of jobs may have it."""
_HUGGING_FACE, _MINDFORMERS = "hf", "mindformers"
"""Values for Hugging Face's names, and for MindFormers', of whichever world."""
_HUB = "hub"
"""The dialect of Hugging Face's names that the tables of worlds lead to."""
_MASTERS = ("optimizer.state.param.", "optimizer.state.fp32_param.")
"""Megatron's prefixes of float32 copies of weights."""


class CompiledPreset(Record):
    """A preset for one source.

    Attributes:
        steps: what it does, as a document of changes has it.
        to_base: the first of these, from the source's spellings of names to those of its world.
        to_hf: the first of these, up to Hugging Face's names; none from Hugging Face's.
        direction: that of the first table, by whose names the source is checked.
        has_hf_target: the target's names are Hugging Face's.
        rows: the rows that count, with the prefix of their layer.
        dialect_rows: those of the dialects of Hugging Face's names that the source has, or the target.
        names: the world of the first table.
        variables: their values.
        kept: casts of parameters whose dtype is always the same, under their new names.
        unread: Hugging Face's name -> the field of config.json by which loaders do not look it up.
        unknown: the same of names that they do look up, and that no row has.
        notes: what was decided, in sentences.
        left_out: patterns of the source's parameters that no model needs.
        row_multiple: what the source's training pads the rows of a vocabulary to a multiple of; 0: unknown.
        of_adapter: the source is an adapter alone, whose names are not those of the rows.
    """

    preset: Preset
    steps: Changes
    to_base: Changes
    to_hf: Changes
    direction: Direction
    has_hf_target: bool
    rows: tuple[tuple[str, Row], ...]
    dialect_rows: tuple[Row, ...]
    names: Names
    variables: Mapping[str, int]
    kept: tuple[CastRule, ...]
    unread: Mapping[str, str]
    unknown: Mapping[str, str]
    notes: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    row_multiple: int = 0
    of_adapter: bool = False


def compile_preset(preset: Preset, known: KnownNames, settings: Settings) -> CompiledPreset:
    """Compile a preset for a source.

    Raises:
        InputError: the source's names are not the preset's, or of both sides; a number is not in config.json; a
            switch is not known; or the layouts of source and target contradict what is asked for.
    """
    _check_switches(preset, settings)
    if preset.quantized == SCALES:
        # rows have the names of what is unpacked, which has an axis less
        unpacked = {name: axes - 1 for name, axes in packed_names(known.axes).items()}
        known = KnownNames({**known.axes, **unpacked}, known.target)
    notes = list(_checked_model(preset, settings))
    return _Chain(preset, known, settings, notes).compiled()


def names_after(axes: Mapping[str, int], changes: Changes) -> dict[str, int]:
    """Return the names that changes make, with the number of their axes; 0 where shapes change.

    What is made of names that are missing is left out: planning reports those.
    """
    recipes = build_recipes(list(axes), changes, [])
    return {name: 0 if recipe.is_reshaped else axes[recipe.sources[0]] for name, recipe in recipes.made.items()}


def _check_switches(preset: Preset, settings: Settings) -> None:
    worlds = preset.worlds
    of_target = [_HUGGING_FACE, *([_MINDFORMERS] if _of_mindformers(preset) else []), *worlds]
    for asked, values in (
        (_names_option(settings), of_target),
        (_switch(settings, _TO), of_target),
        (_switch(settings, _NAMES), worlds),
    ):
        if asked.value and asked.value not in values:
            raise InputError(f"{asked.spelled}: must be one of {', '.join(values)}")
    for said in (settings.of_source, settings.of_target):
        if said.get(_NAMES, worlds[0]) not in worlds:
            raise InputError(f"preset {preset.preset} has no names of {said[_NAMES]}: it has {', '.join(worlds)}")
    switches = {name: list(switch.values) for name, switch in preset.switches.items()}
    for spellings in {names.spellings for names in preset.names.values()} - {""}:
        for name, switch in read_spellings(spellings).switches.items():
            switches[name] = switches.get(name, []) + list(switch.values)
    unknown = settings.given.keys() - {*switches, _NAMES, _TO}
    if unknown:
        wrong, listing = min(unknown), ", ".join(switches) or "none"
        suggestion = did_you_mean(wrong, switches)
        known = f"{suggestion} It has {listing}" if suggestion else f": it has {listing}"
        raise InputError(f"preset {preset.preset} has no switch {quoted(wrong)}{known}")
    for name, values in switches.items():
        asked = _switch(settings, name)
        if asked.value and asked.value not in values:
            raise InputError(f"{asked.spelled}: must be one of {', '.join(dict.fromkeys(values))}")


class _Asked(Record):
    """What a user asks for, empty if nothing, and how it is spelled."""

    value: str
    spelled: str


def _names_option(settings: Settings) -> _Asked:
    return _Asked(settings.names, option(_NAMES, settings.names))


def _switch(settings: Settings, name: str) -> _Asked:
    value = settings.given.get(name, "")
    return _Asked(value, option("switch", [f"{name}={value}"]))


def _of_mindformers(preset: Preset) -> list[str]:
    """The worlds of MindFormers' names."""
    return [world for world, names in preset.names.items() if names.whose == MINDFORMERS]


def _checked_model(preset: Preset, settings: Settings) -> Iterator[str]:
    """Refuse the config.json of another family, whose layouts may differ although its names fit; yield notes.

    Raises:
        InputError: the preset does not list its `model_type`, nor is it allowed.
    """
    config = settings.config
    if config is None or not preset.models:
        return
    model = config.get("model_type")
    if not isinstance(model, str) or not model:
        yield f"preset {preset.preset}: config.json has no model_type, so that the model's family was not checked"
    elif model in preset.models:
        return
    elif model in settings.allowed_models:
        yield f"preset {preset.preset}: made for {', '.join(preset.models)}, and used for {model}, as allowed"
    else:
        raise InputError(
            f"{settings.origin}: config.json is a {quoted(model)} model's, and preset {preset.preset} is for "
            f"{', '.join(preset.models)}: name the preset of its family (reshard presets lists them), or, if "
            f"its names and layouts are those of the preset, {option('allow_model', [model])}"
        )


class _Chain:
    """The tables of a preset, compiled one after another, each for the names that the one before makes."""

    def __init__(self, preset: Preset, known: KnownNames, settings: Settings, notes: list[str]) -> None:
        self._preset = preset
        self._known = known
        self._settings = settings
        self._variables = variables_of(preset, settings)
        self._weights = {without_state(name): axes for name, axes in known.axes.items()}
        self._source_index = NameIndex(self._weights)
        self._hub_texts = frozenset[str]().union(*map(_hf_texts, preset.names.values()))
        self._steps: list[Changes] = []
        self._known_axes: list[Mapping[str, int]] = [self._weights]
        self._tables: list[CompiledTable] = []
        self._notes = notes

    def compiled(self) -> CompiledPreset:
        source = self._source_world()
        from_dialect = _HUB if source else self._shown_dialect(self._source_index)
        to_dialect = self._target_dialect()
        target = self._target_world(source, is_other_dialect=from_dialect != to_dialect)
        if target:
            to_dialect = _HUB
        in_chain = bool(source and target)
        self._check_settled(source, target)
        self._translate(from_dialect, Direction.TO_HF)
        if source:
            self._spell(source, Direction.FROM_HF)
        to_base = list(self._steps)
        direction, world = (Direction.TO_HF, source) if source else (Direction.FROM_HF, target)
        table = Table(self._preset, world or self._preset.complete_world, direction, in_chain=in_chain)
        first = last = self._added(table, keeps_names=not world)
        to_hf = list(self._steps) if source else []
        if in_chain:
            last = self._added(Table(self._preset, target, Direction.FROM_HF, in_chain=True))
            self._check_has_counterparts(target)
        if source and source == target:  # other spellings of the same names
            self._steps = list(to_base)
            del self._known_axes[len(to_base) + 1 :]
        if target:
            self._spell(target, Direction.TO_HF)
        self._translate(to_dialect, Direction.FROM_HF)
        # between a world and Hugging Face the hub's names need no word
        dialects = [each for each in (from_dialect, to_dialect) if each != _HUB or not (source or target)]
        asked, unread = self._loaded()
        known = _hf_texts(table.names)
        return CompiledPreset(
            preset=self._preset,
            steps=self._document(self._steps),
            to_base=self._document(to_base),
            to_hf=self._document(to_hf),
            direction=direction,
            has_hf_target=not target,
            rows=first.rows,
            dialect_rows=tuple(self._dialect_rows(dialects)),
            names=table.names,
            variables=first.variables,
            kept=last.kept,
            unread=unread,
            unknown={text: field for text, field in asked.items() if text not in known},
            notes=tuple(map(spelled, self._all_notes(source, target, dialects))),
            row_multiple=self._settings.row_multiple,
        )

    def _loaded(self) -> tuple[dict[str, str], dict[str, str]]:
        """The names that a field of config.json asks for, and those that it does not, each with the field."""
        asked: dict[str, str] = {}
        unread: dict[str, str] = {}
        for text, each in self._preset.loaded.items() if self._settings.config is not None else ():
            if each.field and not each.part:
                is_asked = has_field(self._settings.config or {}, each.field, default=each.default)
                (asked if is_asked else unread)[text] = each.field
        return asked, unread

    def _check_settled(self, source: str, target: str) -> None:
        """Refuse switches that no world of names on the way leaves open."""
        worlds = dict.fromkeys(filter(None, (source, target)))
        for name, value in self._settings.given.items():
            settled = [self._preset.names[world].switches.get(name, "") for world in worlds]
            if all(settled) and value not in settled:
                raise InputError(
                    f"{option('switch', [f'{name}={value}'])}: {name} is {settled[0]} in {' and '.join(worlds)} names"
                )

    def _document(self, steps: Sequence[Changes]) -> Changes:
        origin = f"preset {self._preset.preset}, with the numbers of {self._settings.origin or 'config.json'}"
        document = [step for each in steps for step in each.model_dump(exclude_defaults=True).get("steps", ())]
        return validated_changes({"variables": self._variables, "steps": document}, origin)

    def _added(self, table: Table, *, keeps_names: bool = False) -> CompiledTable:
        """Compile a table for the names so far, which become those that it makes, unless it only `keeps_names`."""
        # what a target is modelled on shows what the last table has to make
        target = {} if table.in_chain and table.to_hf else self._known.target
        known = KnownNames(self._axes(len(self._steps)), target)
        compile_ = compile_unchanged if keeps_names else compile_table
        compiled = compile_(table, known, self._settings, self._variables)
        self._tables.append(compiled)
        self._steps.append(compiled.steps)
        return compiled

    def _axes(self, tables: int) -> Mapping[str, int]:
        """The names of parameters after so many tables, and the number of their axes."""
        while len(self._known_axes) <= tables:
            steps = self._steps[len(self._known_axes) - 1]
            self._known_axes.append(names_after(self._known_axes[-1], steps))
        return self._known_axes[tables]

    def _spell(self, world: str, direction: Direction) -> None:
        """Add the table that leads to a world's names from others of their spellings, or there."""
        if name := self._preset.names[world].spellings:
            self._add_spellings(name, direction)

    def _translate(self, dialect: str, direction: Direction) -> None:
        """Add the table that leads from a dialect of Hugging Face's names to the hub's, or there."""
        if dialect in self._preset.dialects:
            self._add_spellings(self._preset.dialects[dialect], direction)

    def _add_spellings(self, name: str, direction: Direction) -> None:
        spellings = read_spellings(name)
        self._added(Table(spellings, spellings.worlds[0], direction, is_spelling=True))

    def _dialect_rows(self, dialects: Collection[str]) -> Iterator[Row]:
        for dialect in sorted(self._preset.dialects.keys() & dialects):
            table = read_spellings(self._preset.dialects[dialect])
            yield from (row for _, row in table.names[table.worlds[0]].rows)

    def _shown_dialect(self, names: NameIndex) -> str:
        """The dialect of Hugging Face's names that names show; the hub's, unless they have others."""
        for dialect in self._preset.dialects:
            if self._fitting(self._dialect_texts({dialect}), names):
                return dialect
        return _HUB

    def _dialect_texts(self, dialects: Collection[str]) -> frozenset[str]:
        """The names of dialects that the hub does not have."""
        return frozenset(text for row in self._dialect_rows(dialects) for text in row.mf) - self._hub_texts

    def _target_dialect(self) -> str:
        """The dialect that the target is to have: of the directory that it is modelled on, or as asked for.

        Raises:
            InputError: these are two.
        """
        asked = self._settings.dialect
        if asked and asked not in (_HUB, *self._preset.dialects):
            self._notes.append(f"preset {self._preset.preset}: its names are the hub's in {asked}, too")
            asked = _HUB
        if not self._known.target:
            return asked or _HUB
        shown = self._shown_dialect(NameIndex(self._known.target))
        if asked and asked != shown:
            raise InputError(
                f"{option('dialect', asked)}: the directory that {option('like')} names has {shown} names: leave "
                f"{option('dialect')} out, or name a directory that has config.json and the tokenizer only"
            )
        return shown

    def _source_world(self) -> str:
        """The world of the source's names; empty for Hugging Face's."""
        preset, asked, said = self._preset, self._settings.given.get(_NAMES), self._settings.of_source.get(_NAMES)
        index = self._source_index
        hf = self._fitting(self._hub_texts | self._dialect_texts(self._preset.dialects), index)
        worlds = {world: self._fitting(_own_texts(names), index) for world, names in preset.names.items()}
        all_worlds = frozenset[str]().union(*worlds.values())
        only_hf, only_worlds = hf - all_worlds, all_worlds - hf
        if only_hf and only_worlds:
            raise InputError(
                f"preset {preset.preset}: the source has names of both sides, {min(only_worlds)!r} as "
                f"{self._whose(max(worlds, key=lambda world: len(worlds[world])))} and {min(only_hf)!r} as Hugging "
                "Face: convert a checkpoint that has one side's names only"
            )
        if not only_hf and not only_worlds:
            some = listed([repr(name) for name in sorted(self._weights)], _MAX_LISTED)
            raise InputError(
                f"preset {preset.preset}: none of the source's names is one of its ({some}): is it a preset of "
                "another family? reshard presets lists them"
            )
        if only_hf:
            if said:
                raise InputError(
                    f"preset {preset.preset}: the source's layout has {said} names, and {min(only_hf)!r} is as Hugging "
                    "Face has it"
                )
            return ""
        if said and asked and asked != said:
            raise InputError(f"{option('switch', [f'{_NAMES}={asked}'])}: the source's layout always has {said} names")
        world = said or asked
        if world is None:
            return self._shown_world({world: names - hf for world, names in worlds.items()}, index)
        if not worlds[world] - hf:
            raise InputError(
                f"preset {preset.preset}: none of the source's names is one of its {world} names; it has "
                f"{min(only_worlds)!r}"
            )
        return world

    def _shown_world(self, fitting_names: Mapping[str, frozenset[str]], index: NameIndex) -> str:
        """The world that names alone show: not Megatron's, unless they have spellings that only it knows.

        Raises:
            InputError: they show none, since MindFormers may lay out otherwise what Megatron gives the same names.
        """
        for world, names in self._preset.names.items():
            others = (each for each in self._preset.names.values() if each is not names)
            if self._fitting(_further_texts(names), index) - self._fitting(_texts_of(others), index):
                return world
        best = max(self._preset.worlds, key=lambda world: (len(fitting_names[world]), not self._is_ambiguous(world)))
        if not self._is_ambiguous(best):
            return best
        ours = [world for world in _of_mindformers(self._preset) if fitting_names[world]]
        if ours:
            return max(ours, key=lambda world: len(fitting_names[world]))
        raise InputError(
            f"preset {self._preset.preset}: the source has names that its {best} rows have, but MindFormers lays "
            "out otherwise: name the preset of its family (reshard presets lists them), or, if "
            f"{self._whose(best)} wrote it, {option('switch', [f'{_NAMES}={best}'])}"
        )

    def _is_ambiguous(self, world: str) -> bool:
        """True if MindFormers gives the same names to weights that may lie otherwise."""
        return self._whose(world) == MEGATRON and bool(_of_mindformers(self._preset))

    def _target_world(self, source: str, *, is_other_dialect: bool) -> str:
        """The world of names to make, as layouts say, or as asked for; empty for Hugging Face's."""
        asked = self._asked_names(source)
        said = self._settings.of_target.get(_NAMES)
        if asked == _MINDFORMERS:
            asked = said if said in _of_mindformers(self._preset) else self._world_of_mindformers(source)
        if said and asked not in ("", said):
            raise InputError(f"{option(_NAMES, asked)}: the target's layout always has {said} names")
        world = said or asked
        if dialect := self._settings.dialect:
            if world not in ("", _HUGGING_FACE):
                raise InputError(
                    f"{option('dialect', dialect)}: only Hugging Face's names have dialects, and the target gets "
                    f"{world} names"
                )
            world = _HUGGING_FACE
        if world == _HUGGING_FACE and not source and not is_other_dialect:
            if dialect and not self._preset.dialects:
                raise InputError(
                    f"{option('dialect', dialect)}: preset {self._preset.preset} has the same names in all dialects, "
                    f"and the source has them already: leave out {option('dialect')}"
                )
            if dialect:
                raise InputError(f"{option('dialect', dialect)}: the source has {dialect} names already")
            raise InputError(f"{option(_NAMES, world)}: the source has Hugging Face's names already")
        if world and world == source and not self._preset.names[source].spellings:
            raise InputError(f"{option(_NAMES, world)}: the source has {world} names already")
        if world:
            return "" if world == _HUGGING_FACE else world
        return "" if source or (is_other_dialect and self._is_like_hf()) else self._likely_world()

    def _is_like_hf(self) -> bool:
        """True if the target is modelled on a directory with Hugging Face's names."""
        target = NameIndex(self._known.target)
        worlds = frozenset[str]().union(*map(_own_texts, self._preset.names.values()))
        hf = self._fitting(self._hub_texts | self._dialect_texts(self._preset.dialects), target)
        return bool(hf - self._fitting(worlds, target))

    def _asked_names(self, source: str) -> str:
        """Whose names are asked for, in whatever way; empty if nobody did."""
        ways = [_names_option(self._settings), _switch(self._settings, _TO)]
        of_hf = [] if source else [_switch(self._settings, _NAMES)]
        asked = [way for way in (*ways, *of_hf) if way.value]
        for other in asked[1:]:
            if other.value != asked[0].value:
                reason = ", since the source's names are Hugging Face's" if other in of_hf else ""
                raise InputError(f"{asked[0].spelled}: contradicts {other.spelled}{reason}")
        return asked[0].value if asked else ""

    def _world_of_mindformers(self, source: str) -> str:
        if source and self._whose(source) == MINDFORMERS:
            worlds = [world for world in _of_mindformers(self._preset) if world != source]
            others = f": for its others, {' or '.join(option(_NAMES, each) for each in worlds)}" if worlds else ""
            raise InputError(
                f"{option(_NAMES, _MINDFORMERS)}: the source has MindFormers' names already, {source}{others}"
            )
        return self._likely_world()

    def _likely_world(self) -> str:
        """The world of MindFormers' that the target's strategy has, or the first of these; else the only one.

        Raises:
            InputError: MindFormers has no names of this family, and several others have.
        """
        preset = self._preset
        worlds = _of_mindformers(preset) or preset.worlds
        if len(worlds) == 1:
            return worlds[0]
        choices = " or ".join(option(_NAMES, world) for world in worlds)
        target = NameIndex(map(without_state, self._known.target))
        found = {world: self._fitting(_own_texts(preset.names[world]), target) for world in worlds}
        best = max(worlds, key=lambda world: len(found[world]))
        if not found[best]:
            if self._whose(best) != MINDFORMERS:
                raise InputError(f"preset {preset.preset}: say whose names the target gets: {choices}")
            others = " or ".join(option(_NAMES, world) for world in worlds[1:])
            self._notes.append(f"preset {preset.preset}: {best} names, unless asked for others, {others}")
        return best

    def _fitting(self, texts: frozenset[str], names: NameIndex) -> frozenset[str]:
        return fitting(texts, names, self._variables)

    def _check_has_counterparts(self, world: str) -> None:
        """Refuse names that are still Hugging Face's, because the other world has no row for them."""
        index = NameIndex(self._axes(len(self._steps)))
        hf = self._fitting(self._hub_texts, index)
        if left := sorted(hf - self._fitting(_own_texts(self._preset.names[world]), index)):
            raise InputError(
                f"preset {self._preset.preset}: its {world} names have no counterpart of what Hugging Face calls "
                f"{listed([*map(repr, left)], _MAX_LISTED)}"
            )

    def _whose(self, world: str) -> str:
        return self._preset.names[world].whose if world else "Hugging Face"

    def _all_notes(self, source: str, target: str, dialects: Collection[str]) -> Iterator[str]:
        preset = self._preset
        worlds = " and ".join(dict.fromkeys((*filter(None, (source, target)), *dialects)))
        decided = {name: value for table in self._tables for name, value in table.decided.items()}
        yield (
            f"preset {preset.preset}: {self._whose(source)} to {self._whose(target)} ({worlds} names"
            + "".join(f", {name} {value}" for name, value in decided.items())
            + ")"
        )
        yield from self._notes
        for table in self._tables:
            yield from table.notes
        if (
            target
            and self._whose(target) == MINDFORMERS
            and any(name.startswith(_MASTERS) for name in self._known.axes)
        ):
            yield (
                f"{_MASTERS[0]}NAME, the optimizer's float32 copies of weights, become main_param.NAME, which "
                "MindFormers reads in PyNative mode only: for graph mode leave them out, "
                f"{option('exclude', [f'{prefix}*' for prefix in _MASTERS])}"
            )
        for world in dict.fromkeys(filter(None, (source, target))):
            if not preset.is_run(world):
                whose = self._whose(world)
                yield (
                    f"preset {preset.preset}: the rules of its {world} names were read in the code of {whose}, "
                    "and never compared with what that code makes"
                )


def _hf_texts(names: Names) -> frozenset[str]:
    return frozenset(text for _, row in names.rows for text in row.hf).union(names.copies)


def _texts_of(worlds: Iterable[Names]) -> frozenset[str]:
    """The names of worlds, and Hugging Face's."""
    return frozenset[str]().union(*(_own_texts(names) | _hf_texts(names) for names in worlds))


def _own_texts(names: Names) -> frozenset[str]:
    """The names of a world, further spellings included."""
    return frozenset(text for _, row in names.rows for text in row.mf) | _further_texts(names)


def _further_texts(names: Names) -> frozenset[str]:
    """The further spellings of a world's names."""
    if not names.spellings:
        return frozenset()
    tables = read_spellings(names.spellings).names.values()
    return frozenset(text for table in tables for _, row in table.rows for text in row.hf if text not in row.mf)
