"""Printing descriptions of files and directories."""

from collections.abc import Callable, Iterator

import click

from reshard.cli.output import print_blocks, print_facts, print_table
from reshard.core.layouts.source_layout import Document
from reshard.core.layouts.targets import side_named
from reshard.core.reports.rank_table import Column, file_column, rank_column, rank_table
from reshard.core.runtime.wording import counted, listed, ranks_text, size_text
from reshard.core.tensor.layout import ALL_REPEATED_AXES


def print_description(document: Document) -> None:
    """Print a document from `describe`."""
    _PRINTERS.get(document["kind"], _print_facts)(document)


def _print_facts(document: Document) -> None:
    """Print a document of a kind that needs no tables."""
    facts = {
        name: listed(list(map(str, value)), 8) if isinstance(value, list) else str(value)
        for name, value in document.items()
    }
    print_facts(
        [
            (document["kind"], document["url"]),
            *((name, text) for name, text in facts.items() if name not in ("kind", "url")),
        ]
    )


def _print_file(document: Document) -> None:
    parameters = document["parameters"]
    print_facts(
        [
            ("checkpoint file", document["url"]),
            ("format", f".{document['format']}, {size_text(document['size_bytes'])}"),
            *([("encrypted", f"with {document['encryption']}")] if document["encryption"] else []),
            ("CRC", "has one" if document["has_crc"] else "none"),
            *([("redundancy", "removed: some slices are on other ranks")] if document["redundancy_removed"] else []),
            ("parameters", f"{len(parameters)}, {size_text(sum(each['size_bytes'] for each in parameters))}"),
        ]
    )
    click.echo()
    print_table(
        ("parameter", "dtype", "shape", "size"),
        [(each["name"], each["dtype"], _shape_or_text(each), size_text(each["size_bytes"])) for each in parameters],
        right=("size",),
        optional=("shape", "dtype"),
    )
    if document["information"]:
        click.echo()
        print_table(
            ("information", "value"), [(name, _value_text(value)) for name, value in document["information"].items()]
        )


def _value_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _shape_or_text(parameter: Document) -> str:
    return repr(parameter["text"]) if "text" in parameter else str(parameter["shape"])


def _print_checkpoint(document: Document) -> None:
    ranks = document["ranks"]
    facts = [
        ("checkpoint", f"{document['url']} ({document['shape']})"),
        ("ranks", f"{len(ranks)}: {ranks_text(ranks)}"),
        ("format", ", ".join(f".{file_format}" for file_format in document["formats"])),
    ]
    if "adapter" in document:
        facts.append(("adapter", document["adapter"]))
    if document["parts"]:
        facts.append(("parts", f"{', '.join(map(str, document['parts']))}, of pipeline stages"))
    if document["ranks_without_files"]:
        facts.append(("no files", f"ranks {ranks_text(document['ranks_without_files'])}"))
    print_facts([*facts, *_facts_of_directory(document)])
    click.echo()
    print_table(
        ("prefix", "step", "ranks", "which"),
        [
            (
                prefix["prefix"],
                step["step"] or "",
                f"{len(step['ranks'])} of {len(ranks)}",
                "all" if step["ranks"] == ranks else ranks_text(step["ranks"]),
            )
            for prefix in document["prefixes"]
            for step in prefix["steps"]
        ],
        right=("ranks",),
        optional=("which",),
    )


def _facts_of_directory(document: Document) -> Iterator[tuple[str, str]]:
    """What else is in a checkpoint's directory, if the document of its layout says so."""
    if document["ignored"]:
        yield "ignored", listed(document["ignored"], 8)
    if document.get("unfinished"):
        yield "UNFINISHED", "a conversion into it was not completed"


def _print_iteration(document: Document) -> None:
    parameters, others = document["parameters"], document["other_iterations"]
    facts = [
        ("Checkpoint 2.0", document["url"]),
        ("iteration", "?" if document["iteration"] is None else str(document["iteration"])),
        *([("others", listed(list(map(str, others)), 8))] if others else []),
        ("ranks", f"{document['world_size']}, {counted(document['stages'], 'stage')}"),
        *([("parameters", str(len(parameters)))] if parameters else []),
        ("training", ", ".join(f"{key} {value}" for key, value in document["common"].items() if value is not None)),
    ]
    facts += [("note", note) for note in document["notes"]]
    print_facts([*facts, *_facts_of_directory(document)])
    click.echo()
    print_table(
        ("rank", "files"),
        [(each["rank"], ", ".join(each["files"])) for each in document["ranks"]],
        right=("rank",),
    )
    if parameters:
        click.echo()
        print_table(
            ("parameter", "dtype", "shape", "shard"),
            [(each["name"], each["dtype"], str(each["shape"]), str(each["shard_shape"])) for each in parameters],
            optional=("dtype", "shard"),
        )


def _print_dcp(document: Document) -> None:
    files, objects = document["files"], document["objects"]
    facts = [("files", f"{len(files)}: {listed([each['file'] for each in files], 8)}")]
    if objects:
        facts.append(("objects", f"{len(objects)}, which only PyTorch can read: {listed(objects, 8)}"))
    _print_placed_facts(document, facts)
    _print_placed_parameters(document)


def _print_megatron(document: Document) -> None:
    sizes = ("tensor", "pipeline", "expert", "expert_tensor")
    facts = [
        ("parallel", ", ".join(f"{size.replace('_', ' ')} {document[f'{size}_parallel']}" for size in sizes)),
        ("model", ", ".join(f"{name} {number}" for name, number in document["model"].items())),
        ("optimizer", document["optimizer"]),
    ]
    _print_rank_files(document, facts)


def _print_fsdp(document: Document) -> None:
    facts = [("directory", document["directory"])] if document["directory"] != document["url"] else []
    _print_rank_files(document, [*facts, ("ranks", str(document["ranks"])), ("optimizer", document["optimizer"])])


def _print_deepspeed(document: Document) -> None:
    stage = f"stage {document['zero_stage']}, {counted(document['ranks'], 'rank')}"
    facts = [
        ("tag", document["tag"]),
        ("ZeRO", stage if document["zero_stage"] else "none"),
        ("version", document["deepspeed_version"] or "?"),
        ("optimizer", document["optimizer"]),
    ]
    _print_rank_files(document, facts)


def _print_rank_files(document: Document, own: list[tuple[str, str]]) -> None:
    """Print a training's files of ranks, with facts of their layout."""
    unusable = [("UNUSABLE", f"{each['file']} {each['why']}") for each in document["unusable"]]
    _print_placed_facts(document, [*own, *unusable])
    click.echo()
    print_table(("file", "shards"), [(each["file"], each["shards"]) for each in document["files"]], right=("shards",))
    _print_placed_parameters(document)


def _print_placed_facts(document: Document, own: list[tuple[str, str]]) -> None:
    """Print what files of known shards have in common, with facts of their layout."""
    parameters = document["parameters"]
    shards = sum(len(each["shards"]) for each in parameters)
    dtypes = sorted({each["dtype"] or "?" for each in parameters})
    facts = [
        (document["kind"], document["url"]),
        *([("step", str(document["step"]))] if document["step"] is not None else []),
        *([("other steps", listed(list(map(str, document["other_steps"])), 8))] if document["other_steps"] else []),
        ("parameters", f"{len(parameters)}, in {counted(shards, 'shard')}: {', '.join(dtypes)}"),
        *own,
        *(("note", note) for note in document["notes"]),
        *_facts_of_directory(document),
    ]
    print_facts(facts)


def _print_placed_parameters(document: Document) -> None:
    parameters = document["parameters"]
    click.echo()
    print_table(
        ("parameter", "dtype", "shape", "shards", "of shapes"),
        [(each["name"], each["dtype"] or "?", str(each["shape"]), *_shards_text(each)) for each in parameters],
        right=("shards",),
        optional=("of shapes", "dtype"),
    )


def _shards_text(parameter: Document) -> tuple[int, str]:
    shapes = list(dict.fromkeys(str(each["shape"]) for each in parameter["shards"]))
    return len(parameter["shards"]), listed(shapes, 4)


def _print_whole_tensors(document: Document) -> None:
    files = document["files"]
    parameters = [each for file in files for each in file["parameters"]]
    dtypes = sorted({each["dtype"] for each in parameters})
    facts = [
        (document["kind"], document["url"]),
        ("index", document["index"] or "none; none is needed"),
        ("parameters", f"{len(parameters)}, whole: {', '.join(dtypes)}"),
        ("size", size_text(sum(file["size_bytes"] for file in files))),
    ]
    if document["in_no_strategy"]:
        facts.append(("not in any strategy", ", ".join(document["in_no_strategy"])))
    facts += [("note", note) for note in document["notes"]]
    print_facts([*facts, *_facts_of_directory(document)])
    click.echo()
    print_table(
        ("file", "parameters", "size"),
        [(file["file"], len(file["parameters"]), size_text(file["size_bytes"])) for file in files],
        right=("parameters", "size"),
    )


def _print_universal(document: Document) -> None:
    parameters = document["parameters"]
    dtypes = sorted({each["dtype"] for each in parameters})
    facts = [
        (document["kind"], document["url"]),
        ("tag", document["tag"]),
        *([("other steps", listed(list(map(str, document["other_steps"])), 8))] if document["other_steps"] else []),
        ("parameters", f"{len(parameters)}, whole: {', '.join(dtypes)}"),
        *([("missing", listed(document["missing"], 8))] if document["missing"] else []),
        *_facts_of_directory(document),
    ]
    print_facts(facts)
    click.echo()
    rows = [(each["name"], each["dtype"], str(each["shape"]), each["file"]) for each in parameters]
    print_table(("parameter", "dtype", "shape", "file"), rows)


def _print_converted(document: Document) -> None:
    manifest = document["manifest"]
    step = f", step {manifest['step']}" if manifest["step"] else ""
    print_facts(
        [
            ("converted checkpoint", document["url"]),
            ("from", f"{manifest['source']}{step}"),
            ("ranks", f"{manifest['source_world_size']} -> {_target_world(manifest)}"),
            ("format", f".{manifest['format']}, {size_text(sum(each['size_bytes'] for each in manifest['ranks']))}"),
            ("written by", f"{manifest['writer']}, {manifest['created']}"),
            ("verified", manifest["verified"]),
            *([("encrypted", _encryption_text(manifest))] if manifest["encryption"] else []),
            *(("note", note) for note in manifest["notes"]),
        ]
    )
    click.echo()
    in_ranks = not side_named(manifest["layout"]).record.ranks_are_files
    columns: list[Column[Document]] = [
        rank_column(lambda each: each["rank"], "rank" if in_ranks else "number"),
        file_column(lambda each: each["rank"], lambda each: each["file"]),
        Column("size", lambda each: size_text(each["size_bytes"]), right=True),
    ]
    noun = "rank" if in_ranks else "file"
    print_blocks([rank_table(columns, manifest["ranks"], noun=noun, groups_in_files=True)])


def _target_world(manifest: Document) -> str:
    size: int = manifest["target_world_size"]
    layout = side_named(manifest["layout"]).record
    if not layout.ranks_are_files:
        return str(size)
    return f"{counted(size, 'file')} of {'whole tensors' if layout.is_whole else 'shards'}"


def _encryption_text(manifest: Document) -> str:
    sealed = "; parameters' names are encrypted, and need --decrypt-key" if manifest["sealed"] else ""
    return f"with {manifest['encryption']}{sealed}"


def _print_strategy(document: Document) -> None:
    stages = document["stages"]
    scope = "" if document["merged"] else ", of one stage"
    print_facts(
        [
            ("strategy", f"{document['url']}{scope}"),
            ("ranks", str(document["world_size"])),
            *((f"stage {stage['stage']}", _stage_text(stage)) for stage in stages),
        ]
    )
    click.echo()
    rows = [(stage["stage"], each) for stage in stages for each in stage["parameters"]]
    headers = ["stage", "parameter", "device matrix", "tensor map", "optimizer shard"]
    uneven = any(each["uneven_lengths"] for _, each in rows)
    print_table(
        [*headers, "uneven lengths"] if uneven else headers,
        [
            (
                stage,
                each["name"],
                each["device_matrix"],
                each["tensor_map"],
                _optimizer_shard(each),
                *([each["uneven_lengths"] or ""] if uneven else []),
            )
            for stage, each in rows
        ],
        right=("stage",),
        optional=("uneven lengths", "stage", "optimizer shard"),
    )


def _stage_text(stage: Document) -> str:
    devices = f"{counted(stage['devices'], 'device')}, ranks {ranks_text(stage['ranks'])}"
    return f"{devices}, {counted(len(stage['parameters']), 'parameter')}"


def _optimizer_shard(layout: Document) -> str:
    size, step = layout["optimizer_shard_size"], layout["optimizer_shard_step"]
    if size == 0 or step == 0:
        return ""
    return f"{'all repeated axes' if size == ALL_REPEATED_AXES else size}, step {step}"


_PRINTERS: dict[str, Callable[[Document], None]] = {
    "checkpoint file": _print_file,
    "checkpoint": _print_checkpoint,
    "Checkpoint 2.0": _print_iteration,
    "DCP checkpoint": _print_dcp,
    "torch_dist checkpoint": _print_dcp,
    "Megatron checkpoint": _print_megatron,
    "FSDP checkpoint": _print_fsdp,
    "DeepSpeed checkpoint": _print_deepspeed,
    "converted checkpoint": _print_converted,
    "unified checkpoint": _print_whole_tensors,
    "PyTorch checkpoint": _print_whole_tensors,
    "universal checkpoint of DeepSpeed": _print_universal,
    "strategy": _print_strategy,
}
