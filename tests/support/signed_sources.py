"""Sources that are signed: by a key made here, or by model-signing itself."""

import hashlib
import shutil
from pathlib import Path

from reshard.core.signing.bundle import sign_files
from reshard.core.signing.signer import load_signer
from reshard.core.signing.statement import SignedFiles
from reshard.core.storage.publishing import SIGNATURE_NAME
from tests.support.checkpoints import Case
from tests.support.places import FIXTURES
from tests.support.signing import kept, new_key, private_pem, public_pem

BY_MODEL_SIGNING = FIXTURES / "signatures"
"""Signatures that `model_signing sign key` 1.1.1 made of the sources of conversions, and the public key."""


class Keys:
    """A key to sign with, and the file of the public one."""

    def __init__(self, directory: Path, name: str = "key") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        key = new_key()
        self.private = kept(directory / f"{name}.pem", private_pem(key))
        self.public = directory / f"{name}.pub"
        self.public.write_bytes(public_pem(key))

    def sign(self, directory: Path) -> None:
        """Sign all files of a directory, as they are now."""
        files = [path for path in directory.rglob("*") if path.is_file() and path.name != SIGNATURE_NAME]
        digests = {str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
        signature = sign_files(SignedFiles(directory.name, digests), load_signer(self.private))
        (directory / SIGNATURE_NAME).write_bytes(signature)


def copy_of_source(case: Case, directory: Path) -> Path:
    """A copy of a conversion's source that may be changed."""
    return Path(shutil.copytree(case.directory / "src", directory / "src"))
