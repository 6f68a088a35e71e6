"""model-signing, in a process of its own; `answering` calls its `OPERATIONS`."""

from pathlib import Path

import model_signing

_SIGNATURE = "model.sig"


def sign(model: str, key: str, passphrase: str, ignored: list[str]) -> None:
    """Signs a directory as the command `model_signing sign key` does."""
    directory = Path(model)
    hashing = model_signing.hashing.Config().set_ignored_paths(paths=[_SIGNATURE, *ignored])
    config = model_signing.signing.Config().set_hashing_config(hashing)
    config.use_elliptic_key_signer(private_key=Path(key), password=passphrase.encode() if passphrase else None)
    config.sign(directory, directory / _SIGNATURE)


def verify_key(model: str, key: str) -> None:
    """Checks a directory as the command `model_signing verify key` does; raises ValueError if it is not as signed."""
    _verify(model, model_signing.verifying.Config().use_elliptic_key_verifier(public_key=Path(key)))


def verify_certificate(model: str, trusted: str) -> None:
    """Checks a directory as the command `model_signing verify certificate` does."""
    _verify(model, model_signing.verifying.Config().use_certificate_verifier(certificate_chain=[Path(trusted)]))


def _verify(model: str, config: model_signing.verifying.Config) -> None:
    directory = Path(model)
    config.set_hashing_config(model_signing.hashing.Config().set_ignored_paths(paths=[_SIGNATURE]))
    config.verify(directory, directory / _SIGNATURE)


OPERATIONS = {"sign": sign, "verify_key": verify_key, "verify_certificate": verify_certificate}
