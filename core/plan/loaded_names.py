"""The parameters that a model directory's loaders read: by its family's preset, and by config.json alone.

A conversion goes by the names that are there. This goes by the names that have to be: transformers and vLLM make a
model of config.json, look up each of its parameters by name, begin with random values where one is missing, and drop,
or refuse, what is left over.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from msgspec import field

from reshard.core.changes.expressions import whole_number
from reshard.core.changes.model_config import CONFIG_NAME, has_field, layer_variant
from reshard.core.changes.preset import Preset, read_spellings
from reshard.core.changes.preset_rows import Row
from reshard.core.changes.templates import Template
from reshard.core.errors import InputError
from reshard.core.plan.name_index import NameIndex
from reshard.core.plan.preset_steps import Settings, parsed, variables_of
from reshard.core.runtime.records import Record
from reshard.core.tensor.slices import Shape

_LAYER, _EXPERT = "L", "e"
_HEAD = "lm_head.weight"
_MAX_NAMES = 2**20
"""Names that a config.json may ask for: ten times those of the largest models."""

Shapes = Mapping[str, Shape | None]
"""Name -> shape; None if config.json does not tell it."""


class LoadedNames(Record):
    """What loaders read.

    Attributes:
        required: parameters of the model.
        optional: what is read if it is there.
        speculative: those of layers for multi-token prediction: of each of these layers that is there, all that it has
            to have. vLLM reads them for speculative decoding only, transformers drops them.
        prefix: what the names of all layers begin with, `model.`.
        head: the head, which config.json may tie to the embedding; empty if it always has one of its own.
        embedding: the embedding; empty if it is not known.
    """

    required: Shapes
    optional: Shapes = field(default_factory=dict)
    speculative: Shapes = field(default_factory=dict)
    prefix: str = ""
    head: str = ""
    embedding: str = ""


def loaded_names(preset: Preset, config: Mapping[str, Any], origin: str, there: Sequence[str]) -> LoadedNames:
    """Return what loaders read of a model; `there` are the names in its files, which decide between dialects.

    Raises:
        InputError: config.json lacks a number that names need, or asks for too many.
    """
    config = preset.fields(config)
    variables = variables_of(preset, Settings({}, None, config, origin))
    if "N" not in variables:
        fields = " or ".join(preset.variables.get("N", ("num_hidden_layers",)))
        raise InputError(f"{origin}/{CONFIG_NAME}: has no {fields}: the number of layers is not known")
    return _Names(preset, config, origin, variables, there).found()


class _Wanted(Record):
    """A template of Hugging Face's names, and when loaders read it."""

    template: Template
    shape: tuple[str, ...]
    optional: bool
    part: str = ""
    variant: str = ""
    stacked: str = ""


class _Names:
    def __init__(
        self,
        preset: Preset,
        config: Mapping[str, Any],
        origin: str,
        variables: Mapping[str, int],
        there: Sequence[str],
    ) -> None:
        self._preset = preset
        self._config = config
        self._origin = origin
        self._variables = variables
        self._there = frozenset(there)
        self._index = NameIndex(self._there)
        self._world = preset.names[preset.complete_world]
        self._count = 0

    def found(self) -> LoadedNames:
        wanted = self._wanted()
        required, optional = self._place(wanted, {}, 0)
        head = _HEAD if _HEAD in optional else ""
        tables = [name for name, shape in required.items() if head and shape is not None and shape == optional[head]]
        for number in range(self._layers()):
            of_layer = self._place(wanted, {_LAYER: number}, number)
            required |= of_layer[0]
            optional |= of_layer[1]
        embedding = tables[0] if tables else ""
        return LoadedNames(required, optional, self._speculative(wanted), self._prefix(), head, embedding)

    def _layers(self) -> int:
        count = self._variables["N"]
        self._add_to_count(count)
        return count

    def _prefix(self) -> str:
        """The first part of the names of layers."""
        return f"{next(iter(self._world.layers.values())).partition('.')[0]}."

    def _wanted(self) -> list[_Wanted]:
        """The names of a world's rows, then those that only loaders know."""
        texts: dict[str, _Wanted] = {}
        shown = self._shown_switches()
        for _, row in self._world.rows_of_weights:
            if any(shown.get(name, value) != value for name, value in row.when.items()):
                continue
            for text, shape in row.hf.items():
                # where some rows have it in one variant only, and others always, every layer has it
                if text not in texts or (texts[text].part and not row.part):
                    texts[text] = self._of_row(row, text, shape)
        for row in self._dialect():
            [(text, shape)] = row.mf.items()
            replaced = [texts.pop(each) for each in row.hf if each in texts]
            if replaced:
                first = replaced[0]
                texts[text] = _Wanted(self._template(text), shape, first.optional, first.part, first.variant)
        for text, each in self._preset.loaded.items():
            if not has_field(self._config, each.field, default=each.default):
                texts.pop(text, None)
                continue
            texts[text] = _Wanted(self._template(text), each.shape, False, each.part, each.variant)
        return [each for each in texts.values() if each.template.parts]

    def _of_row(self, row: Row, text: str, shape: tuple[str, ...]) -> _Wanted:
        stacked = row.stacked if row.is_apart else ""
        return _Wanted(
            self._template(text), shape, row.optional or bool(row.required_if), row.part, row.variant, stacked
        )

    def _template(self, text: str) -> Template:
        return parsed(text, self._variables) or Template(())

    def _shown_switches(self) -> dict[str, str]:
        """Switch -> the value that names on Hugging Face's side show, of those that these can show."""
        ours = frozenset(text for _, row in self._world.rows_of_weights for text in row.hf)
        shown: dict[str, str] = {}
        for name, switch in self._preset.switches.items():
            texts = {value: text for value, text in switch.shown_by.items() if text in ours}
            if texts:
                found = (value for value, text in texts.items() if self._is_there(self._template(text)))
                shown[name] = next(found, switch.otherwise)
        return shown

    def _is_there(self, template: Template) -> bool:
        """True if a name fits, with the prefix of the model, without it, or with it twice."""
        return any(index.fitting(template) for index in self._prefixed)

    @cached_property
    def _prefixed(self) -> tuple[NameIndex, NameIndex]:
        """The names that there are, also with the prefix of the model; and with one prefix less."""
        prefix = self._prefix()
        index = NameIndex([*self._there, *(f"{prefix}{name}" for name in self._there)])
        return index, NameIndex(name.removeprefix(prefix) for name in self._there)

    def _dialect(self) -> tuple[Row, ...]:
        """The rows of the dialect that the files have, by their names."""
        layers = dict.fromkeys(self._world.layers.values())
        for table in map(read_spellings, self._preset.dialects.values()):
            rows = tuple(row.below(layer, layer) for layer in layers for row in table.names[table.worlds[0]].layer)
            if any(self._is_there(self._template(text)) for row in rows if row.stacked for text in row.mf):
                return rows
        return ()

    def _place(
        self, wanted: Sequence[_Wanted], indexes: Mapping[str, int], layer: int
    ) -> tuple[dict[str, Shape | None], dict[str, Shape | None]]:
        """The required and the optional names of the model (no index), or of a layer, whose number is `layer`."""
        here = [each for each in wanted if each.template.names - {_EXPERT} == indexes.keys()]
        parts = dict.fromkeys(each.part for each in here if each.part)
        chosen = {part: self._variant([each for each in here if each.part == part], indexes, layer) for part in parts}
        required: dict[str, Shape | None] = {}
        optional: dict[str, Shape | None] = {}
        for each in here:
            if not each.part or each.variant == chosen[each.part]:
                (optional if each.optional else required).update(self._expanded(each, indexes))
        return required, optional

    def _variant(self, of_part: Sequence[_Wanted], indexes: Mapping[str, int], layer: int) -> str:
        """The variant of a layer's part that config.json says, or else the one of which there is most."""
        names: dict[str, list[str]] = {}
        for each in of_part:
            names.setdefault(each.variant, []).extend(self._expanded(each, indexes))
        said = layer_variant(self._config, of_part[0].part, layer)
        if said in names:
            return said
        return max(names, key=lambda variant: sum(name in self._there for name in names[variant]) / len(names[variant]))

    def _expanded(self, wanted: _Wanted, indexes: Mapping[str, int]) -> dict[str, Shape | None]:
        """The names of a template at a place, of numbered experts each."""
        if not wanted.stacked:
            self._add_to_count(1)
            return {wanted.template.expanded(indexes): self._shape(wanted)}
        try:
            experts = whole_number(wanted.stacked, self._variables)
        except ValueError:
            fields = " or ".join(self._preset.variables.get(wanted.stacked, (wanted.stacked,)))
            raise InputError(
                f"{self._origin}/{CONFIG_NAME}: has no {fields}: the number of experts is not known"
            ) from None
        self._add_to_count(experts)
        shape = self._shape(wanted)
        return {wanted.template.expanded({**indexes, _EXPERT: number}): shape for number in range(experts)}

    def _shape(self, wanted: _Wanted) -> Shape | None:
        try:
            return tuple(whole_number(each, self._variables) for each in wanted.shape) or None
        except ValueError:
            return None

    def _add_to_count(self, count: int) -> None:
        self._count += count
        if self._count > _MAX_NAMES:
            raise InputError(f"{self._origin}/{CONFIG_NAME}: asks for more than {_MAX_NAMES:,} parameters, the limit")

    def _speculative(self, wanted: Sequence[_Wanted]) -> dict[str, Shape | None]:
        """The names of the layers for multi-token prediction that are there, complete."""
        found: dict[str, Shape | None] = {}
        apart = [each for each in wanted if each.template.names - {_EXPERT, _LAYER}]
        for index in {name for each in apart for name in each.template.names - {_EXPERT}}:
            for number in sorted(self._numbers(apart, index)):
                required, optional = self._place(apart, {index: number}, self._variables["N"] + number)
                found |= required | {name: shape for name, shape in optional.items() if name in self._there}
        copies = [self._template(text) for text in self._world.copies]
        return found | {name: None for each in copies for name in self._index.fitting(each)}

    def _numbers(self, wanted: Sequence[_Wanted], index: str) -> set[int]:
        """The numbers that names have for an index."""
        return {
            int((each.template.fitting(name) or {})[index])
            for each in wanted
            if index in each.template.names
            for name in self._index.fitting(each.template)
        }
