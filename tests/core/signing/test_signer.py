"""Keys that sign are looked up by name, refused by name, and never shown."""

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from reshard.core.errors import InputError
from reshard.core.signing.signer import Signer, load_signer
from reshard.core.signing.verifier import Material, parse_verifier
from tests.support.signing import authority, kept, new_key, owner, private_pem, public_pem

PASSPHRASE = "open sesame"


def refusal(key: str, passphrase: str = "", certificate: bytes | None = None) -> str:
    with pytest.raises(InputError) as caught:
        load_signer(key, passphrase, certificate)
    error: BaseException | None = caught.value
    while error:  # nor does what caused it show a secret
        assert PASSPHRASE not in str(error)
        assert "PRIVATE KEY--" not in str(error)
        error = error.__cause__
    return str(caught.value)


@pytest.mark.parametrize("curve", [ec.SECP256R1(), ec.SECP384R1(), ec.SECP521R1()], ids=lambda curve: curve.name)
@pytest.mark.parametrize("form", [PrivateFormat.PKCS8, PrivateFormat.TraditionalOpenSSL], ids=["pkcs8", "sec1"])
@pytest.mark.parametrize("passphrase", ["", PASSPHRASE])
def test_what_a_key_signs_its_public_key_confirms(tmp_path: Path, curve, form, passphrase: str) -> None:
    key = new_key(curve)
    named = kept(tmp_path / "key.pem", private_pem(key, passphrase, form))
    secret = kept(tmp_path / "passphrase", passphrase.encode() + b"\n") if passphrase else ""
    signer = load_signer(named, secret)
    identity = parse_verifier(public_pem(key), "public.pem").identify(Material(signer.hint), "model.sig")
    identity.check(signer.sign(b"files"), b"files", "model.sig")
    with pytest.raises(InputError, match=r"model.sig: the signature is not valid"):
        identity.check(signer.sign(b"files"), b"other files", "model.sig")


def test_a_key_of_the_environment_or_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    pem = private_pem(new_key()).decode()
    monkeypatch.setenv("SIGNING_KEY", pem)
    from_block = load_signer("block:signing", resolvers={"block": {"signing": pem}.__getitem__})
    assert load_signer("env:SIGNING_KEY").hint == from_block.hint
    assert "BEGIN" not in repr(from_block)


def test_the_curve_that_openssl_writes_before_a_key_is_passed_over(tmp_path: Path) -> None:
    parameters = b"-----BEGIN EC PARAMETERS-----\nBggqhkjOPQMBBw==\n-----END EC PARAMETERS-----\n"
    pem = private_pem(new_key(), form=PrivateFormat.TraditionalOpenSSL)
    assert isinstance(load_signer(kept(tmp_path / "key.pem", parameters + pem)), Signer)


RSA = rsa.generate_private_key(65537, 2048)
REFUSED = {
    "rsa": (private_pem(RSA), "is an RSA key; signatures take elliptic curve keys: P-256, P-384 or P-521"),
    "old rsa": (private_pem(RSA, form=PrivateFormat.TraditionalOpenSSL), "is an RSA key"),
    "ed25519": (private_pem(ed25519.Ed25519PrivateKey.generate()), "is an Ed25519 key"),
    "curve": (private_pem(new_key(ec.SECP256K1())), "its curve is secp256k1; signatures take P-256, P-384 or P-521"),
    "public": (public_pem(new_key()), "is a public key; the private one signs"),
    "certificate": (authority().pem, "is a certificate; the private key signs"),
    "der": (new_key().private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption()), "is DER, not PEM"),
    "several": (private_pem(new_key()) * 2, "has 2 private keys: keep one"),
    "openssh": (private_pem(new_key(), form=PrivateFormat.OpenSSH), "is a key in the format of OpenSSH"),
    "encrypted": (private_pem(new_key(), PASSPHRASE), "is encrypted: name its passphrase with 'sign_passphrase'"),
    "token": (b"pkcs11:token=x;object=y", "is the URI of a PKCS#11 token, which is not supported"),
    "text": (b"hunter2", "is not PEM: there is no line -----BEGIN"),
    "damaged": (private_pem(new_key()).replace(b"M", b"N", 3), "is damaged"),
    "large": (b"-" * (2**20 + 1), "cannot be read: has more than 1048576 bytes"),
    "other": (
        b"-----BEGIN DH PARAMETERS-----\nAA==\n-----END DH PARAMETERS-----\n",
        "has no private key, but DH PARAM",
    ),
}


@pytest.mark.parametrize(("content", "expected"), REFUSED.values(), ids=REFUSED)
def test_keys_that_are_refused(tmp_path: Path, content: bytes, expected: str) -> None:
    named = kept(tmp_path / "key.pem", content)
    assert refusal(named).startswith(f"{named}: {expected}")


def test_a_wrong_passphrase(tmp_path: Path) -> None:
    named = kept(tmp_path / "key.pem", private_pem(new_key(), PASSPHRASE))
    wrong = kept(tmp_path / "wrong", b"open barley")
    assert refusal(named, wrong) == f"{named}: the passphrase {wrong} is wrong, or the key is damaged"
    plain = kept(tmp_path / "plain.pem", private_pem(new_key()))
    assert refusal(plain, wrong) == f"{plain}: is not encrypted, but {wrong} is named as its passphrase: name none"


def test_a_key_itself_in_place_of_its_name_is_not_repeated() -> None:
    said = refusal(private_pem(new_key()).decode())
    assert said.startswith("the name of a key must be env:NAME, file:PATH or block:NAME")


def test_certificates_are_the_keys_own_leaf_first(tmp_path: Path) -> None:
    middle = authority("middle", authority())
    certified = owner(middle)
    named = kept(tmp_path / "key.pem", private_pem(certified.key))
    signer = load_signer(named, certificate=certified.chain_pem)
    assert signer.subject == "CN=release"
    assert signer.text == f"CN=release, the key with SHA-256 {signer.hint}"
    assert refusal(named, certificate=owner(middle, "other").pem).startswith(
        "the certificate: the certificate of CN=other is not that"
    )
    assert "CN=middle may not sign" in refusal(named, certificate=middle.pem)
    assert "must have certificates only, but has PRIVATE KEY" in refusal(named, certificate=private_pem(new_key()))
