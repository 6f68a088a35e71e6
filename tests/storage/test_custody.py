"""Signed sources and chains of statements on an object store."""

import hashlib
from pathlib import Path

import pytest

from reshard.core.conversion.convert import convert
from reshard.core.conversion.lineage import lineage_of
from reshard.core.errors import CatalogError, SignatureError
from reshard.core.request.conversion import build_request
from reshard.core.signing.verifier import parse_verifier
from reshard.core.storage.urls import parse_url
from tests.support.checkpoints import case
from tests.support.signed_sources import Keys, copy_of_source
from tests.support.stores import Store

FOUR_TO_THREE = case(7009)


def test_a_signed_source_and_its_chain(store: Store, tmp_path: Path) -> None:
    keys = Keys(tmp_path)
    local = copy_of_source(FOUR_TO_THREE, tmp_path)
    keys.sign(local)
    source, first, second = store.add(local, "src"), store.url("first"), store.url("second")
    signed = {"require_signed_by": str(keys.public), "sign": keys.private, "sha256": "source"}
    convert(FOUR_TO_THREE.request(first, source=source, **signed))
    convert(build_request(source=first, target=second, **signed))
    content, names = store.files("first"), store.files("second")
    [kept] = names.rglob("predecessors/1/provenance.intoto.json")
    assert kept.read_bytes() == (content / ".reshard/provenance.intoto.json").read_bytes()
    lineage = lineage_of(parse_url(second), parse_verifier(keys.public.read_bytes(), "the key"))
    assert lineage is not None
    assert lineage.intact
    assert [step.place for step in lineage.steps] == [source, first, second]

    [rank] = (store.files("src") / "rank_1").iterdir()
    sha256 = changed(store, rank)
    with pytest.raises(SignatureError) as caught:
        convert(FOUR_TO_THREE.request(store.url("third"), source=source, **signed))
    assert f"{source}/rank_1/{rank.name}: was changed since it was signed: its SHA-256 is {sha256}" in str(caught.value)
    assert not list(store.files("third").rglob("*"))


def test_a_converted_source_that_was_changed(store: Store) -> None:
    first = store.url("first")
    convert(FOUR_TO_THREE.request(first, sha256="target"))
    changed(store, store.files("first") / "rank_1/checkpoint_1.ckpt")
    with pytest.raises(CatalogError, match="was changed after it was converted, by its own provenance"):
        convert(build_request(source=first, target=store.url("second"), sha256="source"))


def changed(store: Store, path: Path) -> str:
    """Change a stored file, past all requests; its SHA-256."""
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    store.server.look_again()
    return hashlib.sha256(data).hexdigest()
