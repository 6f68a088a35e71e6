"""The commands of the guide to the chain of custody run, in its order and unchanged."""

import shutil
from pathlib import Path

import pytest

from tests.support.guides import follow


@pytest.mark.slow
@pytest.mark.skipif(not (shutil.which("jq") and shutil.which("openssl")), reason="needs Debian's jq and openssl")
def test_a_chain_is_signed_and_checked(tmp_path: Path) -> None:
    printed = follow("guides/chain-of-custody.md", tmp_path)
    assert "all files intact, as signed by" in printed
    assert "the chain is intact" in printed
    assert "Verified OK" in printed
