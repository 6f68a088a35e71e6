"""Sources on an object store that lack something."""

import json
import shutil

from reshard.cli.main import run
from reshard.core.conversion.convert import convert
from reshard.core.request.conversion import build_request
from tests.support.checkpoints import read_tree
from tests.support.places import FIXTURES
from tests.support.stores import Store

REMOVED = FIXTURES / "formats/redundancy_removed"


def test_redundancy_removed_and_ranks_lost(store: Store, capsys: object) -> None:
    source = store.add(REMOVED / "src_ckpt", "src")
    options = {
        "source_strategy": str(REMOVED / "src_strategy.ckpt"),
        "target_strategy": str(REMOVED / "dst_strategy.ckpt"),
    }
    convert(build_request(source=source, target=store.url("out"), **options))
    assert read_tree(store.files("out")) == read_tree(REMOVED / "want")
    shutil.rmtree(store.files("src") / "rank_5")
    store.server.look_again()
    assert run(["recover", source, "--source-strategy", options["source_strategy"], "--json"]) == 1
    report = json.loads(capsys.readouterr().out)  # type: ignore[attr-defined]
    assert report["lost_ranks"] == [{"rank": 5, "why": "it has no checkpoint file"}]
    assert {(lost["parameter"], lost["box"]) for lost in report["lost"]} == {
        ("w", "[4:8, 0:6]"),
        ("adam_m.w", "[6:8, 0:6]"),
    }
