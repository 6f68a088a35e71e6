"""How options and a document declare changes together."""

import json
from pathlib import Path

from reshard.core.changes.changes import (
    NO_CHANGES,
    CastRule,
    Changes,
    OverflowPolicy,
    RenameRule,
    Selection,
    TransposeRule,
)
from reshard.core.changes.changes_file import read_changes
from reshard.core.records.plan_file import plan_identity
from reshard.core.request.conversion import build_request
from reshard.core.request.declared_changes import declared_changes
from tests.core.changes.test_changes_file import DOCUMENT
from tests.support.plans import entry, make_catalog, plan_of


def test_options_come_before_the_document(tmp_path: Path) -> None:
    path = tmp_path / "changes.json"
    path.write_text(json.dumps(DOCUMENT))
    said = read_changes(str(path))
    request = build_request(
        source="s",
        target="t",
        changes=str(path),
        include=["c*"],
        exclude=["d*"],
        rename=["a=c", r"re:(.)=\1\1"],
        cast=["n*=float32"],
        transpose=["u"],
    )
    merged = declared_changes(request)
    assert (merged.include, merged.exclude) == (("c*", "a*"), ("d*", "b*"))
    renames = (RenameRule(name="a", to="c"), RenameRule(pattern="(.)", to=r"\1\1"))
    assert merged.rename == renames + said.rename
    assert merged.cast == (CastRule(parameters="n*", dtype="float32"), *said.cast)
    assert merged.transpose == (TransposeRule(parameters="u"), *said.transpose)
    assert (merged.split, merged.join) == (said.split, said.join)
    assert (merged.select, merged.cast_overflow) == (Selection.WEIGHTS_ONLY, OverflowPolicy.ALLOW)
    path.write_text("{}")
    reason = build_request(source="s", target="t", changes=str(path), select="weights-only", cast_overflow="allow")
    assert declared_changes(reason) == Changes(select=Selection.WEIGHTS_ONLY, cast_overflow=OverflowPolicy.ALLOW)
    assert declared_changes(build_request(source="s", target="t")) == NO_CHANGES


def test_what_is_declared_decides_whether_a_run_may_be_resumed() -> None:
    catalog = make_catalog({0: [entry("a", (2,)), entry("b", (2,))]})
    identities = {
        plan_identity(plan_of(catalog, None, None, changes=changes))
        for changes in (
            NO_CHANGES,
            Changes(exclude=("a",)),
            Changes(exclude=("b",)),
            Changes(cast_overflow=OverflowPolicy.ALLOW),
        )
    }
    assert len(identities) == 4
