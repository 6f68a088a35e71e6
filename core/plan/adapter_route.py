"""Finds the names of an adapter alone in another world: its modules' by a preset, its matrices' by their spellings."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence

from msgspec.structs import replace

from reshard.core.changes.changes import NO_CHANGES
from reshard.core.changes.changes_file import validated_changes
from reshard.core.changes.lora.pairing import is_adapters, matrix_of
from reshard.core.changes.lora.spellings import MINDFORMERS as SPELLINGS
from reshard.core.changes.lora.spellings import PEFT, Spelling
from reshard.core.changes.preset import MINDFORMERS, Preset
from reshard.core.errors import InputError, PlanError, raise_problems
from reshard.core.plan.adapter_groups import WEIGHT, Group, groups_of, lacking_parts
from reshard.core.plan.adapter_steps import matrix_steps, sources_of
from reshard.core.plan.preset_route import AdapterAlone, CompiledPreset, compile_preset
from reshard.core.plan.preset_steps import KnownNames, Settings, without_state
from reshard.core.plan.recipes import build_recipes
from reshard.core.runtime.wording import counted, listed, quoted
from reshard.core.text.options import option

LORA_NAMES = "lora_names"
"""The switch for the names of matrices that MindFormers is to get."""
LORA_JOIN = "lora_join"
"""The switch for what becomes of the matrices of weights that are one in the target."""
_SAME, _BLOCKS = "same", "blocks"
_MAX_LISTED = 4


def are_adapters(names: Collection[str]) -> bool:
    """True for the names of an adapter alone, without weights of its base but those that were trained beside it."""
    weights = [without_state(name) for name in names]
    has_any = any(matrix_of(name) for name in weights)
    return has_any and all(is_adapters(name) or name.startswith(PEFT.prefix) for name in weights)


def compile_for_adapter(preset: Preset, known: KnownNames, settings: Settings) -> CompiledPreset:
    """Compile a preset for an adapter alone, whose names `known` has.

    Raises:
        InputError: the preset does not fit its modules, a weight is more than rows of others, or it is not known how
            the target spells the names of matrices.
    """
    matrices = _matrices(preset, known.axes)
    weights = list(dict.fromkeys(f"{module}{WEIGHT}" for module, _ in matrices.values()))
    own = (LORA_NAMES, LORA_JOIN)
    of_weights = replace(settings, given={name: value for name, value in settings.given.items() if name not in own})
    compiled = compile_preset(preset, KnownNames(dict.fromkeys(weights, 2)), of_weights)
    lacking = lacking_parts(compiled, weights)
    if lacking:
        compiled = compile_preset(preset, KnownNames(dict.fromkeys([*weights, *lacking], 2)), of_weights)
    spelling = _spelling(compiled, settings)
    groups = groups_of(compiled, weights, lacking)
    blocks = max(len(group.sources) for group in groups) if _joins_blocks(settings) else 1
    by_matrix = {matrix: name for name, matrix in matrices.items()}
    sources = {module: (by_matrix[module, "a"], by_matrix[module, "b"]) for module, _ in by_matrix}
    made = [each.module for group in groups for each in group.targets]
    targets = {module: (spelling.name_of(module, "a"), spelling.name_of(module, "b")) for module in made}
    between = compiled.steps.model_dump(exclude_defaults=True).get("steps", ())
    document = matrix_steps(groups, sources, targets, between, blocks)
    steps = validated_changes({"steps": document}, f"preset {preset.preset}")
    found = {name: frozenset(recipe.sources) for name, recipe in build_recipes(list(matrices), steps, []).made.items()}
    if found != sources_of(groups, sources, targets, blocks):
        raise InputError(
            f"preset {preset.preset}: names of this adapter would be mistaken for others on the way. This is a bug in "
            "reshard"
        )
    return replace(
        compiled,
        steps=steps,
        to_base=NO_CHANGES,
        to_hf=NO_CHANGES,
        rows=(),
        dialect_rows=(),
        kept=(),
        unread={},
        unknown={},
        notes=(*compiled.notes, *_notes(groups, blocks)),
        alone=AdapterAlone(
            blocks,
            _on_differing(groups),
            tuple(tuple(name for module in group.sources for name in sources[module]) for group in groups),
        ),
    )


def check_left_out(preset: Preset, alone: AdapterAlone, names: Sequence[str], excluded: Collection[str]) -> None:
    """Check that matrices that go together, and their states, are left out together.

    A part of a fused weight would get the A of another part otherwise.

    Raises:
        PlanError: some are left out, and others are not.
    """
    number_of = {name: number for number, those in enumerate(alone.together) for name in those}
    groups: dict[tuple[str, int], list[str]] = defaultdict(list)
    for name in names:
        matrix = without_state(name)
        if matrix in number_of:
            groups[name.removesuffix(matrix), number_of[matrix]].append(name)
    problems = []
    for those in groups.values():
        left_out = [name for name in those if name in excluded]
        kept = [name for name in those if name not in excluded]
        if left_out and kept:
            problems.append(f"{left_out[0]!r} is left out, and {kept[0]!r} is not")
    raise_problems(
        PlanError,
        f"preset {preset.preset}: A and B of a module, and those of parts of the same weight, are converted "
        f"or left out together. To convert some of them, take them out first, without {option('preset')}",
        problems,
    )


def _joins_blocks(settings: Settings) -> bool:
    """True if the matrices of weights that are one in the target are to become blocks.

    Raises:
        InputError: something else is asked for.
    """
    asked = settings.given.get(LORA_JOIN, _SAME)
    if asked not in (_SAME, _BLOCKS):
        raise InputError(f"{option('switch', [f'{LORA_JOIN}={asked}'])}: must be {_SAME} or {_BLOCKS}")
    return asked == _BLOCKS


def _on_differing(groups: Sequence[Group]) -> str:
    most = max(len(group.sources) for group in groups)
    return (
        "modules that become one have to have the same A, as those that were one have. Matrices of others can be "
        f"blocks of larger ones, with {most} times the rank: {option('switch', [f'{LORA_JOIN}={_BLOCKS}'])}"
    )


def _notes(groups: Sequence[Group], blocks: int) -> Iterator[str]:
    joined = [group for group in groups if len(group.sources) > 1]
    if joined and blocks > 1:
        yield (
            f"matrices of several modules are blocks of one, for {counted(len(joined), 'module')} of the target; with "
            f"zeros beside them all modules have {blocks} times the rank"
        )
    elif joined:
        yield f"modules that have the same A become one: {counted(len(joined), 'module')} of the target"
    lacking = [repr(name) for group in groups for name in group.lacking]
    if lacking:
        yield f"the adapter is not for {listed(lacking, _MAX_LISTED)}, whose rows of B are zeros"


def _matrices(preset: Preset, names: Collection[str]) -> dict[str, tuple[str, str]]:
    """The names of all matrices, each with its module, and `a` or `b`.

    Raises:
        InputError: there are others, or a module does not have one of each.
    """
    matrices, by_matrix, problems = dict[str, tuple[str, str]](), dict[tuple[str, str], str](), list[str]()
    for name in dict.fromkeys(map(without_state, names)):
        matrix = matrix_of(name)
        if matrix is None:
            problems.append(f"{name!r} is no matrix of a linear layer: other worlds have no name for it")
            continue
        if matrix in by_matrix:
            problems.append(f"{by_matrix[matrix]!r} and {name!r} are the same matrix of {matrix[0]!r}")
        matrices[name], by_matrix[matrix] = matrix, name
    for (module, which), name in by_matrix.items():
        other = "b" if which == "a" else "a"
        if (module, other) not in by_matrix:
            problems.append(f"{name!r} has no counterpart, the matrix {other.upper()} of {module!r}")
    raise_problems(
        InputError,
        f"preset {preset.preset} cannot rename this adapter. Merge it into its base instead, {option('lora')}",
        problems,
    )
    return matrices


def _spelling(compiled: CompiledPreset, settings: Settings) -> Spelling:
    """How the target spells the names of matrices.

    Raises:
        InputError: it is not known.
    """
    asked = settings.given.get(LORA_NAMES, "")
    if compiled.has_hf_target:
        if asked:
            raise InputError(f"{option('switch', [f'{LORA_NAMES}={asked}'])}: the target gets PEFT's names")
        return PEFT
    if compiled.to_hf.steps:
        raise InputError(
            f"preset {compiled.preset.preset}: the names of adapters lead from one world to another in two steps: to "
            f"Hugging Face's first, {option('names', 'hf')}"
        )
    if compiled.names.whose != MINDFORMERS:
        raise InputError(
            f"preset {compiled.preset.preset}: reshard writes no adapters in {compiled.names.whose}'s names: merge it "
            f"instead, {option('lora')}"
        )
    if asked not in SPELLINGS:
        choices = (f"{name} ({spelling.about}: MODULE{spelling.a})" for name, spelling in SPELLINGS.items())
        problem = f"{quoted(asked)} is not one of these ways" if asked else "nothing says how MindFormers does"
        raise InputError(
            f"MindFormers names the matrices of adapters in several ways, and {problem}: "
            f"{option('switch', [f'{LORA_NAMES}=NAME'])}, with NAME {listed(list(choices))}"
        )
    return SPELLINGS[asked]
