import pytest

from reshard.core.files.encryption.encrypted_output import encrypted_bytes
from reshard.core.runtime.keys import EncryptionMode
from tests.support.encrypted_files import encrypted


def test_nothing_is_no_block() -> None:
    assert encrypted(b"") == b""
    assert encrypted_bytes(0, "AES-GCM") == 0
    assert encrypted_bytes(5, "") == 5


@pytest.mark.parametrize("mode", EncryptionMode)
def test_the_same_is_never_encrypted_alike(mode: EncryptionMode) -> None:
    data = encrypted(bytes(160), mode, 16)
    size = encrypted_bytes(16, mode, 16)
    blocks = {data[start : start + size] for start in range(0, len(data), size)}
    assert len(blocks) == 10
    assert len({block[-24:] for block in blocks}) == 10
    assert encrypted(bytes(160), mode) != encrypted(bytes(160), mode)
