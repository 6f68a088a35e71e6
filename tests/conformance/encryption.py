"""Encrypted files between MindSpore and reshard: each side reads what the other wrote, in every mode."""

import base64
import os
from pathlib import Path

from reshard.core.conversion.convert import convert
from reshard.core.errors import ReshardError
from reshard.core.request.conversion import build_request
from reshard.core.runtime.keys import EncryptionMode
from tests.conformance.mindspore_process import Judge, RefusalError

_KEY_BYTES = {
    EncryptionMode.AES_GCM: (16, 24, 32),
    EncryptionMode.AES_CBC: (16, 24, 32),
    EncryptionMode.SM4_CBC: (16,),
}
_LARGE_FLOATS = 5 << 18
"""5 MiB: more than one block of those that reshard writes, and no whole number of them."""


def check_encryption(judge: Judge, directory: Path) -> list[str]:
    """What is wrong, a line for each mode and length of key: MindSpore saves, reshard converts, MindSpore loads."""
    cases = [(mode, length) for mode, lengths in _KEY_BYTES.items() for length in lengths]
    lines = []
    for mode, length in cases:
        place = directory / f"{mode}_{length}"
        place.mkdir(parents=True)
        try:
            wrong = _check(judge, place, mode, "k" * length)
        except (RefusalError, ReshardError) as error:
            wrong = str(error)
        if wrong:
            lines.append(f"{mode} with a key of {length} bytes: {wrong}")
    return lines


def _check(judge: Judge, place: Path, mode: EncryptionMode, key: str) -> str:
    """Source and target have keys of their own, or what is not decrypted at all might pass for right."""
    count = _LARGE_FLOATS if len(key) == min(_KEY_BYTES[mode]) else 1000
    # of letters, for the way to MindSpore's process is text
    arrays = {
        "many": ("Float32", (count,), base64.b64encode(os.urandom(3 * count))),
        "odd": ("Int8", (3, 7), os.urandom(21)),
    }
    parameters = [{"name": name, "data": {"$array": array}} for name, array in arrays.items()]
    keys = {"enc_key": key.encode(), "enc_mode": str(mode)}
    (place / "source").mkdir()
    judge.call(place, "save_checkpoint", repr(([parameters, "source/whole.ckpt"], keys)))
    (place / "old_key").write_text(key)
    (place / "new_key").write_text(key[::-1].upper())
    request = build_request(
        source=str(place / "source"),
        target=str(place / "target"),
        decrypt_key=f"file:{place}/old_key",
        decrypt_mode=str(mode),
        encrypt_key=f"file:{place}/new_key",
        encrypt_mode=str(mode),
    )
    convert(request)
    keys = {"dec_key": key[::-1].upper().encode(), "dec_mode": str(mode)}
    answer = judge.call(place, "load_checkpoint", repr((["target/rank_0/checkpoint_0.ckpt"], keys)))
    if "value" not in answer:
        return f"MindSpore does not load it: {answer}"
    found = {name: value["$array"] for name, value in answer["value"].items()}
    return "" if found == arrays else f"MindSpore loads it differently: {sorted(found)}"
