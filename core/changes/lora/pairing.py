"""Pairs an adapter's matrices by their names, and says what they do to which tensors of the base.

Names are PEFT's, also those of a live state dict, MindFormers' and Megatron-Bridge's. Every tensor has to be used.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from reshard.core.changes.lora.deltas import Delta, Product
from reshard.core.changes.lora.settings import LoraSettings
from reshard.core.runtime.records import Record
from reshard.core.tensor.slices import Shape

_PREFIX = "base_model.model."
_MATRICES = (
    re.compile(r"(?P<module>.+)\.lora_(?P<which>[AB])(?:\.default)?\.weight"),
    re.compile(r"(?P<module>.+)\.(?:mindpet_delta_|tk_delta_)?lora_(?P<which>[ab])"),
    re.compile(r"(?P<module>.+)\.adapter\.linear_(?P<which>in|out)\.weight"),
)
_WHICH = {"A": "a", "in": "a", "B": "b", "out": "b"}
_BRIDGES = re.compile(r"\.adapter\.(?:adapter_\w+\.)?linear_(?:in|out)\.")
"""In names of Megatron-Bridge; with `adapter_q` and so on, there are matrices of parts of a fused weight."""
_EMBEDDINGS = re.compile(r"(?P<module>.+)\.lora_embedding_(?P<which>[AB])(?:\.default)?")
_BASE_LAYER = ".base_layer"
_GATE_UP, _DOWN = "gate_up_proj", "down_proj"
_MAX_EXPERTS = 2**14
"""Of a module; each is a change of its own, and a matrix without columns has any number of them for no bytes."""


class Deltas(Record):
    """Name of a base's tensor -> what becomes of it; and what is wrong with the adapter."""

    by_name: Mapping[str, Delta]
    problems: tuple[str, ...]


def is_adapters(name: str) -> bool:
    """True for names of matrices of adapters, and what else goes with them."""
    return "lora_" in name or bool(_BRIDGES.search(name))


def matrix_of(name: str) -> tuple[str, str] | None:
    """Return the module that a matrix of a linear layer's adapter is for, and `a` or `b`; None for other names."""
    short = name.removeprefix(_PREFIX)
    match = next(filter(None, (pattern.fullmatch(short) for pattern in _MATRICES)), None)
    return (match["module"], _which(match)) if match else None


def _which(match: re.Match[str]) -> str:
    """`a` or `b`, as a name says it."""
    return _WHICH.get(match["which"], match["which"])


def adapted_modules(tensors: Iterable[str]) -> set[str]:
    """Return the modules that have matrices among an adapter's tensors."""
    short = [name.removeprefix(_PREFIX) for name in tensors]
    matches = (pattern.fullmatch(name) for name in short for pattern in (*_MATRICES, _EMBEDDINGS))
    return {match["module"] for match in matches if match}


def modules_of(tensors: Iterable[str]) -> set[str]:
    """Return the modules that an adapter's tensors are of by their names; patterns are matched with these."""
    modules = adapted_modules(tensors)
    return modules | {module.removesuffix(_BASE_LAYER) for module in modules}


def pair(tensors: Mapping[str, Shape], settings: LoraSettings) -> Deltas:
    """Say what an adapter's tensors do to those of its base, by names and shapes alone."""
    pairing = _Pairing(tensors, settings)
    return Deltas(pairing.found, tuple(pairing.problems))


@dataclass
class _Matrices:
    """The names of a module's matrices; empty if there is none yet."""

    a: str = ""
    b: str = ""
    is_embedding: bool = False


class _Pairing:
    def __init__(self, tensors: Mapping[str, Shape], settings: LoraSettings) -> None:
        self._tensors = tensors
        self._settings = settings
        self.found: dict[str, Delta] = {}
        self.problems: list[str] = []
        modules: dict[str, _Matrices] = {}
        others: dict[str, str] = {}
        for name in tensors:
            self._sort(name, modules, others)
        for module, matrices in self._complete(modules):
            self._add_module(module, matrices)
        for base_name, name in others.items():
            self._add_replaced(base_name, name, modules)
        if not modules and not self.problems:
            self.problems.append("it has no LoRA matrices")

    def _sort(self, name: str, modules: dict[str, _Matrices], others: dict[str, str]) -> None:
        """Put a tensor where it belongs by its name."""
        short = name.removeprefix(_PREFIX)
        embedding = _EMBEDDINGS.fullmatch(short)
        match = embedding or next(filter(None, (pattern.fullmatch(short) for pattern in _MATRICES)), None)
        if match is None:
            if is_adapters(short):
                self.problems.append(f"{name!r}: reshard does not know what this tensor is for")
            else:
                self._put(others, short, name)
            return
        matrices = modules.setdefault(match["module"], _Matrices())
        which = _which(match)
        if getattr(matrices, which):
            self.problems.append(
                f"{name!r} and {getattr(matrices, which)!r} are the same matrix of {match['module']!r}"
            )
        setattr(matrices, which, name)
        matrices.is_embedding = matrices.is_embedding or bool(embedding)

    def _complete(self, modules: Mapping[str, _Matrices]) -> Iterator[tuple[str, _Matrices]]:
        """The modules with both matrices, of shapes that go together."""
        for module, matrices in modules.items():
            if not matrices.a or not matrices.b:
                there, lacking = (matrices.a, "B") if matrices.a else (matrices.b, "A")
                self.problems.append(f"{there!r} has no counterpart, the matrix {lacking} of {module!r}")
                continue
            a, b = self._tensors[matrices.a], self._tensors[matrices.b]
            if len(a) != 2 or len(b) != 2 or a[0] != b[1] or not all((*a, *b)):
                self.problems.append(
                    f"{matrices.a!r} has shape {list(a)}, {matrices.b!r} {list(b)}: they must be [rank, in] and "
                    "[out, rank]"
                )
                continue
            yield module, matrices

    def _add_module(self, module: str, matrices: _Matrices) -> None:
        if self._experts_parameter(module):
            self._add_experts(module, matrices)
            return
        a, b = self._tensors[matrices.a], self._tensors[matrices.b]
        rank = self._settings.rank_of(module) or a[0]
        if a[0] != rank:
            self.problems.append(f"{matrices.a!r} has rank {a[0]}, and the configuration says {rank} for {module!r}")
            return
        turned = matrices.is_embedding or self._settings.is_transposed
        product = Product(
            matrices.a,
            matrices.b,
            self._settings.scale_of(module, rank),
            transposed=turned,
            rounds_twice=matrices.is_embedding,
        )
        self._put(self.found, f"{module}.weight", Delta((a[1], b[0]) if turned else (b[0], a[1]), product=product))

    def _experts_parameter(self, module: str) -> bool:
        """True if matrices are those of a parameter of a module, by the configuration."""
        whole = "." + module.removesuffix(_BASE_LAYER)
        return any(whole.endswith("." + each.rpartition(".")[0]) for each in self._settings.target_parameters)

    def _add_experts(self, module: str, matrices: _Matrices) -> None:
        """Add fused parameters of experts, whose base has a tensor for each expert.

        If both parameters are adapted, the inner one is the first of the module, gate and up.
        """
        whole = module.removesuffix(_BASE_LAYER)
        parameters = {
            each.rpartition(".")[2]
            for each in self._settings.target_parameters
            if ("." + whole).endswith("." + each.rpartition(".")[0])
        }
        if not parameters <= {_GATE_UP, _DOWN} or self._settings.rank_pattern or self._settings.alpha_pattern:
            self.problems.append(
                f"{matrices.a!r}: 'target_parameters' of {whole!r} are {', '.join(sorted(parameters))}: reshard merges "
                f"{_GATE_UP} and {_DOWN} only, without 'rank_pattern' and 'alpha_pattern'"
            )
            return
        is_inner = module != whole
        if len(parameters) == 2:
            parameter = _GATE_UP if is_inner else _DOWN
            other = self._other_shapes(whole, is_inner)
        else:
            [parameter], other = parameters, None
        a, b = self._tensors[matrices.a], self._tensors[matrices.b]
        rank = self._settings.rank
        gated = (b[0], a[1]) if parameter == _GATE_UP else (2 * a[1], b[0])
        fits = a[0] % rank == 0 and gated[0] % 2 == 0 and is_inner == (len(parameters) == 2 and parameter == _GATE_UP)
        if other is not None:
            fits = fits and other == ((gated[1], gated[0] // 2) if parameter == _GATE_UP else gated)
        if not fits or (len(parameters) == 2 and other is None):
            self.problems.append(
                f"{matrices.a!r} has shape {list(a)}, {matrices.b!r} {list(b)}: these are not matrices of rank {rank} "
                f"for each expert's {parameter} in {whole!r}"
            )
            return
        if a[0] // rank > _MAX_EXPERTS:
            self.problems.append(
                f"{matrices.a!r} has matrices of rank {rank} for {a[0] // rank:,} experts, more than {_MAX_EXPERTS:,}, "
                "the limit"
            )
            return
        width, scale = gated[0] // 2, self._settings.scale_of(whole, rank)
        parts = {"gate_proj": (0, width), "up_proj": (width, 2 * width)} if parameter == _GATE_UP else {_DOWN: ()}
        count = a[0] // rank
        for expert in range(count):
            for part, rows in parts.items():
                product = Product(matrices.a, matrices.b, scale, False, True, expert, count, rows)
                shape = (rows[1] - rows[0], a[1]) if rows else (b[0], a[1])
                self._put(self.found, f"{whole}.{expert}.{part}.weight", Delta(shape, product=product))

    def _other_shapes(self, whole: str, is_inner: bool) -> Shape | None:
        """Rows and columns of the other adapted parameter of a module; None if it is not there."""
        module = whole if is_inner else f"{whole}{_BASE_LAYER}"
        shapes: dict[str, Shape] = {}
        for name, shape in self._tensors.items():
            match = _MATRICES[0].fullmatch(name.removeprefix(_PREFIX))
            if match and match["module"] == module:
                shapes[match["which"]] = shape
        return (shapes["B"][0], shapes["A"][-1]) if len(shapes) == 2 else None

    def _add_replaced(self, base_name: str, name: str, modules: Mapping[str, _Matrices]) -> None:
        """Add a whole tensor of the base."""
        shape = self._tensors[name]
        module, _, kind = base_name.rpartition(".")
        wrapped = module.removesuffix(_BASE_LAYER)
        if module != wrapped and kind == "weight":
            known = self.found.get(f"{wrapped}.weight")
            if known is None or wrapped not in modules:
                self.problems.append(f"{name!r}: {wrapped!r} has no matrices beside it")
            elif known.shape != shape:
                self.problems.append(f"{name!r} has shape {list(shape)}, its matrices are for {list(known.shape)}")
            else:
                self.found[f"{wrapped}.weight"] = Delta(shape, name, known.product)
            return
        is_bias = kind == "bias" and self._settings.has_biases
        if not is_bias and not self._is_saved(module):
            self.problems.append(
                f"{name!r}: is not a LoRA matrix, and the configuration says neither in 'modules_to_save' nor in "
                "'bias' that it was trained"
            )
            return
        self._put(self.found, f"{wrapped}.{kind}", Delta(shape, name))

    def _is_saved(self, module: str) -> bool:
        return any(f".{each}." in f".{module}." for each in self._settings.saved_modules)

    def _put(self, into: dict, name: str, value: object) -> None:  # type: ignore[type-arg]
        if name in into:
            self.problems.append(f"{name!r} is changed by several of its tensors")
        into[name] = value
