"""Cases of the functions that convert checkpoints, merge strategies, and tell which ranks are needed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from tests.conformance.api_harness import ApiCase, Call, Found, function
from tests.conformance.cases import Case, Side, rank_contents
from tests.conformance.random_cases import build_case
from tests.support.checkpoints import Contents
from tests.support.ckpt_writer import blob, checkpoint_bytes, number
from tests.support.strategy_writer import FileLayout, write_strategy_file

Files = Callable[[Path], object]


# files


def _ckpt(path: Path, contents: Contents) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(checkpoint_bytes(*((name, *entry) for name, entry in contents.items())))


def _safetensors(path: Path, contents: Contents) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = {
        name: np.frombuffer(content, dtype.lower()).reshape(shape) for name, (dtype, shape, content) in contents.items()
    }
    save_file(arrays, path, {"format": "ms"})


def _given(case: Case, kind: str = "ckpt", model: str = "src") -> Files:
    """The source `src/`, and the merged strategies `src.ckpt` and `dst.ckpt`, of a random conversion."""

    def make(directory: Path) -> None:
        write = _ckpt if kind == "ckpt" else _safetensors
        for rank, contents in rank_contents(case, case.source, case.uncut_in_source).items():
            write(directory / model / f"rank_{rank}" / f"net{rank}.{kind}", contents)
        for name, side in (("src", case.source), ("dst", case.target)):
            if side:
                write_strategy_file(directory / f"{name}.ckpt", _merged(case, side))

    return make


def _merged(case: Case, side: Side) -> dict[int, dict[str, FileLayout]]:
    return {
        stage: {f"{stage}-{name}": cut.for_file(case.model[name][1]) for name, cut in cuts.items()}
        for stage, cuts in enumerate(side.stages)
    }


def _all(*makers: Files) -> Files:
    def make(directory: Path) -> None:
        for maker in makers:
            maker(directory)

    return make


_ROWS = FileLayout((2,), ((0,), ()), nested=False, optimizer_step=0, optimizer_size=0, tensor_shape=(4, 3))
_COLUMNS = replace(_ROWS, tensor_map=((), (0,)), tensor_shape=(4, 2))
_WHOLE_OF_TWO = replace(_ROWS, tensor_map=((), ()))


def _strategy(name: str, layouts: dict[str, FileLayout], stage: int = 0) -> Files:
    return lambda directory: write_strategy_file(directory / name, {stage: layouts})


def _tensor(shape: tuple[int, ...], start: int = 0) -> tuple[str, tuple[int, ...], bytes]:
    count = int(np.prod(shape))
    return "Float32", shape, np.arange(start, start + count, dtype=np.float32).tobytes()


def _rank(rank: int, contents: Contents, kind: str = "ckpt", name: str = "net", top: str = "src") -> Files:
    write = _ckpt if kind == "ckpt" else _safetensors
    return lambda directory: write(directory / top / f"rank_{rank}" / f"{name}.{kind}", contents)


def _file(name: str, content: bytes) -> Files:
    def make(directory: Path) -> None:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(content)

    return make


def _two_ranks(kind: str = "ckpt", **more: tuple[str, tuple[int, ...], bytes]) -> Files:
    """`w` of 4 x 2, its rows on two ranks, `step` beside it; `rows.ckpt` and `columns.ckpt` say so."""
    return _all(
        *(_rank(rank, {"w": _tensor((2, 2), 4 * rank), "step": _tensor((1,), 7)} | more, kind) for rank in range(2)),
        _strategy("rows.ckpt", {"w": _ROWS} | dict.fromkeys(more, _ROWS)),
        _strategy("columns.ckpt", {"w": _COLUMNS}),
    )


# transform_checkpoints, rank_list_for_transform and transform_checkpoint_by_rank on random conversions

_CONVERTIBLE = (4, 8, 11, 13, 51, 60, 61, 70, 96, 99, 111, 117, 119, 123, 138, 150, 175)
"""Seeds of conversions that MindSpore makes as well."""
_UNIFIABLE = (8, 13, 51, 60, 99, 117)


@dataclass(frozen=True)
class _Random:
    seed: int
    case: Case

    @property
    def target_ranks(self) -> range:
        target = self.case.target
        return range(len(target.stages) * target.devices if target else 1)

    @property
    def source_ranks(self) -> range:
        source = self.case.source
        return range(len(source.stages) * source.devices if source else 1)

    @property
    def strategies(self) -> tuple[str | None, str | None]:
        return ("src.ckpt" if self.case.source else None, "dst.ckpt" if self.case.target else None)

    def api_cases(self) -> Sequence[ApiCase]:
        files = _given(self.case)
        src, dst = self.strategies
        lists = [Call("rank_list_for_transform", (rank, src, dst)) for rank in self.target_ranks]
        everything = {rank: f"src/rank_{rank}/net{rank}.ckpt" for rank in reversed(self.source_ranks)}
        by_rank = [
            Call("transform_checkpoint_by_rank", (rank, everything, f"out_{rank}.ckpt", src, dst))
            for rank in self.target_ranks
        ]
        return (
            ApiCase(
                f"transform_checkpoints: random {self.seed}, {self.case.describe()}",
                [Call("transform_checkpoints", ("src", "out", "net_", src, dst))],
                files,
            ),
            ApiCase(f"rank_list_for_transform: random {self.seed}", lists, files, agrees=_is_descending_subset),
            ApiCase(f"transform_checkpoint_by_rank: random {self.seed}", by_rank, files),
        )


def _is_descending_subset(ours: Any, theirs: Any) -> bool:
    return set(ours) <= set(theirs) and ours == sorted(ours, reverse=True) and bool(ours)


def _random_cases() -> list[ApiCase]:
    return [case for seed in _CONVERTIBLE for case in _Random(seed, build_case(seed)).api_cases()]


# chosen conversions

_TRANSFORM = Call("transform_checkpoints", ("src", "out", "net_", "rows.ckpt", "columns.ckpt"))


def _transform(*arguments: object, **keywords: object) -> list[Call]:
    return [Call("transform_checkpoints", arguments, keywords)]


def _subnetwork(kind: str) -> Files:
    return _all(
        *(_rank(rank, {"w": _tensor((2, 2), 4 * rank), "adam_m.w": _tensor((2, 2), rank)}, kind) for rank in range(2)),
        _strategy("one.ckpt", {"w": _ROWS, "adam_m.w": _ROWS}),
        _strategy("both.ckpt", {"w": _COLUMNS, "b": _COLUMNS, "adam_m.w": _COLUMNS}),
    )


def _experts(kind: str = "ckpt") -> Files:
    """Two of eight experts on each of four ranks, all alike, and a parameter that is not cut."""
    experts = replace(_ROWS, device_matrix=(4,), tensor_map=((0,), (), ()), tensor_shape=(8, 4, 2))
    whole = replace(_ROWS, device_matrix=(4,), tensor_map=((), ()))
    contents = {"experts": _tensor((2, 4, 2)), "attention": _tensor((4, 3))}
    return _all(
        *(_rank(rank, contents, kind) for rank in range(4)),
        _strategy("4.ckpt", {"experts": experts, "attention": whole}),
        _strategy(
            "2.ckpt",
            {"experts": replace(experts, device_matrix=(2,)), "attention": replace(whole, device_matrix=(2,))},
        ),
    )


def _two_stages() -> Files:
    """`a` on the ranks of stage 0, `b` on those of stage 1; a strategy for each."""
    return _all(
        *(_rank(rank, {"ab"[rank // 2]: _tensor((2, 2), 4 * rank)}) for rank in range(4)),
        *(_strategy(f"own{stage}.ckpt", {name: _ROWS}, stage) for stage, name in enumerate("ab")),
    )


_TRANSFORMS = [
    ApiCase("transform_checkpoints: rows to columns", [_TRANSFORM], _two_ranks()),
    ApiCase("transform_checkpoints: to the whole", _transform("src", "out", "net_", "rows.ckpt"), _two_ranks()),
    ApiCase(
        "transform_checkpoints: from the whole",
        _transform("src", "out", "net_", None, "columns.ckpt"),
        _all(_rank(0, {"w": _tensor((4, 2))}), _two_ranks()),
        differs="several ranks without a source strategy may be slices",
        ours="ValueError",
    ),
    ApiCase(
        "transform_checkpoints: from one rank",
        _transform("src", "out", "net_", dst_strategy_file="columns.ckpt"),
        _all(_rank(0, {"w": _tensor((4, 2))}), _strategy("columns.ckpt", {"w": _COLUMNS})),
    ),
    ApiCase(
        "transform_checkpoints: .safetensors to .ckpt",
        _transform("src", "out", "net_", "rows.ckpt", None),
        _two_ranks("safetensors"),
    ),
    ApiCase(
        "transform_checkpoints: .safetensors to .safetensors",
        _transform("src", "out", "net_", "rows.ckpt", None, output_format="safetensors"),
        _two_ranks("safetensors"),
    ),
    ApiCase(
        "transform_checkpoints: .ckpt to .safetensors",
        _transform("src", "out", "net_", "rows.ckpt", output_format="safetensors"),
        _two_ranks(),
        differs="the format may be changed",
    ),
    ApiCase(
        "transform_checkpoints: unknown output_format",
        _transform("src", "out", "net_", "rows.ckpt", output_format="npz"),
        _two_ranks("safetensors"),
    ),
    ApiCase(
        "transform_checkpoints: files that are there stay, or are replaced",
        [_TRANSFORM],
        _all(
            _two_ranks(),
            _file("out/README", b"mine"),
            _file("out/rank_0/net_0.ckpt", b"old"),
            _file("out/rank_1/other.ckpt", b"other"),
            _file("out/rank_7/net_7.ckpt", b"of another"),
        ),
    ),
    ApiCase(
        "transform_checkpoints: subnetwork",
        _transform("src", "out", "net_", "one.ckpt", "both.ckpt"),
        _subnetwork("ckpt"),
    ),
    ApiCase(
        "transform_checkpoints: subnetwork of .safetensors",
        _transform("src", "out", "net_", "one.ckpt", "both.ckpt"),
        _subnetwork("safetensors"),
        differs="MindSpore names the parts like the whole",
    ),
    ApiCase(
        "transform_checkpoints: of several steps the last by name",
        [_TRANSFORM],
        _all(
            _strategy("rows.ckpt", {"w": _ROWS}),
            _strategy("columns.ckpt", {"w": _COLUMNS}),
            *(
                _rank(rank, {"w": _tensor((2, 2), 100 * rank + epoch)}, name=f"net-{epoch}_5")
                for rank in (0, 1)
                for epoch in (9, 10)
            ),
        ),
    ),
    ApiCase(
        "transform_checkpoints: a file without a step among others",
        [_TRANSFORM],
        _all(_two_ranks(), *(_rank(rank, {"w": _tensor((2, 2), 100)}, name="net-9_5") for rank in (0, 1))),
    ),
    ApiCase(
        "transform_checkpoints: parameters without a place",
        [_TRANSFORM],
        _two_ranks(adam_m=_tensor((2, 2), 50)),
        differs="MindSpore writes one rank's slice under the whole's name",
    ),
    ApiCase(
        "transform_checkpoints: a rank is missing",
        [_TRANSFORM],
        _all(
            _rank(0, {"w": _tensor((2, 2))}),
            _strategy("rows.ckpt", {"w": _ROWS}),
            _strategy("columns.ckpt", {"w": _COLUMNS}),
        ),
    ),
    ApiCase(
        "transform_checkpoints: of several prefixes the last by name",
        [_TRANSFORM],
        _all(_two_ranks(), *(_rank(rank, {"w": _tensor((2, 2), 100 * rank)}, name="zet-1_1") for rank in (0, 1))),
    ),
    ApiCase(
        "transform_checkpoints: of several .safetensors files the highest numbers",
        _transform("src", "out", "net_", "rows.ckpt", "columns.ckpt", output_format="safetensors"),
        _all(
            _strategy("rows.ckpt", {"w": _ROWS}),
            _strategy("columns.ckpt", {"w": _COLUMNS}),
            *(
                _rank(rank, {"w": _tensor((2, 2), 100 * rank + epoch)}, "safetensors", f"net-{epoch}_5")
                for rank in (0, 1)
                for epoch in (9, 10)
            ),
        ),
    ),
    ApiCase(
        "transform_checkpoints: steps that not all ranks have",
        [_TRANSFORM],
        _all(
            _strategy("rows.ckpt", {"w": _ROWS}),
            _strategy("columns.ckpt", {"w": _COLUMNS}),
            *(_rank(rank, {"w": _tensor((2, 2), 100 * rank)}, name="net-1_1") for rank in (0, 1)),
            _rank(0, {"w": _tensor((2, 2), 500)}, name="net-2_1"),
        ),
        differs="MindSpore mixes steps",
    ),
    ApiCase(
        "transform_checkpoints: folders with zeros in front",
        [_TRANSFORM],
        lambda at: (_two_ranks()(at), *((at / f"src/rank_{rank}").rename(at / f"src/rank_0{rank}") for rank in (0, 1))),
    ),
    ApiCase(
        "transform_checkpoints: a rank that is not needed is missing",
        _transform("src", "out", "net_", "repeated.ckpt"),
        _all(_two_ranks(), _strategy("repeated.ckpt", {"w": replace(_ROWS, device_matrix=(2, 2))})),
    ),
    ApiCase(
        "transform_checkpoints: moments from weights alone",
        [_TRANSFORM],
        _all(
            _two_ranks(),
            _strategy("rows.ckpt", {"w": _ROWS, "adam_m.w": _ROWS}),
            _strategy("columns.ckpt", {"w": _COLUMNS, "adam_m.w": _COLUMNS, "adam_v.w": _COLUMNS}),
        ),
    ),
    ApiCase(
        "transform_checkpoints: nothing in common",
        [_TRANSFORM],
        _all(_two_ranks(), _strategy("rows.ckpt", {"v": _ROWS}), _strategy("columns.ckpt", {"v": _COLUMNS})),
    ),
    ApiCase("transform_checkpoints: equal experts", _transform("src", "out", "net_", "4.ckpt", "2.ckpt"), _experts()),
    ApiCase(
        "transform_checkpoints: ranks that were saved whole",
        _transform("src", "out", "net_", "rows.ckpt"),
        _all(_strategy("rows.ckpt", {"w": _ROWS}), *(_rank(rank, {"w": _tensor((4, 2))}) for rank in (0, 1))),
    ),
    ApiCase(
        "transform_checkpoints: ranks that were saved whole, by a strategy's shapes",
        _transform("src", "out", "net_", "rows.json"),
        _all(
            _strategy("rows.json", {"w": replace(_ROWS, tensor_shape=(4, 2))}),
            *(_rank(rank, {"w": _tensor((4, 2))}) for rank in (0, 1)),
        ),
        differs="shapes that are known count",
    ),
    ApiCase(
        "transform_checkpoints: the first stage's own strategy",
        _transform("src", "out", "net_", "own0.ckpt"),
        _two_stages(),
        differs="MindSpore writes half a model",
        ours="ValueError",
    ),
    ApiCase(
        "transform_checkpoints: a later stage's own strategy",
        _transform("src", "out", "net_", "own1.ckpt"),
        _two_stages(),
    ),
    ApiCase("transform_checkpoints: no source", _transform("nowhere", "out", "net_")),
    ApiCase("transform_checkpoints: source is a file", _transform("src", "out", "net_"), _file("src", b"")),
    ApiCase(
        "transform_checkpoints: an empty source", _transform("src", "out", "net_"), lambda at: (at / "src").mkdir()
    ),
    ApiCase(
        "transform_checkpoints: both kinds",
        _transform("src", "out", "net_", "rows.ckpt"),
        _all(_two_ranks(), _two_ranks("safetensors")),
    ),
    ApiCase(
        "transform_checkpoints: destination is a file",
        _transform("src", "out", "net_", "rows.ckpt"),
        _all(_two_ranks(), _file("out", b"")),
    ),
    ApiCase("transform_checkpoints: destination is no string", _transform("src", 5, "net_", "rows.ckpt"), _two_ranks()),
    ApiCase("transform_checkpoints: destination is blank", _transform("src", " ", "net_", "rows.ckpt"), _two_ranks()),
    ApiCase("transform_checkpoints: prefix is no string", _transform("src", "out", 5, "rows.ckpt"), _two_ranks()),
    ApiCase("transform_checkpoints: prefix is blank", _transform("src", "out", " ", "rows.ckpt"), _two_ranks()),
    ApiCase(
        "transform_checkpoints: prefix leads elsewhere", _transform("src", "out", "../net", "rows.ckpt"), _two_ranks()
    ),
    ApiCase("transform_checkpoints: no such strategy", _transform("src", "out", "net_", "no.ckpt"), _two_ranks()),
    ApiCase(
        "transform_checkpoints: no such target strategy",
        _transform("src", "out", "net_", "rows.ckpt", "no.ckpt"),
        _two_ranks(),
    ),
    ApiCase(
        "transform_checkpoints: no such directory of a strategy",
        _transform("src", "out", "net_", "no/rows.ckpt"),
        _two_ranks(),
    ),
    ApiCase("transform_checkpoints: strategy is no string", _transform("src", "out", "net_", 5), _two_ranks()),
    ApiCase("transform_checkpoints: strategy is a directory", _transform("src", "out", "net_", "src"), _two_ranks()),
    ApiCase(
        "transform_checkpoints: strategy is empty",
        _transform("src", "out", "net_", "e.ckpt"),
        _all(_two_ranks(), _file("e.ckpt", b"")),
    ),
    ApiCase(
        "transform_checkpoints: strategy is damaged",
        _transform("src", "out", "net_", "bad.ckpt"),
        _all(_two_ranks(), _file("bad.ckpt", b"\xff\xff\xff")),
        differs="documented as a ValueError",
        ours="ValueError",
    ),
    ApiCase(
        "transform_checkpoints: device numbers that do not divide",
        _transform("src", "out", "net_", "rows.ckpt", "three.ckpt"),
        _all(
            *(_rank(rank, {"w": _tensor((3, 2), 6 * rank)}) for rank in range(2)),
            _strategy("rows.ckpt", {"w": _ROWS}),
            _strategy("three.ckpt", {"w": replace(_ROWS, device_matrix=(3,))}),
        ),
        differs="any number of devices becomes any other",
    ),
    ApiCase(
        "convert_checkpoints: rows to columns", [replace(_TRANSFORM, function="convert_checkpoints")], _two_ranks()
    ),
]

_FILES = {1: "src/rank_1/net.ckpt", 0: "src/rank_0/net.ckpt"}


def _by_rank(*arguments: object, **keywords: object) -> list[Call]:
    return [Call("transform_checkpoint_by_rank", arguments, keywords)]


_BY_RANK = [
    ApiCase(
        "transform_checkpoint_by_rank: into no directory",
        _by_rank(1, _FILES, "a/b/out.ckpt", "rows.ckpt", "columns.ckpt"),
        _two_ranks(),
        differs="directories on the way are made",
    ),
    ApiCase(
        "transform_checkpoint_by_rank: columns",
        _by_rank(1, _FILES, "out.ckpt", "rows.ckpt", "columns.ckpt"),
        _two_ranks(),
    ),
    ApiCase(
        "transform_checkpoint_by_rank: the whole for another rank",
        _by_rank(1, _FILES, "out.ckpt", "rows.ckpt"),
        _two_ranks(),
    ),
    ApiCase(
        "transform_checkpoint_by_rank: equal experts",
        _by_rank(1, {rank: f"src/rank_{rank}/net.ckpt" for rank in range(4)}, "out.ckpt", "4.ckpt", "2.ckpt"),
        _experts(),
    ),
    ApiCase(
        "transform_checkpoint_by_rank: moments from weights alone",
        _by_rank(1, _FILES, "out.ckpt", "rows.ckpt", "both.ckpt"),
        _all(_two_ranks(), _strategy("both.ckpt", {"w": _COLUMNS, "adam_m.w": _COLUMNS})),
    ),
    ApiCase("transform_checkpoint_by_rank: the whole", _by_rank(0, _FILES, "out.ckpt", "rows.ckpt"), _two_ranks()),
    ApiCase(
        "transform_checkpoint_by_rank: from the whole",
        _by_rank(1, {0: "src/rank_0/net.ckpt"}, "out.ckpt", None, "columns.ckpt"),
        _all(_rank(0, {"w": _tensor((4, 2))}), _strategy("columns.ckpt", {"w": _COLUMNS})),
    ),
    ApiCase(
        "transform_checkpoint_by_rank: a file is replaced",
        _by_rank(0, _FILES, "out.ckpt", "rows.ckpt"),
        _all(_two_ranks(), _file("out.ckpt", b"old")),
    ),
    ApiCase(
        "transform_checkpoint_by_rank: a rank is missing",
        _by_rank(0, {0: "src/rank_0/net.ckpt"}, "out.ckpt", "rows.ckpt", "columns.ckpt"),
        _two_ranks(),
    ),
    ApiCase("transform_checkpoint_by_rank: map is no dict", _by_rank(0, [1], "out.ckpt", "rows.ckpt"), _two_ranks()),
    ApiCase(
        "transform_checkpoint_by_rank: rank is no int", _by_rank("0", _FILES, "out.ckpt", "rows.ckpt"), _two_ranks()
    ),
    ApiCase("transform_checkpoint_by_rank: name is no string", _by_rank(0, _FILES, 5, "rows.ckpt"), _two_ranks()),
    ApiCase(
        "transform_checkpoint_by_rank: name of another kind",
        _by_rank(0, _FILES, "out.safetensors", "rows.ckpt"),
        _two_ranks(),
    ),
    ApiCase(
        "transform_checkpoint_by_rank: no such file",
        _by_rank(0, {0: "no.ckpt", 1: "no.ckpt"}, "out.ckpt", "rows.ckpt"),
        _two_ranks(),
    ),
    ApiCase("transform_checkpoint_by_rank: no such strategy", _by_rank(0, _FILES, "out.ckpt", "no.ckpt"), _two_ranks()),
    ApiCase(
        "transform_checkpoint_by_rank: no such target strategy",
        _by_rank(0, _FILES, "out.ckpt", "rows.ckpt", "no/no.ckpt"),
        _two_ranks(),
    ),
    ApiCase("transform_checkpoint_by_rank: strategy is no string", _by_rank(0, _FILES, "out.ckpt", 5), _two_ranks()),
    ApiCase(
        "convert_checkpoint_by_rank: columns",
        [Call("convert_checkpoint_by_rank", (1, _FILES, "out.ckpt", "rows.ckpt", "columns.ckpt"))],
        _two_ranks(),
    ),
]


def _ranks(*arguments: object, name: str = "rank_list_for_transform") -> list[Call]:
    return [Call(name, arguments)]


_RANK_LISTS = [
    ApiCase("rank_list_for_transform: columns", _ranks(1, "rows.ckpt", "columns.ckpt"), _two_ranks()),
    ApiCase("rank_list_for_transform: the same", _ranks(1, "rows.ckpt", "rows.ckpt"), _two_ranks()),
    ApiCase("rank_list_for_transform: whole", _ranks(0, "rows.ckpt"), _two_ranks()),
    *(
        ApiCase(
            f"rank_list_for_transform: whole for rank {rank}",
            _ranks(rank, "repeated.ckpt"),
            _strategy("repeated.ckpt", {"w": replace(_ROWS, device_matrix=(2, 2))}),
            agrees=_is_descending_subset,
        )
        for rank in range(1, 4)
    ),
    ApiCase("rank_list_for_transform: from whole", _ranks(1, None, "columns.ckpt"), _two_ranks()),
    ApiCase("rank_list_for_transform: rank is no int", _ranks("1", "rows.ckpt"), _two_ranks()),
    ApiCase("rank_list_for_transform: no such strategy", _ranks(1, "no.ckpt"), _two_ranks()),
    ApiCase("rank_list_for_transform: no such target strategy", _ranks(1, "rows.ckpt", "no.ckpt"), _two_ranks()),
    ApiCase("rank_list_for_transform: strategy is no string", _ranks(1, 5), _two_ranks()),
    ApiCase("rank_list_for_transform: target strategy is no string", _ranks(1, "rows.ckpt", 5), _two_ranks()),
    ApiCase(
        "rank_list_for_convert: columns",
        _ranks(1, "rows.ckpt", "columns.ckpt", name="rank_list_for_convert"),
        _two_ranks(),
    ),
]


# unified_safetensors


def _unify(*arguments: object, **keywords: object) -> list[Call]:
    return [Call("unified_safetensors", arguments, keywords)]


def _named_twice(*names: str) -> Files:
    """Two ranks with files of several names each, whose contents differ."""
    return _all(
        *(
            _rank(rank, {"w": _tensor((2, 2), 100 * number + 4 * rank)}, "safetensors", name.format(rank))
            for number, name in enumerate(names)
            for rank in range(2)
        ),
        _strategy("rows.ckpt", {"w": _ROWS}),
    )


def _without_redundancy(kind: str) -> Files:
    """`w` of 4 x 2, its rows twice on four ranks, of which two kept what they had; and `v`, which the others kept."""
    contents: list[Contents] = [
        {"w": _tensor((2, 2)), "step": _tensor((1,), 7)},
        {"v": _tensor((2, 2), 54), "step": _tensor((1,), 7)},
        {"v": _tensor((2, 2), 50), "step": _tensor((1,), 7)},
        {"w": _tensor((2, 2), 4), "step": _tensor((1,), 7)},
    ]
    rows = replace(_ROWS, device_matrix=(2, 2))
    return _all(
        *(_rank(rank, held, kind) for rank, held in enumerate(contents)),
        _strategy("rows.ckpt", {"w": rows, "v": rows}),
    )


_BIASED = _two_ranks("safetensors", b=_tensor((2, 3), 50))
_UNIFIED = [
    ApiCase("unified_safetensors: equal experts", _unify("src", "4.ckpt", "out"), _experts("safetensors")),
    ApiCase(
        "unified_safetensors: folders with zeros in front",
        _unify("src", "rows.ckpt", "out"),
        lambda at: (
            _two_ranks("safetensors")(at),
            *((at / f"src/rank_{rank}").rename(at / f"src/rank_0{rank}") for rank in (0, 1)),
        ),
    ),
    ApiCase(
        "unified_safetensors: a rank that is not needed is missing",
        _unify("src", "repeated.ckpt", "out"),
        _all(_two_ranks("safetensors"), _strategy("repeated.ckpt", {"w": replace(_ROWS, device_matrix=(2, 2))})),
    ),
    ApiCase("unified_safetensors: rows", _unify("src", "rows.ckpt", "out"), _BIASED),
    ApiCase(
        "unified_safetensors: first of two shares", _unify("src", "rows.ckpt", "out", split_dst_file=(1, 2)), _BIASED
    ),
    ApiCase(
        "unified_safetensors: renamed",
        _unify("src", "rows.ckpt", "out", choice_func=function("lambda name: 'model.' + name")),
        _BIASED,
    ),
    ApiCase(
        "unified_safetensors: chosen",
        _unify("src", "rows.ckpt", "out", choice_func=function("lambda name: name != 'b'")),
        _BIASED,
        differs="MindSpore puts rank 0's slice of what was refused into hyper_param.safetensors",
    ),
    ApiCase(
        "unified_safetensors: all refused",
        _unify("src", "rows.ckpt", "out", choice_func=function("lambda name: False")),
        _two_ranks("safetensors"),
        differs="MindSpore writes slices before it fails",
        ours="ValueError",
    ),
    ApiCase(
        "unified_safetensors: choice is neither",
        _unify("src", "rows.ckpt", "out", choice_func=function("lambda name: 5")),
        _BIASED,
        differs="MindSpore writes files before it fails",
        ours="ValueError",
    ),
    ApiCase(
        "unified_safetensors: gradients",
        _unify("src", "rows.ckpt", "out"),
        _two_ranks("safetensors", **{"accu_grads.w": _tensor((2, 2), 70)}),
        differs="MindSpore puts rank 0's slices of gradients into hyper_param.safetensors",
    ),
    ApiCase(
        "unified_safetensors: redundancy removed",
        _unify("src", "rows.ckpt", "out", merge_with_redundancy=False),
        _without_redundancy("safetensors"),
    ),
    ApiCase(
        "unified_safetensors: redundancy removed, unsaid",
        _unify("src", "rows.ckpt", "out"),
        _without_redundancy("safetensors"),
        differs="who holds what is seen from the files",
    ),
    ApiCase(
        "transform_checkpoints: redundancy removed",
        _transform("src", "out", "net_", "rows.ckpt"),
        _without_redundancy("ckpt"),
        differs="MindSpore loses parameters",
    ),
    ApiCase(
        "unified_safetensors: suffix",
        _unify("src", "rows.ckpt", "out", file_suffix="1_5"),
        _named_twice("net-1_5", "net-2_5"),
    ),
    ApiCase(
        "unified_safetensors: suffix of a step",
        _unify("src", "rows.ckpt", "out", file_suffix="1_5"),
        _named_twice("net-1_5", "net-11_5"),
    ),
    ApiCase(
        "unified_safetensors: suffix of a task",
        _unify("src", "rows.ckpt", "out", file_suffix="1-3_5"),
        _named_twice("net_1-3_5", "net_11-3_5"),
    ),
    ApiCase("unified_safetensors: suffix of nobody", _unify("src", "rows.ckpt", "out", file_suffix="9_9"), _BIASED),
    ApiCase(
        "unified_safetensors: suffix of several",
        _unify("src", "rows.ckpt", "out", file_suffix="t"),
        _named_twice("net", "gent"),
    ),
    ApiCase(
        "unified_safetensors: the newest step", _unify("src", "rows.ckpt", "out"), _named_twice("net-9_5", "net-10_5")
    ),
    ApiCase(
        "unified_safetensors: files that are there stay, or are replaced",
        _unify("src", "rows.ckpt", "out"),
        _all(
            _BIASED,
            _file("out/README", b"mine"),
            _file("out/part0.safetensors", b"old"),
            _file("out/part7.safetensors", b"of another"),
        ),
    ),
    ApiCase(
        "unified_safetensors: a rank is missing",
        _unify("src", "rows.ckpt", "out"),
        _all(_rank(0, {"w": _tensor((2, 2))}, "safetensors"), _strategy("rows.ckpt", {"w": _ROWS})),
    ),
    ApiCase("unified_safetensors: source is a file", _unify("rows.ckpt", "rows.ckpt", "out"), _BIASED),
    ApiCase("unified_safetensors: no source", _unify("nowhere", "rows.ckpt", "out"), _BIASED),
    ApiCase("unified_safetensors: .ckpt files", _unify("src", "rows.ckpt", "out"), _two_ranks()),
    ApiCase("unified_safetensors: both kinds", _unify("src", "rows.ckpt", "out"), _all(_two_ranks(), _BIASED)),
    ApiCase("unified_safetensors: no such strategy", _unify("src", "no.ckpt", "out"), _BIASED),
    ApiCase("unified_safetensors: strategy is no string", _unify("src", 5, "out"), _BIASED),
    ApiCase("unified_safetensors: destination is a file", _unify("src", "rows.ckpt", "rows.ckpt"), _BIASED),
    ApiCase("unified_safetensors: destination is no string", _unify("src", "rows.ckpt", 5), _BIASED),
]


def _unified_random(seed: int) -> ApiCase:
    case = build_case(seed)
    return ApiCase(
        f"unified_safetensors: random {seed}, {case.describe()}",
        _unify("src", "src.ckpt", "out"),
        _given(case, "safetensors"),
    )


# merging strategies, and group info files


def _stages(suffix: str, *stages: int) -> Files:
    return _all(
        *(
            _strategy(f"strategies/stage{stage}.{suffix}", {f"w{stage}": _ROWS, "tied": _COLUMNS}, stage)
            for stage in stages
        )
    )


def _in_any_order(found: Found) -> Found:
    def sorted_items(content: Any) -> Any:
        if not isinstance(content, dict):
            return content
        return {key: sorted(value, key=repr) if isinstance(value, list) else value for key, value in content.items()}

    return replace(found, files={name: sorted_items(content) for name, content in found.files.items()})


def _merge(*arguments: object) -> list[Call]:
    return [Call("merge_pipeline_strategys", arguments)]


_MERGES = [
    ApiCase(
        "merge_pipeline_strategys: two stages",
        _merge("strategies", "merged.ckpt"),
        _stages("ckpt", 0, 1),
        prepared=_in_any_order,
    ),
    ApiCase(
        "merge_pipeline_strategys: one stage",
        _merge("strategies", "a/b/merged.ckpt"),
        _stages("ckpt", 0),
        prepared=_in_any_order,
    ),
    ApiCase(
        "merge_pipeline_strategys: JSON",
        _merge("strategies", "merged.json"),
        _stages("json", 0, 1),
        prepared=_in_any_order,
    ),
    ApiCase(
        "merge_pipeline_strategys: many files of a stage, and others",
        _merge("strategies", "merged.ckpt"),
        _all(
            _stages("ckpt", 0, 1),
            _strategy("strategies/again.ckpt", {"w0": _ROWS, "tied": _COLUMNS}),
            _file("strategies/log.txt", b"text"),
        ),
        prepared=_in_any_order,
    ),
    ApiCase(
        "merge_pipeline_strategys: replaces a file",
        _merge("strategies", "merged.ckpt"),
        _all(_stages("ckpt", 0, 1), _file("merged.ckpt", b"old")),
        prepared=_in_any_order,
    ),
    ApiCase("merge_pipeline_strategys: no directory", _merge("nowhere", "merged.ckpt")),
    ApiCase("merge_pipeline_strategys: a file", _merge("a.ckpt", "merged.ckpt"), _strategy("a.ckpt", {"w": _ROWS})),
    ApiCase(
        "merge_pipeline_strategys: both kinds",
        _merge("strategies", "merged.ckpt"),
        _all(_stages("ckpt", 0), _stages("json", 1)),
    ),
    ApiCase(
        "merge_pipeline_strategys: without layouts",
        _merge("strategies", "merged.ckpt"),
        _strategy("strategies/a.ckpt", {}),
    ),
    ApiCase("merge_pipeline_strategys: target is no string", _merge("strategies", 5), _stages("ckpt", 0)),
    ApiCase("merge_pipeline_strategys: source is no string", _merge(None, "merged.ckpt"), _stages("ckpt", 0)),
    ApiCase(
        "merge_pipeline_strategys: a stage is missing",
        _merge("strategies", "merged.ckpt"),
        _stages("ckpt", 0, 2),
        prepared=_in_any_order,
        differs="a stage is missing",
        ours="ValueError",
    ),
    ApiCase(
        "merge_pipeline_strategys: files of a stage contradict each other",
        _merge("strategies", "merged.ckpt"),
        _all(_stages("ckpt", 0, 1), _strategy("strategies/other.ckpt", {"w0": _COLUMNS})),
        differs="one of the two would be lost",
        ours="ValueError",
    ),
    ApiCase(
        "merge_pipeline_strategys: an empty directory",
        _merge("strategies", "merged.ckpt"),
        lambda at: (at / "strategies").mkdir(),
        differs="MindSpore writes an empty strategy",
        ours="ValueError",
    ),
    ApiCase(
        "merge_pipeline_strategys: JSON files to another name",
        _merge("strategies", "merged.ckpt"),
        _stages("json", 0, 1),
        differs="the kind is that of the name",
    ),
    ApiCase(
        "merge_pipeline_strategys: damaged",
        _merge("strategies", "merged.ckpt"),
        _file("strategies/a.ckpt", b"\xff\xff"),
        differs="what is no strategy is a ValueError",
        ours="ValueError",
    ),
]

_GROUP_INFO = blob(1, blob(1, b"group") + blob(2, number(1, 0) + number(1, 4))) + blob(2, number(1, 0) + number(1, 4))


def _restore(*arguments: object) -> list[Call]:
    return [Call("restore_group_info_list", arguments)]


_GROUP_INFOS = [
    ApiCase("restore_group_info_list: ranks", _restore("info.pb"), _file("info.pb", _GROUP_INFO)),
    ApiCase("restore_group_info_list: no string", _restore(5)),
    ApiCase("restore_group_info_list: no such file", _restore("info.pb")),
    ApiCase("restore_group_info_list: empty", _restore("info.pb"), _file("info.pb", b"")),
    ApiCase(
        "restore_group_info_list: damaged",
        _restore("info.pb"),
        _file("info.pb", b"\xff\xff"),
        differs="documented as a ValueError",
        ours="ValueError",
    ),
    ApiCase(
        "restore_group_info_list: a strategy",
        _restore("rows.ckpt"),
        _strategy("rows.ckpt", {"w": _ROWS}),
        differs="MindSpore takes its texts for ranks",
        ours="ValueError",
    ),
]

CASES: list[ApiCase] = [
    *_TRANSFORMS,
    *_BY_RANK,
    *_RANK_LISTS,
    *_UNIFIED,
    *_MERGES,
    *_GROUP_INFOS,
    *_random_cases(),
    *map(_unified_random, _UNIFIABLE),
]
