"""A plan as one self-contained web page: its pictures, totals, decisions, and ranks."""

from collections.abc import Iterable, Sequence
from contextlib import closing

from reshard.core.conversion.plan_notes import substitutes_text
from reshard.core.conversion.report import PlanSummary, worlds_text
from reshard.core.conversion.views.overlap_picture import draw_overlaps
from reshard.core.conversion.views.picture import draw_feeds, feeds_of, feeds_title
from reshard.core.errors import InputError
from reshard.core.plan.change_summary import ExcludedParameter, ParameterChange
from reshard.core.plan.overlaps import ParameterOverlaps
from reshard.core.plan.plan import ConversionPlan
from reshard.core.runtime.summary import FILE, RANK
from reshard.core.runtime.wording import counted, html_text, ranks_text, size_text
from reshard.core.storage.listing import kind_of, lacks_directory
from reshard.core.storage.reading import open_source, read_bytes
from reshard.core.storage.urls import parse_url
from reshard.core.storage.writing import write_bytes

_GENERATOR = '<meta name="generator" content="reshard plan">'
"""Marks a page near its beginning; only marked files are replaced."""
_HEAD_BYTES = 512
_MAX_OPEN_ROWS = 64
_STYLE = """
:root{color-scheme:light dark;--ground:#fff;--plate:#f9fafb;--line:#d1d5db;--text:#1f2937;--faint:#4b5563}
body{margin:0 auto;max-width:72rem;padding:1.5rem;background:var(--ground);color:var(--text);
font:16px/1.5 system-ui,sans-serif}
h1{font-size:1.6rem;margin:0 0 .5rem}h2{font-size:1.2rem;margin:2rem 0 .5rem}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.25rem 1.5rem;margin:0}dt{color:var(--faint)}dd{margin:0}
code,dd,td,li{overflow-wrap:anywhere}
.picture{overflow-x:auto}.picture svg{display:block;max-width:100%;height:auto}
table{border-collapse:collapse;width:100%;font-size:.9rem}caption,th{text-align:left;color:var(--faint)}
th,td{border-bottom:1px solid var(--line);padding:.25rem .75rem .25rem 0;vertical-align:top}
.number{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}
summary{cursor:pointer}.urgent{font-weight:600}
"""
_DARK_STYLE = """
@media(prefers-color-scheme:dark){
:root{--ground:#0b1220;--plate:#111827;--line:#374151;--text:#e5e7eb;--faint:#9ca3af}
svg .ground{fill:#111827}svg text{fill:#d1d5db}svg text.head{fill:#f3f4f6}svg text.inside{fill:#111827}
svg .cell{stroke:#f9fafb}svg .part{stroke:#111827}
svg .level0{fill:#1f2937}svg .level1{fill:#1e3a5f}svg .level2{fill:#1d4ed8}svg .level3{fill:#3b82f6}
svg .level4{fill:#93c5fd}svg .level5{fill:#eff6ff}svg text.small{fill:#f9fafb}svg text.light{fill:#0b1220}
}
"""


def plan_page(plan: ConversionPlan, summary: PlanSummary, overlaps: ParameterOverlaps | None = None) -> str:
    """Return the page; `overlaps` are those of a parameter that it also shows."""
    feeds = feeds_of(plan)
    kinds = "" if FILE in (summary.source_kind, summary.target_kind) else " ranks"
    title = worlds_text(summary).replace("->", "→") + kinds
    parts = [
        _heading(title, summary),
        _facts(_totals(summary)),
        _section("Notes", _list(summary.notes)),
        _section(feeds_title(feeds), _picture(draw_feeds(feeds, tooltips=True))) if feeds.counts_bytes.any() else "",
        _parameter(overlaps) if overlaps else "",
        _section("Changed parameters", _effects(summary.effects)),
        _section("Left out", _excluded(summary.excluded)),
        _section(f"Target {summary.target_kind}s", _ranks(summary)),
    ]
    head = f'<meta charset="utf-8">{_GENERATOR}<meta name="viewport" content="width=device-width,initial-scale=1">'
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}<title>Plan: {title}</title>'
        f"<style>{_STYLE}{_DARK_STYLE}</style></head>\n<body>\n" + "\n".join(filter(None, parts)) + "\n</body></html>\n"
    )


def write_page(url: str, page: str) -> None:
    """Write a page atomically; an InputError if another file than such a page is there, or there is no directory."""
    location = parse_url(url)
    if lacks_directory(location):
        raise InputError(f"{location}: there is no directory {location.parent.path}; create it, or name another file")
    kind = kind_of(location)
    if kind == "directory":
        raise InputError(f"{location}: is a directory; name the file to be written")
    if kind is not None:
        source = open_source(location)
        with closing(source):
            begin = read_bytes(source, 0, min(source.size_bytes, _HEAD_BYTES))
        if begin and _GENERATOR.encode() not in begin:
            raise InputError(f"{location}: is there already, and no page of a plan; delete it, or name another file")
    # a name may contain surrogates
    write_bytes(location, page.encode(errors="backslashreplace"))


def _heading(title: str, summary: PlanSummary) -> str:
    recovered = substitutes_text(summary.stand_ins)
    return f"<h1>Plan: {title}</h1>" + (f'<p class="urgent">Recovered: {html_text(recovered)}</p>' if recovered else "")


def _totals(summary: PlanSummary) -> Iterable[tuple[str, str]]:
    yield "Source", summary.source
    if summary.step:
        yield "Step", summary.step
    copies = sum(rank.copy_of is not None for rank in summary.ranks)
    ranks = worlds_text(summary).replace("->", "→")
    yield "Ranks", ranks + (f", {copies} of them copies of another" if copies else "")
    cut = f"{summary.parameters} resharded, in {counted(summary.layout_classes, 'way')}"
    cut = f"{summary.parameters} made whole" if summary.is_whole else cut
    passed_through = f"; {len(summary.carried)} copied to every rank" if summary.carried else ""
    yield "Parameters", cut + passed_through
    if summary.whole_shapes.kinds:
        yield "Whole shapes", str(summary.whole_shapes)
    yield "Format", summary.format
    yield "To read", size_text(summary.read_bytes)
    yield "To write", size_text(summary.written_bytes)
    yield "Buffers", f"{size_text(summary.buffer_bytes)}, for {summary.workers} at once"


def _facts(facts: Iterable[tuple[str, str]]) -> str:
    return f"<dl>{''.join(f'<dt>{html_text(name)}</dt><dd>{html_text(text)}</dd>' for name, text in facts)}</dl>"


def _section(heading: str, content: str) -> str:
    return f"<section><h2>{html_text(heading)}</h2>{content}</section>" if content else ""


def _list(items: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{html_text(item)}</li>' for item in items)}</ul>" if items else ""


def _picture(svg: str) -> str:
    return f'<div class="picture">{svg}</div>'


def _parameter(overlaps: ParameterOverlaps) -> str:
    explained = (
        "<p>Each color is a source rank; heavy lines are the target's shards, numbers the ranks that own a shard.</p>"
    )
    return _section(f"Parameter {overlaps.parameter.name}", explained + _picture(draw_overlaps(overlaps)))


def _effects(effects: Sequence[ParameterChange]) -> str:
    columns = ("Parameter", "Made from", "How", "Dtype", "Shape")
    rows = [
        (
            effect.parameter,
            " + ".join(effect.sources),
            ", ".join(effect.how),
            _from_to(effect.source_dtypes, effect.dtype),
            _from_to([str(list(shape)) for shape in effect.source_shapes], str(list(effect.shape))),
        )
        for effect in effects
    ]
    return _table(columns, rows, counted(len(rows), "parameter")) if rows else ""


def _from_to(before: Sequence[str], after: str) -> str:
    return after if tuple(before) == (after,) else f"{' + '.join(before)} → {after}"


def _excluded(excluded: Sequence[ExcludedParameter]) -> str:
    rows = [(each.parameter, each.by) for each in excluded]
    return _table(("Parameter", "By"), rows, counted(len(rows), "parameter")) if rows else ""


def _ranks(summary: PlanSummary) -> str:
    columns = ("Rank" if summary.target_kind == RANK else "Number", "File", "Shards", "Source ranks", "Copy of")
    rows = [
        (
            str(rank.rank),
            rank.file,
            size_text(rank.shard_bytes),
            ranks_text(rank.source_ranks),
            "" if rank.copy_of is None else str(rank.copy_of),
        )
        for rank in summary.ranks
    ]
    return _table(columns, rows, counted(len(rows), summary.target_kind), numbers=(0, 2, 4))


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]], title: str, *, numbers: Sequence[int] = ()) -> str:
    """A foldable table, folded at first if it is long; the columns `numbers` are aligned to the right."""
    kinds = [' class="number"' if place in numbers else "" for place in range(len(columns))]
    heads = "".join(f'<th scope="col"{kind}>{name}</th>' for kind, name in zip(kinds, columns, strict=True))
    body = "".join(
        f"<tr>{''.join(f'<td{kind}>{html_text(cell)}</td>' for kind, cell in zip(kinds, row, strict=True))}</tr>"
        for row in rows
    )
    opened = " open" if len(rows) <= _MAX_OPEN_ROWS else ""
    table = f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"
    return f"<details{opened}><summary>{title}</summary>{table}</details>"
