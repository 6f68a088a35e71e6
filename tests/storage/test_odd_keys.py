"""Keys of objects with characters that mean something in URLs."""

import pytest

from reshard.core.conversion.convert import convert
from tests.support.checkpoints import case, read_tree
from tests.support.stores import Store


@pytest.mark.parametrize("name", ["a%20b c+d%2Fe 100%", "q?x=1&y=#z;~*'()!$,:@", "名前é e\u0301 [x] {y} back\\slash"])
def test_odd_names_are_read_and_written_as_they_are(store: Store, name: str) -> None:
    conversion = case(7010)
    source = store.add(conversion.directory / "src", f"src/{name}")
    convert(conversion.request(f"{store.url('out')}/{name}", source=source, verify="content"))
    assert read_tree(store.files(f"out/{name}")) == conversion.want
