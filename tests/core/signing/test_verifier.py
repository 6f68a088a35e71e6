"""Who is trusted: keys, or certificates that lead to those given."""

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, ObjectIdentifier

from reshard.core.errors import InputError, SignatureError
from reshard.core.signing.curves import hint_of
from reshard.core.signing.verifier import Identity, Material, parse_verifier
from tests.support.signing import ENCIPHERS, Certified, authority, new_key, owner, private_pem, public_pem


def identified(trusted: bytes, *chain: Certified) -> Identity:
    material = Material(certificates=tuple(each.certificate for each in chain))
    return parse_verifier(trusted, "trusted.pem").identify(material, "model.sig")


def refused(trusted: bytes, *chain: Certified) -> str:
    with pytest.raises(SignatureError) as caught:
        identified(trusted, *chain)
    return str(caught.value)


def test_a_chain_to_an_authority() -> None:
    root = authority()
    middle = authority("middle", root)
    leaf = owner(middle)
    found = identified(authority("unrelated").pem + root.pem, leaf, middle)
    assert (found.subject, found.hint, found.notes) == ("CN=release", hint_of(leaf.key.public_key()), ())
    assert identified(root.pem, leaf, middle, root).subject == "CN=release"
    assert identified(middle.pem, leaf).subject == "CN=release"


def test_a_root_may_have_an_rsa_key_the_signer_not() -> None:
    key = rsa.generate_private_key(65537, 2048)
    root = authority(key=key)
    assert identified(root.pem, owner(root)).subject == "CN=release"
    assert "its certificate: is an RSA key" in refused(root.pem, owner(root, key=key))


def test_the_signing_certificate_itself() -> None:
    alone = owner(None)
    assert identified(alone.pem, alone).subject == "CN=release"
    assert "does not lead to a certificate that is trusted" in refused(owner(None).pem, alone)
    # a certificate that is not an authority vouches for nobody else
    assert "does not lead" in refused(alone.pem, owner(alone, "guest"))


ROOT = authority()
UNKNOWN = ((x509.UnrecognizedExtension(ObjectIdentifier("1.3.6.1.4.1.99999.1"), b"\x05\x00"), True),)
NOT_TRUSTED = {
    "another root": (authority("other"), lambda: (owner(ROOT),)),
    "same name, another key": (authority(), lambda: (owner(ROOT),)),
    "middle missing": (ROOT, lambda: (owner(authority("middle", ROOT)),)),
    "issuer is no authority": (ROOT, lambda: chained(owner(ROOT, "middle"))),
    "issuer does not say": (ROOT, lambda: chained(owner(ROOT, "middle", is_authority=None))),
    "issuer may not sign certificates": (ROOT, lambda: chained(authority("middle", ROOT, usage=ENCIPHERS))),
    "issuer had expired": (ROOT, lambda: chained(authority("middle", ROOT, days=(-90, -20)))),
    "issuer begins later": (ROOT, lambda: chained(authority("middle", ROOT, days=(-5, 20)))),
    "unknown critical extension": (ROOT, lambda: chained(authority("middle", ROOT, extensions=UNKNOWN))),
}


def chained(middle: Certified) -> tuple[Certified, Certified]:
    return owner(middle), middle


@pytest.mark.parametrize(("trusted", "chain"), NOT_TRUSTED.values(), ids=NOT_TRUSTED)
def test_chains_that_lead_nowhere(trusted: Certified, chain) -> None:
    said = refused(trusted.pem, *chain())
    assert said.startswith("model.sig: signed with the certificate of CN=release, issued by CN=")
    assert "which does not lead to a certificate that is trusted here: " in said


def test_the_length_of_a_path() -> None:
    root = authority(path_length=0)
    middle = authority("middle", root)
    assert "does not lead" in refused(root.pem, owner(middle), middle)


def test_a_certificate_that_may_not_sign() -> None:
    assert "CN=release may not sign: neither digitalSignature" in refused(ROOT.pem, owner(ROOT, usage=ENCIPHERS))
    assert "may not sign" in refused(ROOT.pem, owner(ROOT, usage=None))
    for_code = ((x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING]), False),)
    assert identified(ROOT.pem, owner(ROOT, usage=None, extensions=for_code)).subject == "CN=release"


def test_a_certificate_that_has_expired_since_is_noted() -> None:
    root = authority(days=(-100, 10))
    leaf = owner(root, days=(-90, -20))
    (note,) = identified(root.pem, leaf).notes
    assert note.startswith("the certificate of CN=release expired on ")
    assert "does not prove when" in note


def test_keys() -> None:
    first, second, other = new_key(), new_key(ec.SECP384R1()), new_key()
    verifier = parse_verifier(public_pem(first) + public_pem(second), "trusted.pem")
    hints = [hint_of(key.public_key()) for key in (first, second, other)]
    assert [verifier.identify(Material(hint), "model.sig").hint for hint in hints[:2]] == hints[:2]
    with pytest.raises(SignatureError) as caught:
        verifier.identify(Material(hints[2]), "model.sig")
    assert str(caught.value) == f"model.sig: signed by another key: SHA-256 {hints[2]}, not {hints[0]} or {hints[1]}"
    with pytest.raises(SignatureError, match="signed by another key: one that it does not name"):
        verifier.identify(Material(), "model.sig")
    assert parse_verifier(public_pem(first), "trusted.pem").identify(Material(), "model.sig").hint == hints[0]


def test_a_key_confirms_a_signature_with_its_certificate_but_no_certificate_confirms_a_bare_key() -> None:
    leaf = owner(ROOT)
    assert identified(public_pem(leaf.key), leaf).hint == hint_of(leaf.key.public_key())
    assert "signed by another key: SHA-256" in refused(public_pem(new_key()), leaf)
    with pytest.raises(
        SignatureError, match="without a certificate, which trusted.pem cannot confirm: give the public"
    ):
        parse_verifier(ROOT.pem, "trusted.pem").identify(Material("ab"), "model.sig")


REFUSED = {
    "private": (private_pem(new_key()), "is a private key: signatures are checked with the public one"),
    "both": (
        public_pem(new_key()) + ROOT.pem,
        "must have either public keys or certificates, but has PUBLIC KEY, CERT",
    ),
    "rsa": (public_pem(rsa.generate_private_key(65537, 2048)), "is an RSA key"),
    "curve": (public_pem(new_key(ec.SECP256K1())), "its curve is secp256k1"),
    "damaged key": (public_pem(new_key()).replace(b"M", b"N", 1), "the public key is damaged"),
    "damaged certificate": (ROOT.pem.replace(b"M", b"N", 1), "a certificate is damaged"),
    "many": (ROOT.pem * 1025, "has 1025 certificates, more than 1024"),
    "neither": (b"hello", "is not PEM"),
}


@pytest.mark.parametrize(("content", "expected"), REFUSED.values(), ids=REFUSED)
def test_trust_that_is_refused(content: bytes, expected: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_verifier(content, "trusted.pem")
    assert str(caught.value).startswith(f"trusted.pem: {expected}")
