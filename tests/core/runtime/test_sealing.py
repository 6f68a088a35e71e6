"""What is sealed says nothing without the key, and cannot be changed."""

import pytest

from reshard.core.errors import InputError
from reshard.core.runtime.keys import EncryptionMode, Key
from reshard.core.runtime.sealing import is_sealed, keyed_digest, seal, unseal

KEY = Key(b"0123456789abcdef", EncryptionMode.SM4_CBC, "env:KEY")
OTHER = Key(b"fedcba9876543210", EncryptionMode.SM4_CBC, "env:OTHER")
DATA = b"the embedding is 151936 rows long"


def test_it_comes_back() -> None:
    sealed = seal(DATA, KEY, "plan")
    assert is_sealed(sealed)
    assert DATA not in sealed
    assert seal(DATA, KEY, "plan") != sealed
    assert unseal(sealed, KEY, "plan", "plan.json.gz") == DATA


def test_what_is_not_sealed_stays_as_it_is_without_a_key() -> None:
    assert not is_sealed(DATA)
    assert unseal(DATA, None, "plan", "plan.json.gz") == DATA


@pytest.mark.parametrize("place", [17, 28, 29, 40, -1])
def test_a_changed_byte(place: int) -> None:
    sealed = bytearray(seal(DATA, KEY, "plan"))
    sealed[place] ^= 1
    with pytest.raises(InputError, match=r"^plan.json.gz: cannot be decrypted: env:KEY is not the key that it was"):
        unseal(bytes(sealed), KEY, "plan", "plan.json.gz")


def test_cut_short() -> None:
    sealed = seal(DATA, KEY, "plan")
    for length in range(len(b"reshard-sealed-1\n"), len(sealed)):
        with pytest.raises(InputError, match="cannot be decrypted"):
            unseal(sealed[:length], KEY, "plan", "plan.json.gz")


def test_the_wrong_key_another_mode_and_another_purpose() -> None:
    sealed = seal(DATA, KEY, "plan")
    gcm = Key(KEY.secret, EncryptionMode.AES_GCM)
    for key, purpose in ((OTHER, "plan"), (gcm, "plan"), (KEY, "record")):
        with pytest.raises(InputError, match="cannot be decrypted") as caught:
            unseal(sealed, key, purpose, "plan.json.gz")
        assert caught.value.__cause__ is None


def test_no_key_and_one_too_many() -> None:
    with pytest.raises(InputError, match="is encrypted: name the key that it was written with"):
        unseal(seal(DATA, KEY, "plan"), None, "plan", "plan.json.gz")
    with pytest.raises(InputError, match="is not encrypted, but env:KEY is named as its key"):
        unseal(DATA, KEY, "plan", "plan.json.gz")


def test_digests_are_everybodys_own() -> None:
    assert keyed_digest(DATA, KEY) == keyed_digest(DATA, KEY)
    assert len(keyed_digest(DATA, KEY)) == 32
    assert keyed_digest(DATA, KEY) != keyed_digest(DATA, OTHER)
    assert keyed_digest(DATA, KEY) != keyed_digest(DATA + b"x", KEY)
