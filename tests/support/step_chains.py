"""Random chains of all kinds of steps, on models of many layers with optimizer states, and what numpy makes of them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from math import prod
from random import Random
from typing import Any

import ml_dtypes
import numpy as np

from reshard.core.changes.changes import Changes
from tests.support.composing import join_arrays, split_array

Tensor = tuple[str, np.ndarray]
"""Dtype, and the elements as unsigned integers."""
Tensors = dict[str, Tensor]

LAYERS = 11
"""In the order of texts layer 10 would follow layer 1."""
_MOMENTS = ("adam_m.", "adam_v.")
_BLOCK = (5, 7)


@dataclass(frozen=True)
class Family:
    """Parameters of one shape and dtype, whose names one template has.

    Attributes:
        template: with a placeholder for each index.
        indexes: placeholder -> how many there are, from 0 on.
        offsets: placeholder -> what is added in the name.
        prefixes: of states that each has, and the empty one.
        untouched: the source has them so.
    """

    template: str
    indexes: dict[str, int]
    dtype: str
    shape: tuple[int, ...]
    prefixes: tuple[str, ...]
    untouched: bool = False

    def names(self) -> Iterator[tuple[str, dict[str, int]]]:
        """Each name, and the values of its placeholders."""
        for numbers in product(*map(range, self.indexes.values())):
            values = dict(zip(self.indexes, numbers, strict=True))
            for prefix in self.prefixes:
                yield prefix + named(self.template, values), values


def named(template: str, values: dict[str, int]) -> str:
    """A template of placeholders such as `{L}` and `{L+3}`, filled in."""
    name = template
    for key, value in values.items():
        name = name.replace(f"{{{key}}}", str(value))
        for offset in range(1, 10):
            name = name.replace(f"{{{key}+{offset}}}", str(value + offset))
    return name


@dataclass
class Chain:
    """Steps so far, and the tensors that they leave."""

    dice: Random
    tensors: Tensors
    families: list[Family]
    steps: list[dict[str, dict[str, Any]]] = field(default_factory=list)
    invertible: bool = True
    _number: int = 0

    @property
    def changes(self) -> Changes:
        return Changes.model_validate({"variables": {"N": LAYERS}, "steps": self.steps})

    def add(self, kind: str, **fields: Any) -> None:
        self.steps.append({kind: fields})

    def fresh(self, indexes: dict[str, int]) -> str:
        """A template that no name fits yet; the placeholders in any order."""
        self._number += 1
        keys = list(indexes)
        self.dice.shuffle(keys)
        return ".".join([f"n{self._number}", *(f"{{{key}{self.dice.choice(['', '', '+3'])}}}" for key in keys), "w"])

    def put(self, old: Family, new: Family, make: Callable[[np.ndarray, dict[str, int]], np.ndarray]) -> Family:
        """Make each of a new family of the one of an old that has the same numbers, and perhaps more."""
        for name, values in new.names():
            prefix = next(each for each in sorted(new.prefixes, key=len, reverse=True) if name.startswith(each))
            of = self.tensors[prefix + named(old.template, values)][1]
            self.tensors[name] = new.dtype, make(of, values)
        made = next(self.tensors[name][1] for name, _ in new.names())
        return replace(new, shape=made.shape, untouched=False)

    def swap(self, old: Family, *new: Family) -> None:
        """New families in place of an old one."""
        kept = {name for each in new for name, _ in each.names()}
        for name, _ in old.names():
            if name not in kept:
                del self.tensors[name]
        self.families.remove(old)
        self.families.extend(new)


def random_chain(seed: int, length: int = 8, *, lossy: bool = False) -> tuple[Tensors, Chain]:
    """A model, and a chain of random steps on it."""
    dice = Random(seed)
    families = _model(dice)
    generator = np.random.default_rng(seed)
    tensors: Tensors = {}
    for family in families:
        for name, _ in family.names():
            tensors[name] = "Float32", generator.integers(0, 2**32, family.shape, np.uint32)
    chain = Chain(dice, tensors, families)
    source = _with_first_steps(chain, generator, lossy=lossy)
    kinds = [_rename, _split, _join, _transpose, _stack, _unstack, _merge, _divide, _repeat]
    if lossy:
        kinds += [_slice, _pad, _zeros]
    while len(chain.steps) < length:
        dice.choice(kinds)(chain)
    return source, chain


def _model(dice: Random) -> list[Family]:
    def family(template: str, shape: tuple[int, ...], **indexes: int) -> Family:
        return Family(template, indexes, "Float32", shape, dice.choice([("",), ("", *_MOMENTS)]), untouched=True)

    rows = dice.choice([4, 12])
    return [
        family("l.{L}.q", (rows, 6), L=LAYERS),
        family("l.{L}.k", (rows, 6), L=LAYERS),
        family("l.{L}.norm", (6,), L=LAYERS),
        family("l.{L}.e.{e}.g", (4, 6), L=2, e=3),
        family("l.{L}.e.{e}.u", (4, 6), L=2, e=3),
        family("big", (12, 2, 6)),
        family("empty.{L}", (0, 6), L=2),
        family("scalar", ()),
    ]


def _with_first_steps(chain: Chain, generator: np.random.Generator, *, lossy: bool) -> Tensors:
    """The source's tensors: with copies to be dropped, and with scaled weights, which come before other steps."""
    source = dict(chain.tensors)
    if chain.dice.random() < 0.5:
        big = next(each for each in chain.families if each.template == "big")
        for prefix, number in product(big.prefixes, range(2)):
            source[f"{prefix}copy.{number}.big"] = chain.tensors[f"{prefix}big"]
        chain.add("drop", parameters="copy.{i}.big", copy_of="big", count=2)
    if lossy and chain.dice.random() < 0.5:
        chain.invertible = False
        shape = (12, 16)
        for layer in range(2):
            weight = generator.integers(0, 256, shape, np.uint8)
            weight[weight & 0x7F == 0x7F] = 0
            scale = generator.uniform(1e-3, 2, [-(-size // side) for size, side in zip(shape, _BLOCK, strict=True)])
            scale = scale.astype(np.float32)
            factors = np.repeat(np.repeat(scale, _BLOCK[0], 0), _BLOCK[1], 1)[: shape[0], : shape[1]]
            made = (weight.view(ml_dtypes.float8_e4m3fn).astype(np.float32) * factors).astype(ml_dtypes.bfloat16)
            source[f"f8.{layer}.w"] = "F8_E4M3", weight
            source[f"f8.{layer}.w_scale"] = "Float32", scale.view(np.uint32)
            chain.tensors[f"f8.{layer}.w"] = "BFloat16", made.view(np.uint16)
        chain.add("dequantize", parameters="{x:*}.w", scale="{x}.w_scale", block=list(_BLOCK))
        chain.families.append(Family("f8.{L}.w", {"L": 2}, "BFloat16", shape, ("",)))
    return source


def _any(chain: Chain, fits: Callable[[Family], object]) -> Family | None:
    fitting = [each for each in chain.families if fits(each)]
    return chain.dice.choice(fitting) if fitting else None


def _rename(chain: Chain) -> None:
    old = chain.dice.choice(chain.families)
    new = replace(old, template=chain.fresh(old.indexes))
    chain.add("rename", parameters=old.template, to=new.template)
    chain.swap(old, chain.put(old, new, lambda array, _: array))


def _transpose(chain: Chain) -> None:
    family = chain.dice.choice(chain.families)
    axes = list(range(len(family.shape)))
    chain.dice.shuffle(axes)
    chain.add("transpose", parameters=family.template, axes=axes)
    chain.swap(family, chain.put(family, family, lambda array, _: array.transpose(axes)))


def _split(chain: Chain) -> None:
    family = _any(chain, lambda each: each.shape)
    if family is None:
        return
    axis = chain.dice.randrange(len(family.shape))
    shares = chain.dice.choice([(1, 1), (2, 1), (1, 1, 1), (3, 1)])
    groups = chain.dice.choice([1, 2, 3])
    if family.shape[axis] % (sum(shares) * groups):
        return
    parts = [replace(family, template=chain.fresh(family.indexes)) for _ in shares]
    chain.add(
        "split",
        parameters=family.template,
        into=[each.template for each in parts],
        axis=axis,
        parts=shares,
        groups=groups,
    )
    made = []
    for number, part in enumerate(parts):
        made.append(
            chain.put(family, part, lambda array, _, at=number: split_array(array, axis, shares, groups)[at])  # type: ignore[misc]
        )
    chain.swap(family, *made)


def _join(chain: Chain) -> None:
    one = _any(chain, lambda each: each.shape)
    if one is None:
        return
    axis = chain.dice.randrange(len(one.shape))

    def fits(other: Family) -> bool:
        alike = (other.indexes, other.dtype, other.prefixes) == (one.indexes, one.dtype, one.prefixes)
        others = [(*each.shape[:axis], *each.shape[axis + 1 :]) for each in (one, other)]
        return other is not one and alike and len(one.shape) == len(other.shape) and others[0] == others[1]

    other = _any(chain, fits)
    if other is None:
        return
    lengths = [one.shape[axis], other.shape[axis]]
    groups = chain.dice.choice([each for each in (1, 2, 3) if not any(length % each for length in lengths)])
    into = replace(one, template=chain.fresh(one.indexes))
    # without them the inverse would make equal parts
    parts = {"parts": lengths} if all(lengths) else {}
    chain.add("join", parameters=[one.template, other.template], into=into.template, axis=axis, groups=groups, **parts)
    if not all(lengths) and lengths[0] != lengths[1]:
        chain.invertible = False
    for name, values in into.names():
        prefix = next(each for each in sorted(into.prefixes, key=len, reverse=True) if name.startswith(each))
        arrays = [chain.tensors[prefix + named(each.template, values)][1] for each in (one, other)]
        chain.tensors[name] = one.dtype, join_arrays(arrays, axis, groups)
    into = replace(into, shape=chain.tensors[name][1].shape, untouched=False)
    chain.swap(one, into)
    chain.swap(other)


def _stack(chain: Chain) -> None:
    family = _any(chain, lambda each: each.indexes)
    if family is None:
        return
    index = chain.dice.choice(list(family.indexes))
    count = family.indexes[index]
    indexes = {key: value for key, value in family.indexes.items() if key != index}
    into = replace(family, template=chain.fresh(indexes), indexes=indexes)
    chain.add("stack", parameters=family.template, into=into.template, count="N" if count == LAYERS else count)
    for name, values in into.names():
        prefix = next(each for each in sorted(into.prefixes, key=len, reverse=True) if name.startswith(each))
        members = [named(family.template, {**values, index: number}) for number in range(count)]
        chain.tensors[name] = family.dtype, np.stack([chain.tensors[prefix + each][1] for each in members])
    chain.swap(family, replace(into, shape=(count, *family.shape), untouched=False))


def _unstack(chain: Chain) -> None:
    family = _any(chain, lambda each: each.shape and 0 < each.shape[0] <= 12 and len(each.indexes) < 2)
    if family is None:
        return
    indexes = {**family.indexes, f"x{len(chain.steps)}": family.shape[0]}
    into = replace(family, template=chain.fresh(indexes), indexes=indexes)
    index = list(indexes)[-1]
    chain.add("unstack", parameters=family.template, into=into.template, count=family.shape[0])
    chain.swap(family, chain.put(family, into, lambda array, values: array[values[index]]))


def _merge(chain: Chain) -> None:
    family = _any(chain, lambda each: len(each.shape) > 1 and each.shape[0])
    if family is None:
        return
    chain.add("merge", parameters=family.template, count=family.shape[0])
    rows = prod(family.shape[:2])
    chain.swap(family, chain.put(family, family, lambda array, _: array.reshape(rows, *array.shape[2:])))


def _divide(chain: Chain) -> None:
    family = _any(chain, lambda each: each.shape and len(each.shape) < 4)
    if family is None:
        return
    count = chain.dice.choice([1, 2, 3, 4])
    if family.shape[0] % count:
        return
    chain.add("divide", parameters=family.template, count=count)
    rows = family.shape[0] // count
    chain.swap(family, chain.put(family, family, lambda array, _: array.reshape(count, rows, *array.shape[1:])))


def _repeat(chain: Chain) -> None:
    family = _any(chain, lambda each: each.untouched and len(each.indexes) < 2)
    if family is None:
        return
    indexes = {**family.indexes, f"x{len(chain.steps)}": 2}
    into = replace(family, template=chain.fresh(indexes), indexes=indexes)
    chain.add("repeat", parameters=family.template, to=into.template, count=2)
    chain.families.append(chain.put(family, into, lambda array, _: array))
    # the inverse drops copies, which are compared as its source has them: only if nothing changed them
    chain.invertible = False


def _slice(chain: Chain) -> None:
    family = _any(chain, lambda each: any(each.shape))
    if family is None:
        return
    axis = chain.dice.choice([axis for axis, length in enumerate(family.shape) if length])
    start = chain.dice.randrange(family.shape[axis])
    stop = chain.dice.randrange(start, family.shape[axis]) + 1
    chain.invertible = False
    chain.add("slice", parameters=family.template, axis=axis, start=start, stop=stop)
    index = (slice(None),) * axis + (slice(start, stop),)
    chain.swap(family, chain.put(family, family, lambda array, _: array[index]))


def _pad(chain: Chain) -> None:
    family = _any(chain, lambda each: any(each.shape))
    if family is None:
        return
    axis = chain.dice.choice([axis for axis, length in enumerate(family.shape) if length])
    length = family.shape[axis] + chain.dice.choice([1, 3])
    chain.invertible = False
    chain.add("pad", parameters=family.template, axis=axis, length=length)
    index = np.minimum(np.arange(length), family.shape[axis] - 1)
    chain.swap(family, chain.put(family, family, lambda array, _: array.take(index, axis)))


def _zeros(chain: Chain) -> None:
    family = _any(chain, lambda each: any(each.shape) and each.dtype == "Float32")
    if family is None:
        return
    axis = chain.dice.choice([axis for axis, length in enumerate(family.shape) if length])
    length = chain.dice.choice([0, 1, 5, family.shape[axis] + 1])
    into = replace(family, template=chain.fresh(family.indexes))
    chain.invertible = False
    chain.add("zeros", parameters=family.template, to=into.template, axis=axis, length=length)
    shape = tuple(length or own if at == axis else own for at, own in enumerate(family.shape))
    chain.families.append(chain.put(family, into, lambda array, _: np.zeros(shape, array.dtype)))
