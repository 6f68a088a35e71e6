"""SHA-256 of a file whose blocks are written from one buffer, large ones hashed by a thread meanwhile."""

import hashlib
import random

import pytest

from reshard.core.errors import StorageError
from reshard.core.storage.hashing import running_sha256
from reshard.core.storage.store import Buffer
from tests.support.encrypted_files import WrittenBytes

SIZES = (3 * 2**20, 1, 64 * 2**10, 64 * 2**10 - 1, 5 * 2**20, 100, 2**20)


def test_blocks_of_any_size_from_one_buffer() -> None:
    buffer, written = memoryview(bytearray(max(SIZES))), WrittenBytes()
    with running_sha256(needed=True) as sha256:
        assert sha256 is not None
        file = sha256.around(written)
        for size in SIZES * 3:
            buffer[:size] = random.randbytes(size)
            file.write(buffer[:size])
        assert sha256.hexdigest() == hashlib.sha256(written).hexdigest()


def test_a_write_that_fails_leaves_nothing_in_use() -> None:
    class Broken(WrittenBytes):
        def write(self, buffer: Buffer) -> None:
            raise StorageError("the disk is broken")

    buffer = bytearray(8 * 2**20)
    with running_sha256(needed=True) as sha256:
        assert sha256 is not None
        with pytest.raises(StorageError, match="the disk is broken"):
            sha256.around(Broken()).write(buffer)
        buffer.clear()  # a BufferError while another thread reads it
