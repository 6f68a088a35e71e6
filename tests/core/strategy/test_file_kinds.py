import pytest

from reshard.core.strategy.file_kinds import START_BYTES, guess_other_kind, guess_suffix


@pytest.mark.parametrize(
    ("start", "kind"),
    [
        (b"\x0a\x10\x0a\x01w", "a checkpoint (.ckpt)"),
        (b"\xd9\x5e\x3a\x7f", "an encrypted checkpoint"),
        (b"version https://git-lfs", "a Git LFS pointer; fetch the file itself (git lfs pull)"),
        (b"PK\x03\x04", "a zip archive, as PyTorch saves"),
        (b"\x80\x02", "a Python pickle"),
        (b"\x0a\0\0\0\0\0\0\0{", "a checkpoint (.safetensors)"),
    ],
)
def test_known_kinds(start: bytes, kind: str) -> None:
    assert guess_other_kind(start[:START_BYTES]) == kind
    assert guess_suffix(start[:START_BYTES]) == f"; it looks like {kind}"


@pytest.mark.parametrize("start", [b"", b"\x08\x01\x12", b"something else"])
def test_strategies_and_unknown_kinds(start: bytes) -> None:
    assert guess_other_kind(start) is None
    assert guess_suffix(start) == ""
