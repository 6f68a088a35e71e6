"""Finds the names of an adapter alone in another world: its modules' by a preset, its matrices' by their spellings.

A matrix of an adapter goes along only with a weight that is one on both sides, with the same rows: then A and B are the
same on both sides, too.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence

from msgspec.structs import replace

from reshard.core.changes.changes import NO_CHANGES
from reshard.core.changes.changes_file import validated_changes
from reshard.core.changes.lora.pairing import is_adapters, matrix_of
from reshard.core.changes.lora.spellings import MINDFORMERS as SPELLINGS
from reshard.core.changes.lora.spellings import PEFT, Spelling
from reshard.core.changes.preset import MINDFORMERS, Preset
from reshard.core.errors import InputError, raise_problems
from reshard.core.plan.preset_checks import unknown_names
from reshard.core.plan.preset_route import CompiledPreset, compile_preset
from reshard.core.plan.preset_steps import KnownNames, Settings, without_state
from reshard.core.plan.recipes import Recipe, build_recipes
from reshard.core.runtime.wording import listed, quoted
from reshard.core.text.options import option

LORA_NAMES = "lora_names"
"""The switch for the names of matrices that MindFormers is to get."""
_MAX_LISTED = 4
_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")
_WEIGHT = ".weight"


def are_adapters(names: Collection[str]) -> bool:
    """True for the names of an adapter alone, without weights of its base but those that were trained beside it."""
    weights = [without_state(name) for name in names]
    has_any = any(matrix_of(name) for name in weights)
    return has_any and all(is_adapters(name) or name.startswith(PEFT.prefix) for name in weights)


def compile_for_adapter(preset: Preset, known: KnownNames, settings: Settings) -> CompiledPreset:
    """Compile a preset for an adapter alone, whose names `known` has.

    Raises:
        InputError: the preset does not fit its modules, a weight is not the same on both sides, or it is not known how
            the target spells the names of matrices.
    """
    matrices = _matrices(preset, known.axes)
    weights = {f"{module}{_WEIGHT}": 2 for module, _ in matrices.values()}
    given = {name: value for name, value in settings.given.items() if name != LORA_NAMES}
    compiled = compile_preset(preset, KnownNames(weights), replace(settings, given=given))
    spelling = _spelling(compiled, settings)
    modules = {
        old.removesuffix(_WEIGHT): new.removesuffix(_WEIGHT) for old, new in _renamed(compiled, list(weights)).items()
    }
    wanted = {name: spelling.name_of(modules[module], which) for name, (module, which) in matrices.items()}
    steps = validated_changes({"steps": list(_steps(wanted, matrices, modules))}, f"preset {preset.preset}")
    found = {name: recipe.sources for name, recipe in build_recipes(list(wanted), steps, []).made.items()}
    if found != {new: (old,) for old, new in wanted.items()}:
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
        of_adapter=True,
    )


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
            f"preset {compiled.preset.preset}: reshard does not know what {compiled.names.whose} calls the matrices of "
            f"adapters: merge it instead, {option('lora')}"
        )
    if asked not in SPELLINGS:
        choices = (f"{name} ({spelling.about}: MODULE{spelling.a})" for name, spelling in SPELLINGS.items())
        problem = f"{quoted(asked)} is not one of these ways" if asked else "nothing says how MindFormers does"
        raise InputError(
            f"MindFormers names the matrices of adapters in several ways, and {problem}: "
            f"{option('switch', [f'{LORA_NAMES}=NAME'])}, with NAME {listed(list(choices))}"
        )
    return SPELLINGS[asked]


def _renamed(compiled: CompiledPreset, weights: Sequence[str]) -> dict[str, str]:
    """The weights' names in the target.

    Raises:
        InputError: the preset does not have one, or it is not the same weight there.
    """
    made = build_recipes(weights, compiled.steps, []).made
    by_source: dict[str, list[Recipe]] = defaultdict(list)
    for recipe in made.values():
        for source in recipe.sources:
            by_source[source].append(recipe)
    unknown = unknown_names(compiled, weights)
    renamed: dict[str, str] = {}
    problems = []
    for name in weights:
        recipes = by_source[name]
        if name in unknown or not recipes:
            problems.append(f"the preset has no row for {name!r} alone: it is unknown, or fused or stacked there")
        elif len(recipes) > 1:
            problems.append(f"{name!r} is {listed([repr(each.name) for each in recipes], _MAX_LISTED)} there")
        elif recipes[0].is_reshaped or not recipes[0].name.endswith(_WEIGHT):
            how = " and ".join(recipes[0].making.verbs) or "renamed"
            problems.append(f"{name!r} is {how}, and {recipes[0].name!r} there")
        else:
            renamed[name] = recipes[0].name
    raise_problems(
        InputError,
        f"preset {compiled.preset.preset} cannot rename this adapter, since its weights are others on the other side. "
        f"Merge it into its base instead, {option('lora')}",
        problems,
    )
    return renamed


def _steps(
    wanted: Mapping[str, str], matrices: Mapping[str, tuple[str, str]], modules: Mapping[str, str]
) -> Iterator[dict[str, object]]:
    """Renames of all matrices; those of layers and experts with the same numbers on both sides at once."""
    steps: dict[str, dict[str, list[tuple[str, str]]]] = defaultdict(lambda: defaultdict(list))
    for old, new in wanted.items():
        module, _ = matrices[old]
        old_text, new_text = _with_placeholders(old, new, module, modules[module])
        steps[old_text][new_text].append((old, new))
    several = [pair for texts in steps.values() if len(texts) > 1 for pairs in texts.values() for pair in pairs]
    once = [(old, new) for old, texts in steps.items() if len(texts) == 1 for new in texts]
    for old, new in (*several, *once):
        # options may leave some out
        yield {"rename": {"parameters": old, "to": new, "optional": True}}


def _with_placeholders(old: str, new: str, module: str, new_module: str) -> tuple[str, str]:
    """Both names with their numbers as placeholders, if these are the same."""
    if _NUMBER.findall(module) != _NUMBER.findall(new_module):
        return old, new
    return old.replace(module, _template(module)), new.replace(new_module, _template(new_module))


def _template(module: str) -> str:
    numbers = iter(range(len(module)))
    return _NUMBER.sub(lambda _: f"{{n{next(numbers)}}}", module)
