"""Finds whose names a preset is to translate, and into whose, before any of its tables is compiled.

A world is a table of names that a preset has, as one program writes them; Hugging Face's names are not a world, but
what all tables lead to, and they may have dialects. The source's names, the layouts of source and target, and switches
decide the way; it is never guessed.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping

from reshard.core.changes.preset import MEGATRON, MINDFORMERS, Names, Preset, read_spellings
from reshard.core.changes.preset_rows import Row
from reshard.core.errors import InputError
from reshard.core.plan.name_index import NameIndex
from reshard.core.plan.preset_steps import Settings, fitting, without_state
from reshard.core.runtime.records import Record
from reshard.core.runtime.suggestions import did_you_mean
from reshard.core.runtime.wording import listed, quoted
from reshard.core.text.options import option

HUB = "hub"
"""The dialect of Hugging Face's names that the tables of worlds lead to."""
_MAX_LISTED = 4
_NAMES = "names"
"""The option for the target's names, and the switch of every preset for the source's."""
_TO = "to"
"""A switch of the same meaning as the option: documents of jobs may have it."""
_HUGGING_FACE, _MINDFORMERS = "hf", "mindformers"
"""Values for Hugging Face's names, and for MindFormers', of whichever world."""


class Way(Record):
    """From whose names to whose.

    Attributes:
        source: the world of the source's names; empty for Hugging Face's.
        target: the world of the names to make; empty for Hugging Face's.
        from_dialect: the dialect of the source's names, the hub's if these are of a world.
        to_dialect: the dialect of the names to make, the hub's if these are of a world.
        notes: what was decided without being asked for, in sentences.
    """

    source: str
    target: str
    from_dialect: str
    to_dialect: str
    notes: tuple[str, ...]

    @property
    def worlds(self) -> tuple[str, ...]:
        """The worlds of source and target, each once."""
        return tuple(dict.fromkeys(filter(None, (self.source, self.target))))

    @property
    def dialects(self) -> tuple[str, ...]:
        """The dialects to speak of: between a world and Hugging Face the hub's names need no word."""
        return tuple(each for each in (self.from_dialect, self.to_dialect) if each != HUB or not self.worlds)


def find_way(
    preset: Preset, weights: Collection[str], target: Collection[str], settings: Settings, variables: Mapping[str, int]
) -> Way:
    """Find the way from the names of a source's `weights` to those of the target, some of which may be known.

    Raises:
        InputError: the source's names are not the preset's, or of both sides; or its names, the layouts of source and
            target and what is asked for contradict each other.
    """
    return _Finder(preset, weights, target, settings, variables).way()


def check_switches(preset: Preset, settings: Settings) -> None:
    """Refuse switches and worlds of names that a preset does not have, and values that they do not have.

    Raises:
        InputError: there are such.
    """
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
        if _NAMES in said and said[_NAMES] not in worlds:
            there = ", ".join(worlds) or "Hugging Face's only"
            raise InputError(f"preset {preset.preset} has no names of {said[_NAMES]}: it has {there}")
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


class _Finder:
    """Finds the way that a preset leads for one source."""

    def __init__(
        self,
        preset: Preset,
        weights: Collection[str],
        target: Collection[str],
        settings: Settings,
        variables: Mapping[str, int],
    ) -> None:
        self._preset = preset
        self._weights = weights
        self._source = NameIndex(weights)
        self._target = target
        self._settings = settings
        self._variables = variables
        self._hub_texts = hub_texts(preset)
        self._hf_texts = self._hub_texts | self._dialect_texts(preset.dialects)
        self._notes: list[str] = []

    def way(self) -> Way:
        source = self._source_world()
        from_dialect = HUB if source else self._shown_dialect(self._source)
        to_dialect = self._target_dialect()
        target = self._target_world(source, is_other_dialect=from_dialect != to_dialect)
        way = Way(source, target, from_dialect, HUB if target else to_dialect, tuple(self._notes))
        self._check_settled(way.worlds)
        return way

    def _source_world(self) -> str:
        """The world of the source's names; empty for Hugging Face's."""
        preset, asked, said = self._preset, self._settings.given.get(_NAMES), self._settings.of_source.get(_NAMES)
        index = self._source
        hf = self._fitting(self._hf_texts, index)
        worlds = {world: self._fitting(own_texts(preset.names[world]), index) for world in preset.worlds}
        all_worlds = frozenset[str]().union(*worlds.values())
        only_hf, only_worlds = hf - all_worlds, all_worlds - hf
        if only_hf and only_worlds:
            whose = whose_names(preset, max(worlds, key=lambda world: len(worlds[world])))
            raise InputError(
                f"preset {preset.preset}: the source has names of both sides, {min(only_worlds)!r} as {whose} and "
                f"{min(only_hf)!r} as Hugging Face: convert a checkpoint that has one side's names only"
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
            f"{whose_names(self._preset, best)} wrote it, {option('switch', [f'{_NAMES}={best}'])}"
        )

    def _is_ambiguous(self, world: str) -> bool:
        """True if MindFormers gives the same names to weights that may lie otherwise."""
        return whose_names(self._preset, world) == MEGATRON and bool(_of_mindformers(self._preset))

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
        if source and whose_names(self._preset, source) == MINDFORMERS:
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
        if not worlds:
            there = self._shown_dialect(self._source)
            dialects = [option("dialect", each) for each in (HUB, *preset.dialects) if each != there]
            raise InputError(
                f"preset {preset.preset}: there are no names of this family besides Hugging Face's, and the source has "
                f"these ({there}): for its other dialect, {' or '.join(dialects)}"
            )
        if len(worlds) == 1:
            return worlds[0]
        choices = " or ".join(option(_NAMES, world) for world in worlds)
        target = NameIndex(map(without_state, self._target))
        found = {world: self._fitting(own_texts(preset.names[world]), target) for world in worlds}
        best = max(worlds, key=lambda world: len(found[world]))
        if not found[best]:
            if whose_names(self._preset, best) != MINDFORMERS:
                raise InputError(f"preset {preset.preset}: say whose names the target gets: {choices}")
            others = " or ".join(option(_NAMES, world) for world in worlds[1:])
            self._notes.append(f"preset {preset.preset}: {best} names, unless asked for others, {others}")
        return best

    def _target_dialect(self) -> str:
        """The dialect that the target is to have: of the directory that it is modelled on, or as asked for.

        Raises:
            InputError: these are two.
        """
        asked = self._settings.dialect
        if asked and asked not in (HUB, *self._preset.dialects):
            self._notes.append(f"preset {self._preset.preset}: its names are the hub's in {asked}, too")
            asked = HUB
        if not self._target:
            return asked or HUB
        shown = self._shown_dialect(NameIndex(self._target))
        if asked and asked != shown:
            raise InputError(
                f"{option('dialect', asked)}: the directory that {option('like')} names has {shown} names: leave "
                f"{option('dialect')} out, or name a directory that has config.json and the tokenizer only"
            )
        return shown

    def _shown_dialect(self, names: NameIndex) -> str:
        """The dialect of Hugging Face's names that names show; the hub's, unless they have others."""
        for dialect in self._preset.dialects:
            if self._fitting(self._dialect_texts({dialect}), names):
                return dialect
        return HUB

    def _dialect_texts(self, dialects: Collection[str]) -> frozenset[str]:
        """The names of dialects that the hub does not have."""
        return frozenset(text for row in dialect_rows(self._preset, dialects) for text in row.mf) - self._hub_texts

    def _is_like_hf(self) -> bool:
        """True if the target is modelled on a directory with Hugging Face's names."""
        target = NameIndex(self._target)
        worlds = frozenset[str]().union(*(own_texts(self._preset.names[world]) for world in self._preset.worlds))
        hf = self._fitting(self._hf_texts, target)
        return bool(hf - self._fitting(worlds, target))

    def _check_settled(self, worlds: Collection[str]) -> None:
        """Refuse switches that no world of names on the way leaves open."""
        for name, value in self._settings.given.items():
            if name in (_NAMES, _TO):
                continue
            spelled = option("switch", [f"{name}={value}"])
            settled = [self._preset.names[world].switches.get(name, "") for world in worlds]
            if not settled:
                raise InputError(f"{spelled}: dialects of Hugging Face's names do not depend on it: leave it out")
            if all(settled) and value not in settled:
                raise InputError(f"{spelled}: {name} is {settled[0]} in {' and '.join(worlds)} names")

    def _fitting(self, texts: frozenset[str], names: NameIndex) -> frozenset[str]:
        return fitting(texts, names, self._variables)


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


def whose_names(preset: Preset, world: str) -> str:
    """Return whose names a world has; Hugging Face's if it is empty."""
    return preset.names[world].whose if world else "Hugging Face"


def dialect_rows(preset: Preset, dialects: Collection[str]) -> Iterator[Row]:
    """Yield the rows of the tables that lead from dialects of Hugging Face's names to the hub's."""
    for dialect in sorted(preset.dialects.keys() & dialects):
        table = read_spellings(preset.dialects[dialect])
        yield from (row for _, row in table.names[table.worlds[0]].rows)


def hub_texts(preset: Preset) -> frozenset[str]:
    """Return Hugging Face's names, as templates, that any world of a preset leads to."""
    return frozenset[str]().union(*map(hf_texts, preset.names.values()))


def hf_texts(names: Names) -> frozenset[str]:
    """Return Hugging Face's names that a world leads to."""
    return frozenset(text for _, row in names.rows for text in row.hf).union(names.copies)


def _texts_of(worlds: Iterable[Names]) -> frozenset[str]:
    """The names of worlds, and Hugging Face's."""
    return frozenset[str]().union(*(own_texts(names) | hf_texts(names) for names in worlds))


def own_texts(names: Names) -> frozenset[str]:
    """Return the names of a world, further spellings included."""
    return frozenset(text for _, row in names.rows for text in row.mf) | _further_texts(names)


def _further_texts(names: Names) -> frozenset[str]:
    """The further spellings of a world's names."""
    if not names.spellings:
        return frozenset()
    tables = read_spellings(names.spellings).names.values()
    return frozenset(text for table in tables for _, row in table.rows for text in row.hf if text not in row.mf)
