"""Finds the way from a source's names to the target's by a preset, and compiles its tables one after another.

A preset knows worlds of names, each with a table to Hugging Face's. The way from one world to another leads through
these: what both tables do cancels when pieces are composed. The source's names, the layouts of source and target, and
switches decide the way; it is never guessed.
"""

from collections.abc import Iterator, Mapping, Sequence

from reshard.core.changes.changes import CastRule, Changes
from reshard.core.changes.changes_file import validated_changes
from reshard.core.changes.preset import MINDFORMERS, Names, Preset, Row, read_spellings
from reshard.core.errors import InputError
from reshard.core.plan.name_index import NameIndex
from reshard.core.plan.preset_steps import (
    CompiledTable,
    Direction,
    KnownNames,
    Settings,
    Table,
    compile_table,
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
_NAMES, _TO = "names", "to"
"""Switches of every preset: the world of the source's names, or of the target's if the source is Hugging Face's; and
the target's."""
_HUGGING_FACE = "hf"
"""The value of `to` for Hugging Face's names."""
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
        names: the world of the first table.
        variables: their values.
        kept: casts of parameters whose dtype is always the same, under their new names.
        notes: what was decided, in sentences.
        left_out: patterns of the source's parameters that no model needs.
        row_multiple: what the source's training pads the rows of a vocabulary to a multiple of; 0: unknown.
    """

    preset: Preset
    steps: Changes
    to_base: Changes
    to_hf: Changes
    direction: Direction
    has_hf_target: bool
    rows: tuple[tuple[str, Row], ...]
    names: Names
    variables: Mapping[str, int]
    kept: tuple[CastRule, ...]
    notes: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    row_multiple: int = 0


def compile_preset(preset: Preset, known: KnownNames, settings: Settings) -> CompiledPreset:
    """Compile a preset for a source.

    Raises:
        InputError: the source's names are not the preset's, or of both sides; a number is not in config.json; a
            switch is not known; or the layouts of source and target contradict what is asked for.
    """
    _check_switches(preset, settings)
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
    for name, values in ((_NAMES, worlds), (_TO, (_HUGGING_FACE, *worlds))):
        value = settings.given.get(name)
        if value is not None and value not in values:
            raise InputError(f"{option('switch', [f'{name}={value}'])}: must be one of {', '.join(values)}")
    for said in (settings.of_source, settings.of_target):
        if said.get(_NAMES, worlds[0]) not in worlds:
            raise InputError(f"preset {preset.preset} has no names of {said[_NAMES]}: it has {', '.join(worlds)}")
    switches = [*preset.switches]
    for spellings in {names.spellings for names in preset.names.values()} - {""}:
        switches += read_spellings(spellings).switches
    unknown = settings.given.keys() - {*switches, _NAMES, _TO}
    if unknown:
        switch, listing = min(unknown), ", ".join(switches) or "none"
        suggestion = did_you_mean(switch, switches)
        known = f"{suggestion} It has {listing}" if suggestion else f": it has {listing}"
        raise InputError(f"preset {preset.preset} has no switch {quoted(switch)}{known}")


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
        yield f"preset {preset.preset}: made for {' and '.join(preset.models)}, and used for {model}, as allowed"
    else:
        raise InputError(
            f"{settings.origin}: config.json is a {quoted(model)} model's, and preset {preset.preset} is for "
            f"{' and '.join(preset.models)}: name the preset of its family (reshard presets lists them), or, if "
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
        self._steps: list[Changes] = []
        self._known_axes: list[Mapping[str, int]] = [self._weights]
        self._tables: list[CompiledTable] = []
        self._notes = notes

    def compiled(self) -> CompiledPreset:
        source = self._source_world()
        target = self._target_world(source)
        in_chain = bool(source and target)
        self._check_settled(source, target)
        if source:
            self._spell(source, Direction.FROM_HF)
        to_base = list(self._steps)
        direction, world = (Direction.TO_HF, source) if source else (Direction.FROM_HF, target)
        table = Table(self._preset, world, direction, in_chain=in_chain)
        first = last = self._added(table)
        to_hf = list(self._steps) if source else []
        if in_chain:
            last = self._added(Table(self._preset, target, Direction.FROM_HF, in_chain=True))
            self._check_has_counterparts(target)
        if source == target:  # other spellings of the same names
            self._steps = list(to_base)
            del self._known_axes[len(to_base) + 1 :]
        if target:
            self._spell(target, Direction.TO_HF)
        return CompiledPreset(
            preset=self._preset,
            steps=self._document(self._steps),
            to_base=self._document(to_base),
            to_hf=self._document(to_hf),
            direction=direction,
            has_hf_target=not target,
            rows=first.rows,
            names=table.names,
            variables=first.variables,
            kept=last.kept,
            notes=tuple(map(spelled, self._all_notes(source, target))),
            row_multiple=self._settings.row_multiple,
        )

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

    def _added(self, table: Table) -> CompiledTable:
        """Compile a table for the names so far, which become those that it makes."""
        # what a target is modelled on shows what the last table has to make
        target = {} if table.in_chain and table.to_hf else self._known.target
        known = KnownNames(self._axes(len(self._steps)), target)
        compiled = compile_table(table, known, self._settings, self._variables)
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
        name = self._preset.names[world].spellings
        if name:
            spellings = read_spellings(name)
            self._added(Table(spellings, spellings.worlds[0], direction, is_spelling=True))

    def _source_world(self) -> str:
        """The world of the source's names; empty for Hugging Face's."""
        preset, asked, said = self._preset, self._settings.given.get(_NAMES), self._settings.of_source.get(_NAMES)
        index = NameIndex(self._weights)
        hf = self._fitting(frozenset[str]().union(*map(_hf_texts, preset.names.values())), index)
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
        """The world that names alone show: MindFormers', unless they have spellings that only another one knows.

        Raises:
            InputError: they show none, since MindFormers may lay out otherwise what it gives the same names.
        """
        for world, names in self._preset.names.items():
            if self._fitting(_further_texts(names), index):
                return world
        ours = [world for world in self._preset.worlds if self._whose(world) == MINDFORMERS]
        best = max(ours, key=lambda world: len(fitting_names[world]))
        if not fitting_names[best]:
            other = max(fitting_names, key=lambda world: len(fitting_names[world]))
            raise InputError(
                f"preset {self._preset.preset}: the source has names that its {other} rows have, but MindFormers lays "
                "out otherwise: name the preset of its family (reshard presets lists them), or, if "
                f"{self._whose(other)} wrote it, {option('switch', [f'{_NAMES}={other}'])}"
            )
        return best

    def _target_world(self, source: str) -> str:
        """The world of names to make, as layouts say, or as asked for; empty for Hugging Face's."""
        given, said = self._settings.given, self._settings.of_target.get(_NAMES)
        asked = given.get(_TO)
        if not source and _NAMES in given:
            if asked not in (None, given[_NAMES]):
                raise InputError(
                    f"{option('switch', [f'{_TO}={asked}'])}: contradicts "
                    f"{option('switch', [f'{_NAMES}={given[_NAMES]}'])}, since the source's names are Hugging Face's"
                )
            asked = given[_NAMES]
        if said and asked not in (None, said):
            raise InputError(f"{option('switch', [f'{_TO}={asked}'])}: the target's layout always has {said} names")
        world = said or asked
        if world == _HUGGING_FACE and not source:
            raise InputError(f"{option('switch', [f'{_TO}={world}'])}: the source has Hugging Face's names already")
        if world == source and not self._preset.names[source].spellings:
            raise InputError(f"{option('switch', [f'{_TO}={world}'])}: the source has {world} names already")
        if world is not None:
            return "" if world == _HUGGING_FACE else world
        return "" if source else self._likely_world()

    def _likely_world(self) -> str:
        """The world that the target's strategy, which is MindSpore's, has, or the first."""
        worlds = [world for world in self._preset.worlds if self._whose(world) == MINDFORMERS]
        if len(worlds) == 1:
            return worlds[0]
        target = NameIndex(map(without_state, self._known.target))
        found = {world: self._fitting(_own_texts(self._preset.names[world]), target) for world in worlds}
        best = max(worlds, key=lambda world: len(found[world]))
        if not found[best]:
            others = " or ".join(option("switch", [f"{_NAMES}={world}"]) for world in worlds[1:])
            self._notes.append(f"preset {self._preset.preset}: {best} names, unless asked for others, {others}")
        return best

    def _fitting(self, texts: frozenset[str], names: NameIndex) -> frozenset[str]:
        return fitting(texts, names, self._variables)

    def _check_has_counterparts(self, world: str) -> None:
        """Refuse names that are still Hugging Face's, because the other world has no row for them."""
        index = NameIndex(self._axes(len(self._steps)))
        hf = self._fitting(frozenset[str]().union(*map(_hf_texts, self._preset.names.values())), index)
        if left := sorted(hf - self._fitting(_own_texts(self._preset.names[world]), index)):
            raise InputError(
                f"preset {self._preset.preset}: its {world} names have no counterpart of what Hugging Face calls "
                f"{listed([*map(repr, left)], _MAX_LISTED)}"
            )

    def _whose(self, world: str) -> str:
        return self._preset.names[world].whose if world else "Hugging Face"

    def _all_notes(self, source: str, target: str) -> Iterator[str]:
        preset = self._preset
        worlds = " and ".join(dict.fromkeys(filter(None, (source, target))))
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


def _own_texts(names: Names) -> frozenset[str]:
    """The names of a world, further spellings included."""
    return frozenset(text for _, row in names.rows for text in row.mf) | _further_texts(names)


def _further_texts(names: Names) -> frozenset[str]:
    """The further spellings of a world's names."""
    if not names.spellings:
        return frozenset()
    tables = read_spellings(names.spellings).names.values()
    return frozenset(text for table in tables for _, row in table.rows for text in row.hf if text not in row.mf)
