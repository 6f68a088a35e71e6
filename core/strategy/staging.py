"""Assigns parameters to pipeline stages when the number of stages changes.

The first number in a parameter's name is its layer (`model.layers.12.attention.wq.weight`); layers go to stages in
order. Parameters of no layer stay where they were: in the first stage, the last, both (tied embeddings), or all. For
those of a middle stage, or of a strategy with one stage, common words in names or a rule decide; nothing else is
guessed.
"""

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import pairwise

from reshard.core.errors import StrategyError
from reshard.core.runtime.frozen import frozen
from reshard.core.runtime.wording import counted, listed, ranks_text
from reshard.core.strategy.model import Strategy

_NUMBER = re.compile(r"(?:^|(?<=[._]))(?:(?:layers?|blocks?|h)_?)?([0-9]{1,6})(?=\.)")
_STATE_WORDS = frozenset(
    ("adam_m", "adam_v", "accu_grads", "accum", "moments", "moment1", "moment2", "momentum", "stat", "vhat", "ema")
)
_FIRST = re.compile(r"embed|wte\b|wpe\b|\btok_")
_LAST = re.compile(r"head|norm|ln_f|logits|output")
_PLACES = ("first", "last", "all")


@frozen
class PlaceRule:
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
                raise StrategyError(
                    f"--place {self.pattern}={','.join(self.places)}: {place!r} is not a stage: first, last, all, or "
                    f"a number from 0 to {stage_count - 1}"
                )
        return tuple(sorted(found))


@frozen
class Staging:
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
        raise StrategyError(f"--place {text!r}: it has to be PATTERN=first, =last, =all or numbers of stages: 0,3")
    return PlaceRule(pattern, tuple(place.strip() for place in places.split(",")))


def assign_stages(source: Strategy, stage_count: int, layers: str, rules: Sequence[PlaceRule]) -> Staging:
    """Assign each parameter of a strategy to stages, of `stage_count`.

    `layers` gives each stage its layers, `0-11,12-23`; a plus sign joins several ranges of one stage. If it is empty,
    layers are divided evenly, or stay in their stages if the number of stages does not change.
    """
    names = list(dict.fromkeys(name for stage in source.stages for name in stage.layouts))
    known = frozenset(names)
    sources = {name: [stage.stage for stage in source.stages_with(name)] for name in names}
    layer_of = {name: layer_of_name(owner_of(name, known)) for name in names}
    ordered = _ordered_layers(names, layer_of, sources)
    placed = _placed(names, known, rules, stage_count)
    notes: list[str] = []
    if len(source.stages) == stage_count and not layers:
        stages = {name: tuple(of_name) for name, of_name in sources.items()} | placed
    else:
        stage_of = _stage_of_layers(ordered, stage_count, layers, notes)
        if stage_count > 1 and not layers and _take_turns(names, layer_of, sources, ordered):
            notes.append(
                "the source's stages hold layers in turns, as interleaved pipelines do; here they hold them one after "
                "another. Give them with --layers as the network does: 0-3+8-11,4-7+12-15"
            )
        stages = placed | {
            name: (stage_of[layer],)
            for name in names
            if name not in placed and (layer := layer_of[name]) is not None and len(sources[name]) == 1
        }
        stages |= _beside_layers(
            [name for name in names if name not in stages], known, sources, len(source.stages), stage_count, notes
        )
    source_stages = tuple(
        {name: _source_stage(sources[name], stage, stages[name]) for name in names if stage in stages[name]}
        for stage in range(stage_count)
    )
    empty = [stage for stage, of_stage in enumerate(source_stages) if not of_stage]
    if empty:
        which = f"stage{'' if len(empty) == 1 else 's'} {listed(list(map(str, empty)))}"
        why = ": --place moves all whose names fit, those of layers, too" if rules else ""
        raise StrategyError(f"{source.origin}: {which} would hold no parameter{why}")
    texts = tuple(
        _layers_text({layer for name in of_stage if (layer := layer_of[name])}, ordered) for of_stage in source_stages
    )
    return Staging(source_stages, texts, tuple(notes))


Layer = tuple[str, int]
"""Text before the number, and the number."""


def layer_of_name(name: str) -> Layer | None:
    """Return the layer of a parameter: the prefix of its stack and its number; None if it is of no layer."""
    found = _NUMBER.search(name)
    return (name[: found.start(1)], int(found[1])) if found else None


def _ordered_layers(
    names: Sequence[str], layer_of: Mapping[str, Layer | None], sources: Mapping[str, Sequence[int]]
) -> list[Layer]:
    """All layers in order; stacks of layers (an encoder's, a decoder's) by the stage where they begin."""
    first_stage: dict[str, int] = {}
    for name in names:
        layer = layer_of[name]
        if layer is not None:
            first_stage[layer[0]] = min(sources[name][0], first_stage.get(layer[0], sources[name][0]))
    stacks = sorted(first_stage, key=first_stage.__getitem__)  # stable sort: otherwise in the file's order
    return sorted({layer for layer in layer_of.values() if layer}, key=lambda layer: (stacks.index(layer[0]), layer[1]))


def _take_turns(
    names: Sequence[str],
    layer_of: Mapping[str, Layer | None],
    sources: Mapping[str, Sequence[int]],
    ordered: Sequence[Layer],
) -> bool:
    """True if a later layer is in an earlier stage of the source."""
    stages = {layer: sources[name][0] for name in names if (layer := layer_of[name]) is not None}
    return any(stages[one] > stages[other] for one, other in pairwise(ordered))


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
            f"{', '.join(map(str, counts))}. Give them with --layers as the network does"
        )
    numbers = [stage for stage, count in enumerate(counts) for _ in range(count)]
    return dict(zip(ordered, numbers, strict=True))


def _as_given(ordered: Sequence[Layer], stage_count: int, layers: str) -> Mapping[Layer, int]:
    several = len({stack for stack, _ in ordered}) > 1
    numbered = {position if several else layer[1]: layer for position, layer in enumerate(ordered)}
    stages = [_numbers(part, layers) for part in layers.split(",")]
    if len(stages) != stage_count:
        raise StrategyError(
            f"--layers {layers}: gives layers to {counted(len(stages), 'stage')}, but --pipeline says {stage_count}; "
            "ranges of one stage are joined by a plus sign: 0-3+8-11"
        )
    stage_of: dict[Layer, int] = {}
    for stage, numbers in enumerate(stages):
        for number in numbers:
            layer = numbered.get(number)
            if layer is None or layer in stage_of:
                why = "is given twice" if layer else f"there are layers {ranks_text(sorted(numbered)) or 'none'}"
                raise StrategyError(f"--layers {layers}: layer {number}: {why}")
            stage_of[layer] = stage
    left = sorted(number for number, layer in numbered.items() if layer not in stage_of)
    if left:
        raise StrategyError(f"--layers {layers}: gives no stage to layers {ranks_text(left)}")
    return stage_of


def _numbers(part: str, layers: str) -> list[int]:
    numbers: list[int] = []
    for span in part.split("+"):
        found = re.fullmatch(r"\s*([0-9]{1,6})\s*(?:-\s*([0-9]{1,6})\s*)?", span)
        if not found or int(found[2] or found[1]) < int(found[1]):
            raise StrategyError(f"--layers {layers}: {span!r} is not a range of layers, such as 0-11,12-23")
        numbers += range(int(found[1]), int(found[2] or found[1]) + 1)
    return numbers


def _placed(
    names: Sequence[str], known: frozenset[str], rules: Sequence[PlaceRule], stage_count: int
) -> dict[str, tuple[int, ...]]:
    """Stages by rules; an optimizer state goes with its parameter."""
    placed: dict[str, tuple[int, ...]] = {}
    for rule in rules:
        fitting = [name for name in names if fits(rule.pattern, name, known)]
        if not fitting:
            raise StrategyError(f"--place {rule.pattern}: no parameter matches {rule.pattern!r}")
        placed |= dict.fromkeys(fitting, rule.stages(stage_count))
    return placed


def fits(pattern: str, name: str, names: frozenset[str]) -> bool:
    """True if a shell-style pattern matches a name, or the name of the parameter whose optimizer state it is."""
    return fnmatchcase(name, pattern) or fnmatchcase(owner_of(name, names), pattern)


def _beside_layers(
    names: Sequence[str],
    known: frozenset[str],
    sources: Mapping[str, Sequence[int]],
    source_count: int,
    stage_count: int,
    notes: list[str],
) -> dict[str, tuple[int, ...]]:
    """Stages of parameters that belong to no layer, or are shared by stages."""
    last = stage_count - 1
    placed: dict[str, tuple[int, ...]] = {}
    by_name: list[str] = []
    in_both: list[str] = []
    unplaced: list[str] = []
    for name in names:
        where = sources[name]
        if stage_count == 1:
            placed[name] = (0,)
        elif source_count > 1 and set(where) <= {0, source_count - 1}:
            placed[name] = tuple(sorted({0 if stage == 0 else last for stage in where}))
            if source_count == len(where) < stage_count and owner_of(name, known) == name:
                in_both.append(name)
        elif source_count > 1 and len(where) == source_count:
            placed[name] = tuple(range(stage_count))
        elif source_count == 1 and (end := _stage_by_name(owner_of(name, known))):
            placed[name] = (0,) if end == "first" else (last,)
            if owner_of(name, known) == name:
                by_name.append(f"{name} in the {end} stage")
        else:
            unplaced.append(name)
    if unplaced:
        raise StrategyError(
            f"the stage of {listed(list(map(repr, unplaced)))} is unknown: they belong to no layer, and no "
            "stage of the source shows it. Use --place PATTERN=first, =last, =first,last or =all"
        )
    if in_both:
        notes.append(
            f"in both of the source's stages, so taken to be in the first and the last: {listed(in_both)}. If all "
            "stages hold one of these, such as a table of positions, use --place PATTERN=all"
        )
    if by_name:
        notes.append(
            f"placed by their names, since the source has one stage: {listed(by_name)}. If embeddings are tied, or one "
            "of these is elsewhere, use --place PATTERN=first,last"
        )
    return placed


def _stage_by_name(name: str) -> str:
    if _FIRST.search(name):
        return "first"
    return "last" if _LAST.search(name) else ""


def _source_stage(sources: Sequence[int], stage: int, stages: Sequence[int]) -> int:
    """The source stage that a parameter's layout is taken from."""
    if stage in sources and len(sources) == len(stages):
        return stage
    return sources[-1] if stage == stages[-1] and stage > 0 else sources[0]


def _layers_text(layers: set[Layer], ordered: Sequence[Layer]) -> str:
    stacks = list(dict.fromkeys(stack for stack, _ in ordered))
    texts = []
    for stack in stacks:
        numbers = sorted(number for of_stack, number in layers if of_stack == stack)
        if numbers:
            texts.append(ranks_text(numbers) if len(stacks) == 1 else f"{stack}{ranks_text(numbers)}")
    return ", ".join(texts)
