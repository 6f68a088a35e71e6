"""Assigns parameters to pipeline stages when the number of stages changes.

The first number in a parameter's name is its layer (`model.layers.12.attention.wq.weight`); layers go to stages in
order. Parameters of no layer stay where they were: in the first stage, the last, both (tied embeddings), or all. For
those of a middle stage, or of a strategy with one stage, common words in names or a rule decide; nothing else is
guessed.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import pairwise

from reshard.core.errors import StrategyError
from reshard.core.runtime.records import Record
from reshard.core.runtime.wording import counted, listed, ranks_text
from reshard.core.strategy.model import Strategy
from reshard.core.text.options import option

_NUMBER = re.compile(r"(?:^|(?<=[._]))(?:(?:layers?|blocks?|h)_?)?([0-9]{1,6})(?=\.)")
_STATE_WORDS = frozenset(
    ("adam_m", "adam_v", "accu_grads", "accum", "moments", "moment1", "moment2", "momentum", "stat", "vhat", "ema")
)
_FIRST = re.compile(r"embed|wte\b|wpe\b|\btok_")
_LAST = re.compile(r"head|norm|ln_f|logits|output")
_PLACES = ("first", "last", "all")


Layer = tuple[str, int]
"""Text before the number, and the number."""


class PlaceRule(Record):
    """Stages of the parameters of no layer that match `pattern`: `first`, `last`, `all` or numbers."""

    pattern: str
    places: tuple[str, ...]

    def stages(self, stage_count: int) -> tuple[int, ...]:
        """Return the stages that the rule names, of `stage_count`."""
        found: set[int] = set()
        for place in self.places:
            if place == "all":
                found.update(range(stage_count))
            elif place in _PLACES:
                found.add(0 if place == "first" else stage_count - 1)
            elif re.fullmatch(r"[0-9]{1,6}", place) and int(place) < stage_count:
                found.add(int(place))
            else:
                rule = f"{self.pattern}={','.join(self.places)}"
                raise StrategyError(
                    f"{option('places', [rule])}: {place!r} is not a stage: first, "
                    f"last, all, or a number from 0 to {stage_count - 1}"
                )
        return tuple(sorted(found))


class Staging(Record):
    """Parameters of each stage, and the source stage whose layout each takes; its layers, as `0-11`; notes."""

    sources: tuple[Mapping[str, int], ...]
    layers: tuple[str, ...]
    notes: tuple[str, ...]


def owner_of(name: str, names: frozenset[str]) -> str:
    """Return the parameter that an optimizer state belongs to (`adam_m.p` to p); for any other its own name."""
    rest = name
    while "." in rest:
        head, _, rest = rest.partition(".")
        if rest in names or head in _STATE_WORDS:
            return owner_of(rest, names)
    return name


def parse_place(text: str) -> PlaceRule:
    """Parse a rule: `PATTERN=first,last`."""
    pattern, equals, places = text.rpartition("=")
    if not pattern or not equals or not places:
        raise StrategyError(
            f"{option('places', [text])}: it has to be PATTERN=first, =last, =all or numbers of stages: 0,3"
        )
    return PlaceRule(pattern, tuple(place.strip() for place in places.split(",")))


class _Parameters(Record):
    """The parameters of a source strategy, in order: the stages, the layer and the owner of each."""

    stage_count: int
    stages: Mapping[str, tuple[int, ...]]
    layers: Mapping[str, Layer | None]
    owners: Mapping[str, str]

    def is_owner(self, name: str) -> bool:
        """True unless it is the state of another parameter."""
        return self.owners[name] == name

    def fitting(self, pattern: str) -> list[str]:
        """The names that a shell-style pattern matches, and the states of those parameters."""
        return [
            name for name, owner in self.owners.items() if fnmatchcase(name, pattern) or fnmatchcase(owner, pattern)
        ]


def _parameters(source: Strategy) -> _Parameters:
    stages: dict[str, list[int]] = {}
    for stage in source.stages:
        for name in stage.layouts:
            stages.setdefault(name, []).append(stage.stage)
    names = frozenset(stages)
    owners = {name: owner_of(name, names) for name in stages}
    return _Parameters(
        stage_count=len(source.stages),
        stages={name: tuple(numbers) for name, numbers in stages.items()},
        layers={name: layer_of_name(owner) for name, owner in owners.items()},
        owners=owners,
    )


def assign_stages(source: Strategy, stage_count: int, layers: str, rules: Sequence[PlaceRule]) -> Staging:
    """Assign each parameter of a strategy to stages, of `stage_count`.

    `layers` gives each stage its layers, `0-11,12-23`; a plus sign joins several ranges of one stage. If it is empty,
    layers are divided evenly, or stay in their stages if the number of stages does not change.
    """
    parameters = _parameters(source)
    ordered = _ordered_layers(parameters)
    placed = _placed(parameters, rules, stage_count)
    notes: list[str] = []
    if parameters.stage_count == stage_count and not layers:
        stages = {**parameters.stages, **placed}
    else:
        stages = placed | _stages_of_layers(parameters, ordered, placed, stage_count, layers, notes)
        unplaced = [name for name in parameters.stages if name not in stages]
        stages |= _stages_beside_layers(unplaced, parameters, stage_count, notes)
    sources = tuple(_layout_sources(parameters, stages, stage) for stage in range(stage_count))
    empty = [str(stage) for stage, names in enumerate(sources) if not names]
    if empty:
        which = f"stage{'' if len(empty) == 1 else 's'} {listed(empty)}"
        why = f": {option('places')} moves all whose names fit, those of layers, too" if rules else ""
        raise StrategyError(f"{source.origin}: {which} would hold no parameter{why}")
    texts = tuple(_layers_text({parameters.layers[name] for name in names}, ordered) for names in sources)
    return Staging(sources, texts, tuple(notes))


def layer_of_name(name: str) -> Layer | None:
    """Return the layer of a parameter: the prefix of its stack and its number; None if it is of no layer."""
    found = _NUMBER.search(name)
    return (name[: found.start(1)], int(found[1])) if found else None


def _ordered_layers(parameters: _Parameters) -> list[Layer]:
    """All layers in order; stacks of layers (an encoder's, a decoder's) by the stage where they begin."""
    first_stages: dict[str, int] = {}
    for name, stages in parameters.stages.items():
        layer = parameters.layers[name]
        if layer is not None:
            stack, _ = layer
            first_stages[stack] = min(stages[0], first_stages.get(stack, stages[0]))
    stacks = sorted(first_stages, key=first_stages.__getitem__)  # stable sort: otherwise in the file's order
    layers = {layer for layer in parameters.layers.values() if layer is not None}
    return sorted(layers, key=lambda layer: (stacks.index(layer[0]), layer[1]))


def _stages_of_layers(
    parameters: _Parameters,
    ordered: Sequence[Layer],
    placed: Mapping[str, tuple[int, ...]],
    stage_count: int,
    layers: str,
    notes: list[str],
) -> dict[str, tuple[int, ...]]:
    """Stages of the parameters of layers, but for those placed by rules and those that stages share."""
    stage_of = _stage_of_layers(ordered, stage_count, layers, notes)
    if stage_count > 1 and not layers and _take_turns(parameters, ordered):
        notes.append(
            "the source's stages hold layers in turns, as interleaved pipelines do; here they hold them one after "
            f"another. Give them with {option('layers')} as the network does: 0-3+8-11,4-7+12-15"
        )
    stages: dict[str, tuple[int, ...]] = {}
    for name, layer in parameters.layers.items():
        if layer is not None and name not in placed and len(parameters.stages[name]) == 1:
            stages[name] = (stage_of[layer],)
    return stages


def _take_turns(parameters: _Parameters, ordered: Sequence[Layer]) -> bool:
    """True if a later layer is in an earlier stage of the source."""
    stage_of = {layer: parameters.stages[name][0] for name, layer in parameters.layers.items()}
    return any(stage_of[earlier] > stage_of[later] for earlier, later in pairwise(ordered))


def _stage_of_layers(ordered: Sequence[Layer], stage_count: int, layers: str, notes: list[str]) -> Mapping[Layer, int]:
    if layers:
        return _as_given(ordered, stage_count, layers)
    if stage_count == 1:
        return dict.fromkeys(ordered, 0)
    if len(ordered) < stage_count:
        raise StrategyError(
            f"there are {counted(len(ordered), 'layer')} for {stage_count} stages: layers are recognized by the "
            "numbers in parameters' names, as in model.layers.0.weight"
        )
    least, more = divmod(len(ordered), stage_count)
    counts = [least + (stage < more) for stage in range(stage_count)]
    if more:
        notes.append(
            f"{len(ordered)} layers do not divide evenly over {stage_count} stages: they have "
            f"{', '.join(map(str, counts))}. Give them with {option('layers')} as the network does"
        )
    numbers = [stage for stage, count in enumerate(counts) for _ in range(count)]
    return dict(zip(ordered, numbers, strict=True))


def _as_given(ordered: Sequence[Layer], stage_count: int, layers: str) -> Mapping[Layer, int]:
    several = len({stack for stack, _ in ordered}) > 1
    numbered = {position if several else layer[1]: layer for position, layer in enumerate(ordered)}
    stages = [_numbers(part, layers) for part in layers.split(",")]
    if len(stages) != stage_count:
        raise StrategyError(
            f"{option('layers', layers)}: gives layers to {counted(len(stages), 'stage')}, but {option('pipeline')} "
            f"says {stage_count}; ranges of one stage are joined by a plus sign: 0-3+8-11"
        )
    stage_of: dict[Layer, int] = {}
    for stage, numbers in enumerate(stages):
        for number in numbers:
            layer = numbered.get(number)
            if layer is None or layer in stage_of:
                why = "is given twice" if layer else f"there are layers {ranks_text(sorted(numbered)) or 'none'}"
                raise StrategyError(f"{option('layers', layers)}: layer {number}: {why}")
            stage_of[layer] = stage
    left = sorted(number for number, layer in numbered.items() if layer not in stage_of)
    if left:
        raise StrategyError(f"{option('layers', layers)}: gives no stage to layers {ranks_text(left)}")
    return stage_of


def _numbers(part: str, layers: str) -> list[int]:
    numbers: list[int] = []
    for span in part.split("+"):
        found = re.fullmatch(r"\s*([0-9]{1,6})\s*(?:-\s*([0-9]{1,6})\s*)?", span)
        if not found or int(found[2] or found[1]) < int(found[1]):
            raise StrategyError(f"{option('layers', layers)}: {span!r} is not a range of layers, such as 0-11,12-23")
        numbers += range(int(found[1]), int(found[2] or found[1]) + 1)
    return numbers


def _placed(parameters: _Parameters, rules: Sequence[PlaceRule], stage_count: int) -> dict[str, tuple[int, ...]]:
    """Stages by rules; an optimizer state goes with its parameter."""
    placed: dict[str, tuple[int, ...]] = {}
    for rule in rules:
        fitting = parameters.fitting(rule.pattern)
        if not fitting:
            raise StrategyError(f"{option('places', [rule.pattern])}: no parameter matches {rule.pattern!r}")
        placed |= dict.fromkeys(fitting, rule.stages(stage_count))
    return placed


def fits(pattern: str, name: str, names: frozenset[str]) -> bool:
    """True if a shell-style pattern matches a name, or the name of the parameter whose optimizer state it is."""
    return fnmatchcase(name, pattern) or fnmatchcase(owner_of(name, names), pattern)


def _stages_beside_layers(
    names: Sequence[str], parameters: _Parameters, stage_count: int, notes: list[str]
) -> dict[str, tuple[int, ...]]:
    """Stages of parameters that belong to no layer, or are shared by stages."""
    if stage_count == 1:
        return dict.fromkeys(names, (0,))
    if parameters.stage_count == 1:
        return _stages_by_name(names, parameters, stage_count, notes)
    source_count = parameters.stage_count
    ends = {0: 0, source_count - 1: stage_count - 1}
    stages: dict[str, tuple[int, ...]] = {}
    in_both: list[str] = []
    unplaced: list[str] = []
    for name in names:
        where = parameters.stages[name]
        if ends.keys() >= set(where):
            stages[name] = tuple(ends[stage] for stage in where)
            if len(where) == source_count < stage_count and parameters.is_owner(name):
                in_both.append(name)
        elif len(where) == source_count:
            stages[name] = tuple(range(stage_count))
        else:
            unplaced.append(name)
    _refuse_unplaced(unplaced)
    if in_both:
        notes.append(
            f"in both of the source's stages, so taken to be in the first and the last: {listed(in_both)}. If all "
            f"stages hold one of these, such as a table of positions, use {option('places', ['PATTERN=all'])}"
        )
    return stages


def _stages_by_name(
    names: Sequence[str], parameters: _Parameters, stage_count: int, notes: list[str]
) -> dict[str, tuple[int, ...]]:
    """Stages of the same, of a source with one stage: words in their names decide."""
    stages: dict[str, tuple[int, ...]] = {}
    by_name: list[str] = []
    unplaced: list[str] = []
    for name in names:
        end = _end_by_name(parameters.owners[name])
        if not end:
            unplaced.append(name)
            continue
        stages[name] = (0,) if end == "first" else (stage_count - 1,)
        if parameters.is_owner(name):
            by_name.append(f"{name} in the {end} stage")
    _refuse_unplaced(unplaced)
    if by_name:
        notes.append(
            f"placed by their names, since the source has one stage: {listed(by_name)}. If embeddings are tied, or one "
            f"of these is elsewhere, use {option('places', ['PATTERN=first,last'])}"
        )
    return stages


def _refuse_unplaced(names: Sequence[str]) -> None:
    if names:
        raise StrategyError(
            f"the stage of {listed(list(map(repr, names)))} is unknown: they belong to no layer, and no "
            f"stage of the source shows it. Use {option('places', ['PATTERN=first'])}, =last, =first,last or =all"
        )


def _end_by_name(name: str) -> str:
    if _FIRST.search(name):
        return "first"
    return "last" if _LAST.search(name) else ""


def _layout_sources(parameters: _Parameters, stages: Mapping[str, tuple[int, ...]], stage: int) -> dict[str, int]:
    """The parameters of a stage, and the source stage that the layout of each is taken from."""
    return {
        name: _source_stage(source_stages, stage, stages[name])
        for name, source_stages in parameters.stages.items()
        if stage in stages[name]
    }


def _source_stage(sources: Sequence[int], stage: int, stages: Sequence[int]) -> int:
    """The source stage that a parameter's layout is taken from."""
    if stage in sources and len(sources) == len(stages):
        return stage
    return sources[-1] if stage == stages[-1] and stage > 0 else sources[0]


def _layers_text(layers: Collection[Layer | None], ordered: Sequence[Layer]) -> str:
    """Format a stage's layers as `0-11`; with several stacks, each with its name in front."""
    stacks: dict[str, list[int]] = {}
    for layer in ordered:
        numbers = stacks.setdefault(layer[0], [])
        if layer in layers:
            numbers.append(layer[1])
    texts = [f"{stack if len(stacks) > 1 else ''}{ranks_text(numbers)}" for stack, numbers in stacks.items() if numbers]
    return ", ".join(texts)
