"""Holds a source against a preset: each name in a row, nothing missing in a layer, shapes as config.json says.

Only names in the source are looked at, so that further changes, and whatever the target's strategy leaves out, do not
matter. What is missing may be left out on purpose, or allowed.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

from msgspec.structs import replace

from reshard.core.changes.changes import FLOAT_NAMES
from reshard.core.changes.expressions import whole_number
from reshard.core.changes.preset_rows import Row
from reshard.core.changes.templates import Template
from reshard.core.changes.training_state import StateKind, expert_order_problem, state_kind
from reshard.core.errors import PlanError, raise_problems
from reshard.core.plan.model import ParameterMatch
from reshard.core.plan.mxfp4 import SCALES, without_packed
from reshard.core.plan.name_index import NameIndex
from reshard.core.plan.names import fits_any
from reshard.core.plan.preset_route import CompiledPreset
from reshard.core.plan.preset_steps import Direction, parsed, without_state
from reshard.core.plan.recipes import Composer, build_recipes
from reshard.core.runtime.wording import counted
from reshard.core.tensor.slices import Shape
from reshard.core.text.options import option

_LAYER = "L"
_FURTHER_LAYER = "{N+"
"""How the number of a layer for multi-token prediction begins, where it follows the others' numbers."""
_MAX_WANTED = 2**20
"""Parameters that a config.json may count: ten times those of the largest models."""
_ADAPTER = re.compile(r"\.(\w*lora_[abAB])(\.\w+)*$")
"""Names of LoRA's parameters, MindFormers' and Hugging Face's."""

_ROTARY_BUFFERS = ("*rotary_emb.inv_freq", "freqs_cis", "rope.freqs")
"""Buffers that models compute from config.json: one for each layer in older files of Hugging Face's, or one in all."""
_CHATGLM_BUFFER = "rotary_pos_emb.inv_freq"
"""The same of ChatGLM, whose own code and MindFormers' load it where it is there; Megatron has none."""


def rotary_buffers(names: Iterable[str]) -> list[str]:
    """Return the names of buffers that models compute from config.json."""
    endings = tuple(pattern.removeprefix("*") for pattern in _ROTARY_BUFFERS)
    return [name for name in names if name.endswith(endings) and _patterns_of([name])]


def rotary_buffers_note(names: Sequence[str]) -> str:
    """Return the note on buffers that are left out."""
    patterns = " and ".join(_patterns_of(names))
    return f"left out: {counted(len(names), 'buffer')} {patterns}, which models compute from config.json"


def without_rotary_buffers(compiled: CompiledPreset, names: Iterable[str]) -> CompiledPreset:
    """Return a preset that leaves out such buffers of a source, with a note."""
    in_rows = any(text.endswith(_CHATGLM_BUFFER) for _, row in compiled.rows for text in row.hf)
    found = [*rotary_buffers(names), *(name for name in names if not in_rows and name.endswith(_CHATGLM_BUFFER))]
    if not found:
        return compiled
    return replace(compiled, left_out=_patterns_of(found), notes=(*compiled.notes, rotary_buffers_note(found)))


def _patterns_of(buffers: Sequence[str]) -> tuple[str, ...]:
    patterns = (*_ROTARY_BUFFERS, f"*{_CHATGLM_BUFFER}")
    return tuple(pattern for pattern in patterns if any(fnmatchcase(name, pattern) for name in buffers))


def check_names(
    compiled: CompiledPreset,
    names: Sequence[str],
    excluded: Mapping[str, str],
    allowed: Sequence[str],
    *,
    may_be_partial: bool = False,
) -> None:
    """Check the names of a source; `excluded` are left out, and those that fit `allowed` may be missing.

    Unless the result `may_be_partial`, what is left out may be missing only if it fits `allowed`, too: a pattern may
    fit more than was meant, and a loader would begin with random weights in its place.

    Raises:
        PlanError: names are in no row of the preset, or of more layers than config.json counts, or layers lack some of
            theirs.
    """
    if compiled.preset.quantized == SCALES:
        names = list(without_packed(dict.fromkeys(names)))
    names, excluded = _in_base(compiled, names, excluded)
    check = _Names(compiled, names)
    missing = list(check.missing(allowed))
    # layers of two numberings may be the same
    others = [*check.unknown(excluded), *check.surplus(excluded), *check.unlike_config(excluded)]
    problems = list(dict.fromkeys([*others, *missing, *check.missing_parts(allowed)]))
    if not may_be_partial and check.has_weights(excluded):
        left = _Names(compiled, [name for name in names if name not in excluded])
        problems += [
            f"{problem} from what is to be converted, and in the source: {option('include')} and {option('exclude')} "
            f"leave it out. If the model is to be without, allow it: {option('allow_missing', ['PATTERN'])} of the "
            "source's names"
            for problem in dict.fromkeys(left.missing(allowed))
            if problem not in missing
        ]
    raise_problems(PlanError, f"the source is not what preset {compiled.preset.preset} describes", problems)


def unknown_names(compiled: CompiledPreset, names: Sequence[str]) -> frozenset[str]:
    """Return the names of weights of a source that are in no row of the preset."""
    made = build_recipes(names, compiled.to_base, []).made
    known = _Names(compiled, list(made)).in_rows()
    return frozenset(source for name, recipe in made.items() if name not in known for source in recipe.sources)


def _in_base(
    compiled: CompiledPreset, names: Sequence[str], excluded: Mapping[str, str]
) -> tuple[Sequence[str], Mapping[str, str]]:
    """The names of the source's world, and those left out, in place of the source's spellings of them."""
    if not compiled.to_base.steps:
        return names, excluded
    problems: list[str] = []
    made = build_recipes(names, compiled.to_base, problems).made
    raise_problems(PlanError, f"the source is not what preset {compiled.preset.preset} describes", problems)
    left_out = {
        name: excluded[recipe.sources[0]] for name, recipe in made.items() if excluded.keys() >= {*recipe.sources}
    }
    return list(made), left_out


def check_shapes(compiled: CompiledPreset, match: ParameterMatch) -> frozenset[str]:
    """Check the shapes on Hugging Face's side, and dtypes that stay; return the names whose shapes are right.

    Raises:
        PlanError: they are not those that the preset and config.json give.
    """
    sources = {source.name: source.shape for each in match.resharded for source in each.sources}
    if compiled.has_hf_target:
        found: Mapping[str, Shape] = {each.name: each.shape for each in match.resharded}
    elif compiled.direction is Direction.FROM_HF:
        found = sources
    else:
        found = _shapes_on_the_way(compiled, sources)
    of_weight: dict[str, list[str]] = defaultdict(list)
    for name in found:
        of_weight[without_state(name)].append(name)
    index = NameIndex(of_weight)
    problems: list[str] = []
    compared: set[str] = set()
    for template, wanted in _expected_shapes(compiled):
        names = [name for weight in index.fitting(template) for name in of_weight[weight]]
        compared.update(names)
        problems += [
            f"parameter {name!r} has shape {list(found[name])}, by config.json it would be {list(wanted)}"
            for name in names
            if found[name] != wanted
        ]
    targets = {each.name: each.dtype for each in match.resharded}
    for rule in compiled.kept:
        problems += [
            f"parameter {name!r} is {dtype}, but has to be {FLOAT_NAMES[rule.dtype]}: "
            f"{option('cast', [f'{name}={rule.dtype}'])}"
            for name, dtype in targets.items()
            if fnmatchcase(name, rule.parameters) and dtype.name != FLOAT_NAMES[rule.dtype]
        ]
    raise_problems(PlanError, f"preset {compiled.preset.preset} does not fit", problems)
    return frozenset(compared)


def check_padding(compiled: CompiledPreset, match: ParameterMatch) -> list[str]:
    """Check that nothing but padding is left out of a vocabulary's rows; return notes on those that are.

    Raises:
        PlanError: the source's training would have padded the vocabulary of config.json to other rows.
    """
    rows = {source.name: source.shape[0] for each in match.resharded for source in each.sources if source.shape}
    notes, problems, multiple = list[str](), list[str](), compiled.row_multiple
    slices = [step.slice for step in compiled.to_base.steps if step.slice]
    for name, kept in ((each.parameters, int(each.stop)) for each in slices):
        if rows.get(name, kept) == kept:
            continue
        padded = -(-kept // multiple) * multiple if multiple else rows[name]
        if padded != rows[name]:
            problems.append(
                f"{name!r} has {rows[name]} rows, but training pads a vocabulary of {kept} (vocab_size in config.json) "
                f"to {padded} rows, a multiple of {multiple}: correct vocab_size; if it was padded otherwise, convert "
                "to the layout unified without a preset first"
            )
        notes.append(f"{name}: the first {kept} of {rows[name]} rows are the vocabulary; rows of padding are left out")
    raise_problems(PlanError, f"preset {compiled.preset.preset} does not fit", problems)
    return notes


def _expected_shapes(compiled: CompiledPreset) -> Iterator[tuple[Template, Shape]]:
    """Hugging Face's names, and their shapes as far as config.json gives them."""
    known = [row.hf for _, row in compiled.rows] + [row.mf for row in compiled.dialect_rows]
    for shapes in known:
        for text, expressions in shapes.items():
            template = parsed(text, compiled.variables)
            try:
                shape = tuple(whole_number(each, compiled.variables) for each in expressions)
            except ValueError:
                continue
            if template and shape:
                yield template, shape


def _shapes_on_the_way(compiled: CompiledPreset, sources: Mapping[str, Shape]) -> Mapping[str, Shape]:
    """Hugging Face's names between two worlds, and the shapes that they would have."""
    problems: list[str] = []
    made = build_recipes(list(sources), compiled.to_hf, problems).made
    raise_problems(PlanError, f"preset {compiled.preset.preset} does not fit", problems)
    composer = Composer()
    return {name: composer.compose(recipe, sources)[1] for name, recipe in made.items()}


class _Names:
    """The names of a source by the preset's rows."""

    def __init__(self, compiled: CompiledPreset, names: Sequence[str]) -> None:
        self._compiled = compiled
        self._all = names
        self._known = frozenset(names)
        kinds = {name: state_kind(name, self._known) for name in names}
        self._orders = [name for name, kind in kinds.items() if kind is StateKind.EXPERT_ORDER]
        self._state = frozenset(name for name, kind in kinds.items() if kind).difference(self._orders)
        self._weights = {without_state(name) for name in names if name not in self._state}
        self._index = NameIndex(self._weights)
        self._wanted = 0
        self._to_hf = compiled.direction is Direction.TO_HF

    def in_rows(self) -> frozenset[str]:
        """Names in a row, or of a copy."""
        templates = [template for row in self._compiled.rows for template in self._templates(row[1])]
        if not self._to_hf:
            copies = (parsed(text, self._compiled.variables) for text in self._compiled.names.copies)
            templates += [each for each in copies if each]
        return frozenset(name for template in templates for name in self._index.fitting(template))

    def unknown(self, excluded: Mapping[str, str]) -> Iterator[str]:
        """Names in no row."""
        ending = self._compiled.preset.quantized
        known = self.in_rows()
        if orders := [name for name in self._orders if name not in excluded]:
            yield expert_order_problem(orders)
        of_parts = filter(lambda name: self._compiled.preset.is_passed(without_state(name)), self._all)
        passed = self._state.union(known, excluded, self._orders, of_parts)
        for name in self._all:
            if name in passed:
                continue
            is_scale = bool(ending) and name.endswith(ending) and name.removesuffix(ending) in self._known
            if not self._to_hf and is_scale:
                continue
            if _ADAPTER.search(name):
                yield (
                    f"parameter {name!r} is LoRA's, and the preset has no name for it, as where a weight is fused on "
                    f"one side: merge it into its weight with {option('lora')}"
                )
            else:
                yield (
                    f"parameter {name!r} is in no row of the preset, and may be a weight: name the preset of its "
                    f"family, or add a row to a copy of this one (reshard presets {self._compiled.preset.preset})"
                )

    def surplus(self, excluded: Mapping[str, str]) -> Iterator[str]:
        """Names of layers beyond those that config.json counts: a loader that follows it would ignore them."""
        count = self._compiled.variables.get("N")
        if count is None:
            return
        templates = [template for _, row in self._compiled.rows for template in self._templates(row)]
        further = self._further_layers(count)
        for template in templates:
            for name, number in self._numbered(template, _LAYER):
                if number >= count and number not in further and name not in excluded:
                    yield (
                        f"parameter {name!r} is of layer {number}, and config.json counts {count} layers from 0 on "
                        "(num_hidden_layers): name the config.json of the model itself"
                    )

    def unlike_config(self, excluded: Mapping[str, str]) -> Iterator[str]:
        """Names that loaders ignore by config.json, and those that they look up and that no row has."""
        for _, row in self._compiled.rows:
            fields = [self._compiled.unread[text] for text in row.hf if text in self._compiled.unread]
            for template in self._templates(row) if fields else ():
                yield from (
                    f"parameter {name!r} is read by no loader, since config.json does not set {fields[0]}: name the "
                    f"config.json of the model itself with {option('config_json')}"
                    for name in sorted(self._index.fitting(template))
                    if name not in excluded
                )
        for text, field in self._compiled.unknown.items():
            yield (
                f"config.json asks for {text!r} ({field}), and the preset has no row of it among these names: name the "
                f"config.json of the model itself with {option('config_json')}"
            )

    def _further_layers(self, count: int) -> frozenset[int]:
        """Layers beyond those counted that have a numbering of their own: those for multi-token prediction."""
        found: set[int] = set()
        for _, row in self._compiled.rows:
            indexes = self._indexes(row)
            if _LAYER not in indexes and any(_FURTHER_LAYER in text for text in row.hf):
                found.update(number for index in indexes for number in self._numbers(row, index))
        return frozenset(count + number for number in found)

    def _numbered(self, template: Template, index: str) -> Iterator[tuple[str, int]]:
        """The names that a template fits, and the number that each has for an index."""
        if index in template.names:
            for name in self._index.fitting(template):
                yield name, int((template.fitting(name) or {})[index])

    def _numbers(self, row: Row, index: str) -> set[int]:
        """The numbers that names of a row have for an index."""
        return {number for template in self._templates(row) for _, number in self._numbered(template, index)}

    def has_weights(self, names: Iterable[str]) -> bool:
        """True if names are not training state only."""
        return any(name in self._known and name not in self._state for name in names)

    def missing(self, allowed: Sequence[str]) -> Iterator[str]:
        """What layers, or the model, lack."""
        by_place: dict[tuple[str, str], list[Row]] = defaultdict(list)
        for prefix, row in self._compiled.rows:
            index = next(iter(self._indexes(row)), "")
            by_place[prefix, index].append(row)
        for (_, index), rows in by_place.items():
            for place, there in self._places(index, rows):
                problems: dict[str, None] = {}
                for row, names in there:
                    lacking = self._lacking(names, allowed)
                    if lacking and (len(lacking) < len(names) or not self._may_lack(row)):
                        problems[f"parameter {lacking[0]!r} is missing{self._asked_by(row)}"] = None
                for part in dict.fromkeys(row.part for row in rows if row.part):
                    problems |= dict.fromkeys(self._lacking_of_part(place, part, there, allowed))
                yield from problems

    def missing_parts(self, allowed: Sequence[str]) -> Iterator[str]:
        """Parts of the model that are passed through, and that the source has nothing of."""
        for prefix in self._compiled.preset.passed if self._compiled.has_hf_target else ():
            if not fits_any(prefix, allowed) and not any(name.startswith(prefix) for name in self._weights):
                yield (
                    f"there are no parameters {prefix}*, and the model of config.json has that part: loaders would "
                    f"begin with random weights. If it is to be added later, {option('allow_missing', [f'{prefix}*'])}"
                )

    def _asked_by(self, row: Row) -> str:
        """Why a parameter is wanted that not all models of the family have."""
        loaded = self._compiled.preset.loaded
        field = next((loaded[text].field for text in row.hf if text in loaded), "")
        return f": config.json asks for it ({field})" if field else ""

    def _may_lack(self, row: Row) -> bool:
        """True if a place may be without the row; of a part the variants are looked at together."""
        return bool(row.optional or row.part or (row.required_if and not self._compiled.variables[row.required_if]))

    def _lacking(self, names: Sequence[str], allowed: Sequence[str]) -> list[str]:
        return [name for name in names if name not in self._weights and not fits_any(name, allowed)]

    def _lacking_of_part(
        self, place: str, part: str, there: list[tuple[Row, list[str]]], allowed: Sequence[str]
    ) -> list[str]:
        """What the variant lacks of which there is most; empty if one is whole."""
        variants: dict[object, list[str]] = defaultdict(list)
        for number, (row, names) in enumerate(there):
            if row.part == part and not row.optional:
                variants[row.variant or number] += names
        lacking = {variant: self._lacking(names, allowed) for variant, names in variants.items()}
        if not all(lacking.values()):
            return []
        most = max(variants, key=lambda variant: len(variants[variant]) - len(lacking[variant]))
        if len(lacking[most]) < len(variants[most]):
            return [f"parameter {name!r} is missing" for name in lacking[most]]
        return [f"{place} has none of {' or '.join(repr(names[0]) for names in variants.values())}"]

    def _places(self, index: str, rows: list[Row]) -> list[tuple[str, list[tuple[Row, list[str]]]]]:
        """For each value of an index the names that the rows want there; without an index those of the model."""
        if not index:
            found = [(row, texts) for row in rows if (texts := self._expanded(row, {}))]
            return [("the model", found)]
        return [
            (f"layer {number}", [(row, texts) for row in rows if (texts := self._expanded(row, {index: number}))])
            for number in self._layers(index)
        ]

    def _indexes(self, row: Row) -> frozenset[str]:
        """The indexes of a row, an expert's number aside."""
        return frozenset(name for template in self._templates(row) for name in template.names) - {"e"}

    def _layers(self, index: str) -> list[int]:
        """The layers that there are, by any row with this index, and those that there should be."""
        found = self._layers_found(index)
        count = self._compiled.variables.get("N")
        if index == _LAYER and count is not None:
            self._check_countable(count)
            return sorted({*found, *range(count)})
        return list(range(max(found, default=-1) + 1))

    def _layers_found(self, index: str) -> set[int]:
        """The layers of names; those that config.json does not count are reported as surplus."""
        rows = [row for _, row in self._compiled.rows if self._indexes(row) == {index}]
        numbers = {number for row in rows for number in self._numbers(row, index)}
        count = self._compiled.variables.get("N")
        if index != _LAYER or count is None or self._to_hf:
            return numbers
        further = self._further_layers(count)
        return {number for number in numbers if number < count or number in further}

    def _expanded(self, row: Row, values: Mapping[str, int | str]) -> list[str]:
        """The names of a row at a place; of numbered experts each.

        Raises:
            PlanError: config.json counts too many, in all.
        """
        names: list[str] = []
        for template in self._templates(row):
            further = template.names - values.keys()
            if not further:
                names.append(template.expanded(values))
            elif further == {"e"}:
                experts = range(whole_number(row.stacked, self._compiled.variables))
                self._check_countable(len(experts))
                names += [template.expanded({**values, "e": number}) for number in experts]
        self._check_countable(len(names))
        self._wanted += len(names)
        return names

    def _check_countable(self, further: int) -> None:
        if self._wanted + further > _MAX_WANTED:
            raise PlanError(
                f"preset {self._compiled.preset.preset}: by config.json the model has more than {_MAX_WANTED:,} "
                "parameters, the limit"
            )

    def _templates(self, row: Row) -> list[Template]:
        texts = row.mf if self._to_hf else row.hf
        return [template for text in texts if (template := parsed(text, self._compiled.variables))]
