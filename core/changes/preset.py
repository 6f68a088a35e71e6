"""Presets: documents with the names and layouts of a model family, as MindFormers and as Hugging Face have them.

A preset is a table. Each row has a parameter of MindFormers and what it is for Hugging Face: one parameter or several,
with their shapes, and how they lie in it. Those of the package are in `presets/` beside this module; a user may print
one, change the copy and name it in its place.

Megatron's names are a world of a preset, too: nearly those of MindFormers, with switches settled. Where it spells the
same parameter in several ways, a table of `spellings/`, of the same form, leads from the world's names to each of them.
Hugging Face's names are those of files on the hub. Where transformers 5 holds, and may save, the same parameters under
others, another table leads from these dialects to the hub's.
"""

from collections.abc import Iterator, Mapping
from functools import cache, cached_property
from importlib.resources import files
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError, field_validator, model_validator

from reshard.core.changes.expressions import VariableName
from reshard.core.changes.model_config import fields_of
from reshard.core.changes.option_types import is_own_preset
from reshard.core.changes.preset_rows import EXPERT, Row, TemplateText
from reshard.core.changes.rules import Name, Rule, Several
from reshard.core.changes.templates import parse_template
from reshard.core.changes.training_config import GENERATIONS
from reshard.core.errors import InputError
from reshard.core.reports.blocks import Block, Table
from reshard.core.reports.report import Report
from reshard.core.runtime.suggestions import did_you_mean
from reshard.core.runtime.summary import Summary
from reshard.core.runtime.wording import listed, quoted
from reshard.core.text.printing import listed_lines

MINDFORMERS = "MindFormers"
"""The program whose names worlds have, unless they say otherwise."""
HUGGING_FACE = "Hugging Face"
"""Marks a family that only Hugging Face names: its one table of rows serves dialects, not another world."""
MEGATRON = "Megatron"
"""The program whose names are MindFormers', too: where these lie otherwise, names do not tell whose they are."""

HEADS = "nh"
"""The variable of a preset that is the number of attention heads."""

_SUFFIX = ".yaml"
_WEIGHT = ".weight"
_MAX_ROWS = 2**13
"""Of one world of names, those of each kind of layer and of adapters included; families have some 200."""


def _several(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


def _of_all_generations(value: Any) -> Any:
    return {"": value} if isinstance(value, str) else value


SpellingTable = Literal["megatron", "torchtitan", "fused_experts", "fused_mixtral_experts"]
"""The tables of `spellings/`."""
Expressions = Annotated[tuple[str, ...], BeforeValidator(_several)]


class CopyRow(Rule):
    """A parameter that Hugging Face has once more: a copy `of` another, for each index below `count`."""

    of: TemplateText
    count: str


class StatePrefixes(Rule):
    """Prefixes of one state of the optimizer, on either side; of several the first is written."""

    mf: Annotated[Several[Name], Field(min_length=1)]
    hf: Annotated[Several[Name], Field(min_length=1)]


class Names(Rule):
    """The rows of one world of MindFormers' names, or of Megatron's.

    Attributes:
        like: the world whose rows these are, but for those with names that this one has rows of: one of the same
            preset, or of another, `PRESET/WORLD`.
        without: names of that world that this one lacks.
        switches: the values of switches that never have others in this world; of its spellings' switches, those of what
            is written.
        spellings: the table of further spellings of this world's names; empty if each has one.
        whose: the program whose names these are.
        model: rows of whole names.
        layers: where layers are: MindFormers' prefix -> Hugging Face's.
        layer: rows below each of these prefixes.
        copies: Hugging Face's name -> what it is a copy of.
        tied: a name of this world -> the one that it is a copy of if config.json ties embedding and head: Hugging Face
            has none of it then.
        adapters: names of LoRA's parameters, in place of `weight`: MindFormers' -> Hugging Face's. Those of matrices
            that are one parameter on either side, and lie alike, are known.
        states: prefixes of the optimizer's states that have other names on the other side.
        proof: as the preset's, where it is another.
    """

    like: str = ""
    without: tuple[Name, ...] = ()
    switches: dict[str, str] = Field(default={})
    spellings: SpellingTable | Literal[""] = ""
    whose: str = MINDFORMERS
    model: tuple[Row, ...] = ()
    layers: dict[TemplateText, TemplateText] = Field(default={})
    layer: tuple[Row, ...] = ()
    copies: dict[TemplateText, CopyRow] = Field(default={})
    tied: dict[Name, Name] = Field(default={})
    adapters: dict[str, str] = Field(default={})
    states: tuple[StatePrefixes, ...] = ()
    proof: Literal["", "run", "read"] = ""

    @model_validator(mode="after")
    def _check(self) -> "Names":
        if not self.like and not (self.layers and (self.model or self.layer)):
            raise ValueError("needs rows, in 'model' and 'layer', and 'layers', or to be 'like' another world")
        if self.without and not self.like:
            raise ValueError("'without' is for names of the world that this one is 'like'")
        rows = (len(self.model) + len(self.layers) * len(self.layer)) * (1 + len(self.adapters))
        if rows > _MAX_ROWS:
            raise ValueError(
                f"{rows:,} rows, with those of each of its layers and adapters, are more than {_MAX_ROWS:,}, the limit"
            )
        return self

    def completed(self, base: "Names") -> "Names":
        """Return the world with the rows of the one that it is like.

        Raises:
            ValueError: that one lacks a name that this is without.
        """
        own = {name for row in (*self.model, *self.layer) for name in row.mf} | {*self.without}
        unknown = {*self.without}.difference(name for row in (*base.model, *base.layer) for name in row.mf)
        if unknown:
            raise ValueError(f"'without' has {quoted(min(unknown))}, which {quoted(self.like)} has no row of")

        def kept(rows: tuple[Row, ...]) -> Iterator[Row]:
            for row in rows:
                if own.isdisjoint(row.mf) and all(
                    self.switches.get(name, value) == value for name, value in row.when.items()
                ):
                    when = {name: value for name, value in row.when.items() if name not in self.switches}
                    yield row.model_copy(update={"when": when})

        return self.model_copy(
            update={
                "like": "",
                "without": (),
                "model": (*kept(base.model), *self.model),
                "layers": self.layers or base.layers,
                "layer": (*kept(base.layer), *self.layer),
                "copies": self.copies or base.copies,
                "tied": self.tied or base.tied,
            }
        )

    @property
    def rows(self) -> Iterator[tuple[str, Row]]:
        """All rows with whole names, each with MindFormers' prefix of its layer."""
        for prefix, row in self.rows_of_weights:
            yield prefix, row
            yield from ((prefix, each) for each in self._adapters_of(row))

    @property
    def rows_of_weights(self) -> Iterator[tuple[str, Row]]:
        """Those of weights, without adapters."""
        yield from (("", row) for row in self.model)
        for mf, hf in self.layers.items():
            yield from ((mf, row.below(mf, hf)) for row in self.layer if mf in (row.only_in or (mf,)))

    def _adapters_of(self, row: Row) -> Iterator[Row]:
        """The rows of LoRA's parameters of a row's matrix."""
        [mf, *other_mf], [(hf, shape), *other_hf] = row.mf, row.hf.items()
        is_changed = bool(row.rope or row.regrouped or row.positions or row.added or row.stacked or row.transposed)
        is_plain = not (other_mf or other_hf or is_changed) and len(shape) == 2
        if is_plain and mf.endswith(_WEIGHT) and hf.endswith(_WEIGHT):
            for ours, theirs in self.adapters.items():
                names = {"mf": {f"{mf.removesuffix(_WEIGHT)}.{ours}": ()}}
                names |= {"hf": {f"{hf.removesuffix(_WEIGHT)}.{theirs}": ()}}
                yield Row.model_validate({**names, "optional": True, "when": row.when})


class Switch(Rule):
    """What a training's configuration decides and a checkpoint does not show, or shows by names or axes only.

    Attributes:
        about: what it decides.
        values: value -> what it means.
        shown_by: value -> a name that is there only then.
        axes_of: the value is the number of axes of the parameter with this name of MindFormers.
        default: what MindFormers does if the configuration does not say it, by generation of its configurations; under
            an empty name, in all of them. See `reshard.core.changes.training_config`.
        otherwise: the value where nothing says it: a choice that names or axes of the result show.
    """

    about: str
    values: Annotated[dict[str, str], Field(min_length=2)]
    shown_by: dict[str, TemplateText] = Field(default={})
    axes_of: str = ""
    default: Annotated[dict[str, str], BeforeValidator(_of_all_generations)] = Field(default={})
    otherwise: str = ""

    @model_validator(mode="after")
    def _check(self) -> "Switch":
        unknown = {*self.shown_by, *self.default.values(), *filter(None, [self.otherwise])} - self.values.keys()
        if unknown:
            raise ValueError(f"{quoted(min(unknown))} is not one of its 'values'")
        others = self.default.keys() - {"", *GENERATIONS}
        if others:
            raise ValueError(
                f"'default' has {quoted(min(others))}: MindFormers' generations are {listed([*GENERATIONS])}"
            )
        return self

    def default_of(self, generation: str) -> str:
        """Return the default in a generation of MindFormers' configurations; empty if it is not known."""
        return self.default.get(generation) or self.default.get("", "")

    def default_text(self, value: str) -> str:
        """Name the versions of MindFormers in which a value is the default; empty if it is in none."""
        versions = [GENERATIONS.get(each, "MindFormers") for each, default in self.default.items() if default == value]
        return "".join(f"; the default of {each}" for each in versions)


class LoadedName(Rule):
    """A parameter that loaders read by config.json, where rows do not tell it; in place of a row's of the same name.

    Attributes:
        shape: its shape; empty if config.json does not tell it.
        field: the field of config.json that asks for it; empty: every model of the family has it.
        default: what the field is where config.json lacks it.
        part: the part of a layer that it belongs to, and the `variant`, as in rows.
    """

    shape: tuple[str, ...] = ()
    field: str = ""
    default: bool = False
    part: str = ""
    variant: str = ""


class Preset(Rule):
    """The document of a model family.

    Attributes:
        preset: its name.
        proof: whether its rules were `run` against MindFormers' own code, or `read` from it.
        models: values of `model_type` in config.json.
        fields_in: the object of config.json that has the text model's fields, where the model has other parts, too.
        passed: prefixes of Hugging Face's names of these other parts: they have the same names and layouts on both
            sides.
        variables: variable -> field of config.json, or expression of fields; of several the first that is there.
        counted: variable -> templates of names, of both sides: the number of indexes that they have.
        quantized: ending of the names of scales in Hugging Face's directories: `_scale_inv` of block-fp8, which any
            family may have; `_scales` of MXFP4, whose weights end in `_blocks`; empty: there are none.
        switches: what decides between rows.
        loaded: Hugging Face's name -> when loaders read it.
        loaded_world: the world whose rows have all that loaders read; empty: the first.
        dialects: name of a dialect of Hugging Face's -> the table of spellings that leads from it to the hub's names.
        names: world of MindFormers' names -> rows. On the way to MindFormers the first, unless another is asked for.
    """

    preset: str
    title: str
    proof: Literal["run", "read"]
    models: tuple[str, ...] = ()
    fields_in: str = ""
    passed: tuple[Name, ...] = ()
    variables: dict[VariableName, Expressions] = Field(default={})
    counted: dict[VariableName, tuple[TemplateText, ...]] = Field(default={})
    quantized: Literal["", "_scale_inv", "_scales"] = "_scale_inv"
    switches: dict[str, Switch] = Field(default={})
    loaded: dict[TemplateText, LoadedName] = Field(default={})
    loaded_world: str = ""
    dialects: dict[Literal["transformers5"], SpellingTable] = Field(default={})
    names: Annotated[dict[str, Names], Field(min_length=1)]

    @field_validator("names")
    @classmethod
    def _complete(cls, value: dict[str, Names]) -> dict[str, Names]:
        """Complete the worlds that are like others."""
        return {world: _completed(world, names, value) for world, names in value.items()}

    @model_validator(mode="after")
    def _check_rows(self) -> "Preset":
        numbers = dict.fromkeys((*self.variables, *self.counted), 1)
        for text in self.loaded:
            parse_template(text, numbers)
        if self.loaded_world and self.loaded_world not in self.names:
            raise ValueError(f"'loaded_world' is {quoted(self.loaded_world)}, which is not one of 'names'")
        for names in self.names.values():
            for hf in names.copies:
                parse_template(hf, numbers)
            if unknown := {place for row in names.layer for place in row.only_in}.difference(names.layers):
                raise ValueError(f"'only_in' has {quoted(min(unknown))}, which is not one of 'layers'")
            for _, row in names.rows:
                for text in (*row.mf, *row.hf):
                    _check_indexes(text, row, numbers)
                for switch, value in row.when.items():
                    if switch not in self.switches or value not in self.switches[switch].values:
                        raise ValueError(
                            f"the row of {quoted(row.name)} counts for {switch}: {value}, which is not a switch"
                        )
                if row.required_if and row.required_if not in self.counted:
                    raise ValueError(
                        f"the row of {quoted(row.name)} is required by {row.required_if}, which is not one of 'counted'"
                    )
        return self

    @cached_property
    def worlds(self) -> tuple[str, ...]:
        """The worlds of other names than Hugging Face's."""
        return tuple(world for world, names in self.names.items() if names.whose != HUGGING_FACE)

    @property
    def complete_world(self) -> str:
        """The world whose rows have all of Hugging Face's names."""
        return self.loaded_world or next(iter(self.names))

    def fields(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the fields of config.json that count for its rows."""
        return fields_of(config, self.fields_in)

    def is_passed(self, name: str) -> bool:
        """True for a parameter of a part of the model that keeps its names and layouts."""
        return name.startswith(self.passed)

    def is_run(self, world: str) -> bool:
        """True if the rules of a world were run against MindFormers' own code."""
        return (self.names[world].proof or self.proof) == "run"


def _completed(world: str, names: Names, worlds: Mapping[str, Names]) -> Names:
    if not names.like:
        return names
    preset, _, other = names.like.rpartition("/")
    known = read_preset(preset).names if preset in preset_names() else {} if preset else worlds
    base = known.get(other)
    if base is None or base.like:
        raise ValueError(f"{world} is like {quoted(names.like)}, which is not a world with rows of its own")
    return names.completed(base)


def _check_indexes(text: str, row: Row, numbers: Mapping[str, int]) -> None:
    """Raise ValueError if a name's placeholders are not those of layers, or of a stack."""
    template = parse_template(text, numbers)
    if any(placeholder.texts for placeholder in template.placeholders):
        raise ValueError(f"{quoted(text)}: placeholders of a preset are numbers")
    if EXPERT in template.names and not row.stacked:
        raise ValueError(
            f"{quoted(text)}: {{{EXPERT}}} is the index of a stack, and 'stacked' does not say of how many"
        )


def preset_names() -> tuple[str, ...]:
    """Return the names of the package's presets."""
    return tuple(sorted(each.name.removesuffix(_SUFFIX) for each in _directory().iterdir() if _is_preset(each.name)))


def preset_text(name: str) -> str:
    """Return the document of one of the package's presets.

    Raises:
        InputError: there is no such preset.
    """
    if name not in preset_names():
        names = preset_names()
        suggestion = did_you_mean(name, names)
        known = suggestion or "."
        raise InputError(
            f"there is no preset {quoted(name)}{known} There are {', '.join(names)}, or a .yaml file of your own"
        )
    text: str = (_directory() / f"{name}{_SUFFIX}").read_text(encoding="utf-8")
    return text


def read_preset(name: str) -> Preset:
    """Read a preset: one of the package's, by its name, or a document of one's own, by its URL.

    Raises:
        InputError: there is no such preset, or it is malformed.
        StorageError: a transient failure.
    """
    from reshard.core.changes.documents import read_document  # loads YAML

    if is_own_preset(name):
        return parse_preset(read_document(name), name)
    return parse_preset(preset_text(name).encode(), f"{name}{_SUFFIX}")


def parse_preset(data: bytes, origin: str) -> Preset:
    """Parse the document of a preset; `origin` is its name in messages.

    Raises:
        InputError: it is malformed.
    """
    from reshard.core.changes.documents import parse_mapping

    document = parse_mapping(data, origin, "preset", "preset: my_model", texts=True)
    try:
        return Preset.model_validate(document or {})
    except ValidationError as error:
        problems = [
            f"{'.'.join(map(str, each['loc']))}: {_message(each['type'], each['msg'])}"
            for each in error.errors(include_url=False, include_input=False)
        ]
        raise InputError("\n".join(f"{origin}: {problem}" for problem in listed_lines(problems))) from error


def _message(kind: str, text: str) -> str:
    return "there is no such field" if kind == "extra_forbidden" else text.removeprefix("Value error, ")


@cache
def read_spellings(name: str) -> Preset:
    """Read the package's table of further spellings of a world's names, which are its other side."""
    text = (files("reshard.core.changes") / "spellings" / f"{name}{_SUFFIX}").read_text(encoding="utf-8")
    return parse_preset(text.encode(), f"spellings/{name}{_SUFFIX}")


def _directory() -> Any:
    return files("reshard.core.changes") / "presets"


def _is_preset(name: str) -> bool:
    return name.endswith(_SUFFIX)


class PresetSummary(Summary):
    """A preset in a list."""

    preset: str
    title: str
    proof: str
    worlds: tuple[str, ...]
    models: tuple[str, ...]
    switches: tuple[str, ...]


class PresetList(Report):
    """The package's presets."""

    presets: tuple[PresetSummary, ...]

    def blocks(self) -> Iterator[Block]:
        """Yield its content: a table."""
        rows = [
            (each.preset, each.title, " ".join(each.worlds) or "-", each.proof, listed(list(each.switches)) or "-")
            for each in self.presets
        ]
        yield Table(
            ("preset", "models", "names", "rules", "switches"),
            rows,
            optional=["switches", "rules", "names"],
            keys=["preset", "models", "names"],
        )


def list_presets() -> PresetList:
    """Describe the package's presets."""
    found = []
    for name in preset_names():
        each = read_preset(name)
        common = {field: getattr(each, field) for field in ("preset", "title", "proof", "models", "worlds")}
        found.append(PresetSummary(**common, switches=tuple(each.switches)))
    return PresetList(presets=tuple(found))
