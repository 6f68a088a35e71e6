"""Signatures of reshard, checked by model-signing, and the other way round; damage is found by both or by neither.

A case is made from its seed: a key, a passphrase or none, a chain of certificates or none, what is tampered with, and
whether the target is converted or joined of parts.
"""

import base64
import json
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec

from reshard import sign, verify
from reshard.core.conversion.convert import convert
from reshard.core.errors import InputError
from tests.conformance.mindspore_process import RefusalError, SigningJudge
from tests.conformance.seeded import check_seeds
from tests.support.checkpoints import case
from tests.support.joining import join_parts
from tests.support.signing import Certified, authority, kept, new_key, owner, private_pem, public_pem
from tests.support.stage_parts import maker_of_parts

CASES = 6
CURVES = (ec.SECP256R1, ec.SECP384R1, ec.SECP521R1)
LENGTHS = (0, 1, 2, 3)
"""Certificates: none, one that is trusted itself, or a chain below an authority."""
PASSPHRASE = "open sesame"


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def _files(target: Path, random_: random.Random) -> Path:
    return random_.choice(sorted(path for path in target.rglob("*") if path.is_file() and path.name != "model.sig"))


def _resign(target: Path, change: Callable[[dict], None]) -> None:
    bundle = json.loads((target / "model.sig").read_text())
    change(bundle)
    (target / "model.sig").write_text(json.dumps(bundle))


def _change_payload(bundle: dict) -> None:
    payload = base64.b64decode(bundle["dsseEnvelope"]["payload"])
    bundle["dsseEnvelope"]["payload"] = base64.b64encode(payload.replace(b"model.sig", b"model.zip")).decode()


def _add(target: Path) -> None:
    (target / "added.bin").write_bytes(b"")


TAMPERING: dict[str, Callable[[Path, random.Random], object]] = {
    "a byte": lambda target, random_: _flip(_files(target, random_)),
    "a file less": lambda target, random_: _files(target, random_).unlink(),
    "a file more": lambda target, _: _add(target),
    "a name": lambda target, _: (target / ".reshard/identity").rename(target / ".reshard/identity2"),
    "a record": lambda target, _: _flip(target / ".reshard/records/rank_1.json"),
    "the statement": lambda target, _: _resign(target, _change_payload),
    "the signature": lambda target, _: _resign(
        target, lambda bundle: bundle["dsseEnvelope"]["signatures"][0].update(sig=base64.b64encode(b"0" * 70).decode())
    ),
}


@dataclass(frozen=True)
class SigningCase:
    """A key and what goes with it, what is tampered with, and whether the target is of joined parts."""

    curve: type[ec.EllipticCurve]
    encrypted: bool
    certificates: int
    tampered: str
    joined: bool


def build_case(seed: int) -> SigningCase:
    """Makes a case from its seed."""
    draw = random.Random(seed)
    return SigningCase(
        draw.choice(CURVES), draw.random() < 0.5, draw.choice(LENGTHS), draw.choice([*TAMPERING]), draw.random() < 0.5
    )


def check_signing(first: int, directory: Path) -> list[str]:
    """Return where reshard and model-signing disagree, in sentences."""
    directory.mkdir(parents=True)
    with SigningJudge(directory / "model_signing.log") as judge:
        return check_seeds(range(first, first + CASES), directory, lambda seed, place: _check(seed, place, judge))


def _check(seed: int, place: Path, judge: SigningJudge) -> Iterator[str]:
    drawn, random_ = build_case(seed), random.Random(seed)
    place.mkdir()
    chain, root = _chain(drawn)
    key = chain[0].key if chain else new_key(drawn.curve())
    named = kept(place / "key.pem", private_pem(key, PASSPHRASE if drawn.encrypted else ""))
    secret = kept(place / "passphrase", PASSPHRASE.encode()) if drawn.encrypted else ""
    (place / "trusted.pem").write_bytes(root.pem if root else public_pem(key))
    (place / "chain.pem").write_bytes(b"".join(each.pem for each in chain))
    certificate = str(place / "chain.pem") if chain else ""
    target = place / "signed"
    signature: dict[str, Any] = {"sign": named, "sign_passphrase": secret, "sign_certificate": certificate}
    if drawn.joined:
        make = maker_of_parts(place)
        join_parts([make(0), make(1, sha256="target")], str(target), **signature)
    else:
        convert(case(7009).request(target, **signature))
    (place / "other.pem").write_bytes(authority().pem if root else public_pem(new_key()))
    yield from _compared("as it was signed", target, place, "trusted.pem", judge, right=True)
    yield from _compared("with another key", target, place, "other.pem", judge, right=False)
    tampered = shutil.copytree(target, place / "tampered")
    TAMPERING[drawn.tampered](tampered, random_)
    yield from _compared(f"{drawn.tampered} changed", tampered, place, "trusted.pem", judge, right=False)
    if chain:
        return
    # the other way round: they sign, reshard checks
    (target / "model.sig").unlink()
    ignored = [".reshard/leases"] if random_.random() < 0.5 else []
    judge.ask(
        "sign",
        model=str(target),
        key=str(place / "key.pem"),
        passphrase=PASSPHRASE if drawn.encrypted else "",
        ignored=ignored,
    )
    yield from _compared("signed by model-signing", target, place, "trusted.pem", judge, right=True)
    if sign(target, key=named, passphrase=secret or None).signed_now:
        yield "reshard signs again what model-signing has signed with the same key"
    TAMPERING[drawn.tampered](target, random_)
    yield from _compared(
        f"signed by model-signing, {drawn.tampered} changed", target, place, "trusted.pem", judge, right=False
    )


def _chain(drawn: SigningCase) -> tuple[list[Certified], Certified | None]:
    """The certificates that are signed with, leaf first, and the one that is trusted."""
    if not drawn.certificates:
        return [], None
    if drawn.certificates == 1:
        alone = owner(None, key=new_key(drawn.curve()))
        return [alone], alone
    root = authority()
    above = [authority("middle", root)] if drawn.certificates == 3 else []
    leaf = owner(above[0] if above else root, key=new_key(drawn.curve()))
    return [leaf, *above], root


def _compared(what: str, target: Path, place: Path, trusted: str, judge: SigningJudge, *, right: bool) -> Iterator[str]:
    pem = place / trusted
    operation = "verify_certificate" if b"CERTIFICATE" in pem.read_bytes() else "verify_key"
    arguments = {"trusted" if operation == "verify_certificate" else "key": str(pem)}
    try:
        judge.ask(operation, model=str(target), **arguments)
        theirs = "right"
    except RefusalError as refusal:
        theirs = str(refusal)
    try:
        problems = verify(target, signed_by=pem).problems
    except InputError as error:  # without its manifest it is not a target
        problems = (str(error),)
    if (theirs == "right") is not right:
        yield f"{what}: model-signing says {theirs}"
    if (not problems) is not right:
        yield f"{what}: reshard says {problems or 'right'}"
