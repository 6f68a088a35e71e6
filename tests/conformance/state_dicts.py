"""Random state dicts that torch.save writes, converted by reshard.

A case is made from its seed: tensors of any dtype and shape, many of them views of longer memory or of each other, in
one file, perhaps below keys of a training, or in several with an index, by hand or by the hub's own function.
Converted, they have to be what torch has, byte by byte.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.conformance.mindspore_process import StateDictJudge
from tests.conformance.seeded import check_seeds
from tests.conformance.whole_models import problems_of, unlike_whole
from tests.support.checkpoints import Contents

CASES = 20
_LENGTHS = (0, 1, 2, 3, 5, 8, 13)
DTYPES = {
    "float32": "Float32",
    "float64": "Float64",
    "float16": "Float16",
    "bfloat16": "BFloat16",
    "int8": "Int8",
    "int16": "Int16",
    "int32": "Int32",
    "int64": "Int64",
    "uint8": "UInt8",
    "uint16": "UInt16",
    "uint32": "UInt32",
    "uint64": "UInt64",
    "bool": "Bool",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e8m0fnu": "F8_E8M0",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
}
"""torch's name of a dtype -> reshard's."""
_FORMS = ("", "", "transposed", "cut", "stepped", "expanded", "parameter")


@dataclass(frozen=True)
class StateDictCase:
    """Tensors and files, as `state_dict_judge` knows them."""

    seed: int
    tensors: list[dict[str, Any]]
    files: dict[str, Any]

    @property
    def options(self) -> dict[str, str]:
        """Options of its conversion."""
        return {"root": self.files["root"]} if self.files.get("root") else {}


def build_case(seed: int) -> StateDictCase:
    """Return the case of a seed."""
    draw = random.Random(f"state dict {seed}")
    tensors: list[dict[str, Any]] = []
    for number in range(draw.randint(3, 10)):
        name = f"layers.{number}.{draw.choice(('weight', 'bias', 'größe'))}"
        if tensors and draw.random() < 0.15:
            tensors.append({"name": name, "tied": draw.choice(tensors)["name"]})
        else:
            shape = [draw.choice(_LENGTHS) for _ in range(draw.choice((0, 1, 1, 2, 2, 2, 3, 4)))]
            how = {"dtype": draw.choice(list(DTYPES)), "shape": shape, "form": draw.choice(_FORMS)}
            tensors.append({"name": name, "seed": draw.randrange(2**31), **how})
    return StateDictCase(seed, tensors, _files(draw))


def _files(draw: random.Random) -> dict[str, Any]:
    way = draw.choice(("one", "one", "numbered", "hub"))
    if way == "one":
        named: dict[str, Any] = {"name": draw.choice(("pytorch_model.bin", "weights.pt", "weights.pth", "model.bin"))}
        named["root"] = draw.choice(("", "", "model", "module.model"))
    else:
        named = {"count": draw.choice((1, 2, 3))}
    return {"way": way, "protocol": draw.choice((2, 2, 4, 5)), **named}


def check_state_dicts(first: int, directory: Path) -> list[str]:
    """Return the problems of the cases from seed `first` on."""
    directory.mkdir()
    with StateDictJudge(directory / "state_dicts.log") as judge:
        seeds = range(first, first + CASES)
        return check_seeds(seeds, directory, lambda seed, place: check_case(build_case(seed), judge, place))


def check_case(case: StateDictCase, judge: StateDictJudge, directory: Path) -> Iterator[str]:
    """Yield what is not as torch has it."""
    return problems_of(case, _differences(case, judge, directory))


def _differences(case: StateDictCase, judge: StateDictJudge, directory: Path) -> Iterator[str]:
    source, want = save_case(case, judge, directory)
    yield from unlike_whole(source, directory / "whole", want, **case.options)


def save_case(case: StateDictCase, judge: StateDictJudge, directory: Path) -> tuple[Path, Contents]:
    """Have torch save a case; return the source that it is, and its tensors as torch has them."""
    directory.mkdir(parents=True)
    source = directory / "source"
    answer = judge.ask("save", directory=str(source), tensors=case.tensors, files=case.files)
    want: Contents = {
        name: (DTYPES[dtype], tuple(shape), bytes.fromhex(data)) for name, (dtype, shape, data) in answer.items()
    }
    return source / case.files.get("name", ""), want
