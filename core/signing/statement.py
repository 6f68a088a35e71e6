"""The statement that model-signing signs: every file of a model with its SHA-256.

Format: model-signing 1.x, an in-toto Statement v1 whose predicate lists the files. Its subject is the model's name with
SHA-256 over the files' digests, in the order of the list: of paths, compared part by part.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from reshard.core.errors import SignatureError
from reshard.core.runtime.records import Record
from reshard.core.signing.documents import load_document, shaped
from reshard.core.text.printing import printable

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://model_signing/signature/v1.0"
_EARLY_PREDICATE_TYPE = "https://model_signing/Digests/v0.1"
MAX_FILES = 1_000_000
_MAX_IGNORED = 10_000
_MAX_NAME_BYTES = 4096
_SHA256 = "sha256"
_DIGEST = re.compile(r"[0-9a-f]{64}")


class SignedFiles(Record):
    """What a signature covers.

    Attributes:
        model: name of the model; it says nothing about where it lies.
        digests: SHA-256 of each file, by its path below the model.
        ignored: paths of what was left out, with all that is below them.
    """

    model: str
    digests: Mapping[str, str]
    ignored: tuple[str, ...] = ()

    def ignores(self, name: str) -> bool:
        """True if a file, or a directory that it is in, was left out."""
        return any(name == path or name.startswith(f"{path}/") for path in self.ignored)


class _Resource(Record):
    name: str
    algorithm: str
    digest: str


class _Serialization(Record):
    method: str
    hash_type: str = _SHA256
    ignore_paths: tuple[str, ...] = ()


class _Predicate(Record):
    serialization: _Serialization
    resources: tuple[_Resource, ...]


class _Subject(Record):
    digest: dict[str, str]
    name: str = ""


class _Statement(Record, rename={"kind": "_type"}):
    kind: str
    subject: tuple[_Subject, ...]
    predicate: _Predicate


def dump_statement(files: SignedFiles) -> bytes:
    """Return a statement's JSON."""
    names = in_order(files.digests)
    statement = {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": files.model, "digest": {_SHA256: root_digest(files.digests[name] for name in names)}}],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "serialization": {
                "method": "files",
                "hash_type": _SHA256,
                "allow_symlinks": False,
                "ignore_paths": list(files.ignored),
            },
            "resources": [{"name": name, "algorithm": _SHA256, "digest": files.digests[name]} for name in names],
        },
    }
    return json.dumps(statement, indent=1).encode()


def in_order(names: Iterable[str]) -> list[str]:
    """Return paths in the order of a statement: `a/b` before `a-b`, unlike the texts."""
    return sorted(names, key=lambda name: name.split("/"))


def root_digest(digests: Iterable[str]) -> str:
    """Return SHA-256 over digests, each in hexadecimal digits."""
    whole = hashlib.sha256()
    for digest in digests:
        whole.update(bytes.fromhex(digest))
    return whole.hexdigest()


def parse_statement(payload: bytes, origin: str) -> SignedFiles:
    """Parse the statement in a signature; `origin` names the signature in messages.

    Raises:
        SignatureError: it is damaged, contradicts itself, names a path outside the model, or is of an unsupported kind.
    """
    found = load_document(payload, origin)
    _check_kind(found, origin)
    statement = shaped(found, _Statement, origin)
    if len(statement.subject) != 1:
        raise SignatureError(f"{origin}: must have one subject, but has {len(statement.subject)}")
    serialization, resources = statement.predicate.serialization, statement.predicate.resources
    _check_serialization(serialization, origin)
    if len(resources) > MAX_FILES:
        raise SignatureError(f"{origin}: lists {len(resources)} files, more than {MAX_FILES}")
    digests = _digests(resources, origin)
    claimed, computed = statement.subject[0].digest.get(_SHA256), root_digest(digests.values())
    if claimed != computed:
        raise SignatureError(f"{origin}: its subject is not the digest of its files: damaged, or wrongly made")
    return SignedFiles(
        statement.subject[0].name, digests, tuple(_ignored(path, origin) for path in serialization.ignore_paths)
    )


def _check_kind(found: Any, origin: str) -> None:
    kind, predicate = (found.get(key) if isinstance(found, dict) else None for key in ("_type", "predicateType"))
    if kind != STATEMENT_TYPE:
        raise SignatureError(f"{origin}: does not sign a statement of in-toto v1, but {_shown(kind)}")
    if predicate == _EARLY_PREDICATE_TYPE:
        raise SignatureError(f"{origin}: made by model-signing before 1.0: sign again with a later version")
    if predicate != PREDICATE_TYPE:
        raise SignatureError(f"{origin}: signs a statement of type {_shown(predicate)}, not {PREDICATE_TYPE}")


def _check_serialization(found: _Serialization, origin: str) -> None:
    if found.method == "shards":
        raise SignatureError(f"{origin}: signs files in shards, which is not supported: sign whole files")
    if found.method != "files":
        raise SignatureError(f"{origin}: signs by an unknown method, {_shown(found.method)}")
    if found.hash_type != _SHA256:
        raise SignatureError(f"{origin}: its digests are {_shown(found.hash_type)}; only sha256 is supported")
    if len(found.ignore_paths) > _MAX_IGNORED:
        raise SignatureError(f"{origin}: leaves out {len(found.ignore_paths)} paths, more than {_MAX_IGNORED}")


def _digests(resources: Iterable[_Resource], origin: str) -> dict[str, str]:
    digests: dict[str, str] = {}
    for each in resources:
        check_name(each.name, origin)
        if each.algorithm != _SHA256:
            raise SignatureError(
                f"{origin}: the digest of {_shown(each.name)} is {_shown(each.algorithm)}; only sha256 is supported"
            )
        if not _DIGEST.fullmatch(each.digest):
            raise SignatureError(f"{origin}: the digest of {_shown(each.name)} is not 64 hexadecimal digits")
        if each.name in digests:
            raise SignatureError(f"{origin}: lists {_shown(each.name)} twice")
        digests[each.name] = each.digest
    return digests


def check_name(name: str, origin: str) -> None:
    """Raise SignatureError unless a name is a relative path that stays inside the model."""
    parts = name.split("/")
    is_inside = name and all(part not in ("", ".", "..") for part in parts) and "\\" not in name and "\0" not in name
    if not is_inside or len(name) > _MAX_NAME_BYTES or not _is_text(name):
        raise SignatureError(f"{origin}: lists {_shown(name)}, which is not a path inside the model")


def _ignored(path: str, origin: str) -> str:
    """Return an ignored path without its final slash; raise SignatureError if it leads outside the model."""
    plain = path.removesuffix("/")
    check_name(plain, origin)
    return plain


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
    return True


def _shown(value: object) -> str:
    return printable(repr(value))[:100]
