"""Signatures in an object store: made at the commit, checked there, gone before what they cover is replaced."""

from collections.abc import Callable
from pathlib import Path

import pytest

from reshard.cli.main import run
from reshard.core.conversion.convert import convert
from tests.support.checkpoints import case
from tests.support.signing import digests_of, kept, new_key, private_pem, public_pem, signed_digests
from tests.support.stores import Store

KEY = new_key()
RANKS = case(7009)


def test_signed_at_the_commit_and_later(
    store: Store, tmp_path: Path, reshard: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    target, files = store.url("out"), store.files("out")
    key = kept(tmp_path / "key.pem", private_pem(KEY))
    (tmp_path / "key.pub").write_bytes(public_pem(KEY))
    convert(RANKS.request(target, sign=key))
    check_signed(files)
    asked = ("verify", target, "--signed-by", tmp_path / "key.pub")
    assert "all files intact, as signed by the key with SHA-256" in reshard(*asked)
    convert(RANKS.request(target, format="safetensors", overwrite=True))
    assert not (files / "model.sig").exists()
    reshard("sign", target, "--key", key)
    check_signed(files)
    store.add(Path(__file__), "out/tokenizer.json")
    assert run([str(each) for each in asked]) == 1
    assert f"{target}/tokenizer.json: is not covered by the signature" in capsys.readouterr().out


def check_signed(files: Path) -> None:
    found = {name: digest for name, digest in digests_of(files).items() if "/leases/" not in name}
    assert signed_digests((files / "model.sig").read_bytes(), KEY) == found
