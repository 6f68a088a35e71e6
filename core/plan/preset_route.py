"""Compiles a preset's tables one after another, on the way from a source's names to the target's.

A preset knows worlds of names, each with a table to Hugging Face's. The way from one world to another leads through
these: what both tables do cancels when pieces are composed. Where Hugging Face's names have dialects, a further table
leads from the source's dialect to the hub's names, or from these to the target's.
"""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from msgspec.structs import replace

from reshard.core.changes.changes import CastRule, Changes
from reshard.core.changes.changes_file import validated_changes
from reshard.core.changes.model_config import has_field
from reshard.core.changes.preset import HEADS, MINDFORMERS, Names, Preset, read_spellings
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
from reshard.core.plan.preset_worlds import (
    check_switches,
    dialect_rows,
    find_way,
    hf_texts,
    hub_texts,
    own_texts,
    whose_names,
)
from reshard.core.plan.recipes import build_recipes
from reshard.core.runtime.records import Record
from reshard.core.runtime.wording import listed, quoted
from reshard.core.text.options import option, spelled

_MAX_LISTED = 4
_MASTERS = ("optimizer.state.param.", "optimizer.state.fp32_param.")
"""Megatron's prefixes of float32 copies of weights."""


class AdapterAlone(Record):
    """What a preset does to an adapter alone, whose names are not those of its rows.

    Attributes:
        rank_factor: how many times the source's rank its matrices get.
        on_differing: what to do if copies that are to be left out differ, as a sentence.
        together: the names of its matrices that go together: they can be left out only all at once.
    """

    rank_factor: int
    on_differing: str
    together: tuple[tuple[str, ...], ...]


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
        alone: how an adapter alone is converted, if the source is one.
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
    alone: AdapterAlone | None = None

    @property
    def heads(self) -> int:
        """The number of attention heads, by config.json; 0: it does not say it."""
        return self.variables.get(HEADS, 0)


def compile_preset(preset: Preset, known: KnownNames, settings: Settings) -> CompiledPreset:
    """Compile a preset for a source.

    Raises:
        InputError: the source's names are not the preset's, or of both sides; a number is not in config.json; a
            switch is not known; or the layouts of source and target contradict what is asked for.
    """
    check_switches(preset, settings)
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
        weights = {without_state(name): axes for name, axes in known.axes.items()}
        self._way = find_way(preset, weights, known.target, settings, self._variables)
        self._steps: list[Changes] = []
        self._known_axes: list[Mapping[str, int]] = [weights]
        self._tables: list[CompiledTable] = []
        self._notes = notes

    def compiled(self) -> CompiledPreset:
        way = self._way
        source, target = way.source, way.target
        in_chain = bool(source and target)
        self._translate(way.from_dialect, Direction.TO_HF)
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
        self._translate(way.to_dialect, Direction.FROM_HF)
        asked, unread = self._loaded()
        known = hf_texts(table.names)
        return CompiledPreset(
            preset=self._preset,
            steps=self._document(self._steps),
            to_base=self._document(to_base),
            to_hf=self._document(to_hf),
            direction=direction,
            has_hf_target=not target,
            rows=first.rows,
            dialect_rows=tuple(dialect_rows(self._preset, way.dialects)),
            names=table.names,
            variables=first.variables,
            kept=last.kept,
            unread=unread,
            unknown={text: field for text, field in asked.items() if text not in known},
            notes=tuple(map(spelled, self._all_notes())),
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

    def _document(self, steps: Sequence[Changes]) -> Changes:
        origin = f"preset {self._preset.preset}, with the numbers of {self._settings.origin or 'config.json'}"
        document = [step for each in steps for step in each.model_dump(exclude_defaults=True).get("steps", ())]
        return validated_changes({"variables": self._variables, "steps": document}, origin)

    def _added(
        self, table: Table, *, keeps_names: bool = False, settled: Mapping[str, str] = MappingProxyType({})
    ) -> CompiledTable:
        """Compile a table for the names so far, which become those that it makes, unless it only `keeps_names`."""
        # what a target is modelled on shows what the last table has to make
        target = {} if table.in_chain and table.to_hf else self._known.target
        known = KnownNames(self._axes(len(self._steps)), target)
        compile_ = compile_unchanged if keeps_names else compile_table
        settings = replace(self._settings, of_target={**self._settings.of_target, **settled})
        compiled = compile_(table, known, settings, self._variables)
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
        names = self._preset.names[world]
        if names.spellings:
            self._add_spellings(names.spellings, direction, names.switches)

    def _translate(self, dialect: str, direction: Direction) -> None:
        """Add the table that leads from a dialect of Hugging Face's names to the hub's, or there."""
        if dialect in self._preset.dialects:
            self._add_spellings(self._preset.dialects[dialect], direction)

    def _add_spellings(
        self, name: str, direction: Direction, settled: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """Add a table of spellings, of which the target gets those that are `settled`, if any are."""
        spellings = read_spellings(name)
        self._added(Table(spellings, spellings.worlds[0], direction, is_spelling=True), settled=settled)

    def _check_has_counterparts(self, world: str) -> None:
        """Refuse names that are still Hugging Face's, because the other world has no row for them."""
        index = NameIndex(self._axes(len(self._steps)))
        hf = fitting(hub_texts(self._preset), index, self._variables)
        if left := sorted(hf - fitting(own_texts(self._preset.names[world]), index, self._variables)):
            raise InputError(
                f"preset {self._preset.preset}: its {world} names have no counterpart of what Hugging Face calls "
                f"{listed([*map(repr, left)], _MAX_LISTED)}"
            )

    def _all_notes(self) -> Iterator[str]:
        preset, way = self._preset, self._way
        target_whose = whose_names(preset, way.target)
        worlds = " and ".join(dict.fromkeys((*way.worlds, *way.dialects)))
        decided = {name: value for table in self._tables for name, value in table.decided.items()}
        yield (
            f"preset {preset.preset}: {whose_names(preset, way.source)} to {target_whose} ({worlds} names"
            + "".join(f", {name} {value}" for name, value in decided.items())
            + ")"
        )
        yield from self._notes
        yield from way.notes
        for table in self._tables:
            yield from table.notes
        if target_whose == MINDFORMERS and any(name.startswith(_MASTERS) for name in self._known.axes):
            yield (
                f"{_MASTERS[0]}NAME, the optimizer's float32 copies of weights, become main_param.NAME, which "
                "MindFormers reads in PyNative mode only: for graph mode leave them out, "
                f"{option('exclude', [f'{prefix}*' for prefix in _MASTERS])}"
            )
        for world in way.worlds:
            if not preset.is_run(world):
                whose = whose_names(preset, world)
                yield (
                    f"preset {preset.preset}: the rules of its {world} names were read in the code of {whose}, "
                    "and never compared with what that code makes"
                )
