"""Opens checkpoint files as plaintext, encrypted or not."""

from collections.abc import Iterator
from contextlib import contextmanager

from reshard.core.files.encryption.decrypted_source import decrypted
from reshard.core.files.encryption.encrypted_output import EncryptedOutput
from reshard.core.runtime.budget import UploadBuffers
from reshard.core.runtime.keys import Key
from reshard.core.storage.hashing import RunningSha256
from reshard.core.storage.reading import SourceFile, open_source
from reshard.core.storage.urls import Location
from reshard.core.storage.writing import OutputFile, write_file


def open_checkpoint(location: Location, key: Key | None, version: str = "") -> SourceFile:
    """Open a checkpoint file for reading at offsets; with a key, decrypted. `version` is for `open_source`.

    Raises:
        CheckpointError: the key does not decrypt the file.
        StorageError: the file does not exist, or cannot be read.
    """
    return decrypted(open_source(location, version), key)


@contextmanager
def write_checkpoint(
    location: Location, key: Key | None, upload: UploadBuffers | None = None, sha256: RunningSha256 | None = None
) -> Iterator[OutputFile]:
    """Write a checkpoint file, encrypted if there is a key; see `write_file`. `sha256` takes the bytes as stored.

    Raises:
        StorageError: the file cannot be written.
    """
    with write_file(location, upload) as stored:
        file = stored if sha256 is None else sha256.around(stored)
        if key is None:
            yield file
            return
        encrypted = EncryptedOutput(file, key)
        yield encrypted
        encrypted.finish()
