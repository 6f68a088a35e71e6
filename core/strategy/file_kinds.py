"""Telling from its first bytes what a file is that was given for a strategy and is none."""

START_BYTES = 16
"""How many bytes it takes."""

_STARTS = {
    b"\x0a": "a checkpoint (.ckpt)",
    b"\xd8\x5e\x3a\x7f": "an encrypted checkpoint",
    b"\xd9\x5e\x3a\x7f": "an encrypted checkpoint",
    b"\xda\x5e\x3a\x7f": "an encrypted checkpoint",
    b"version https": "a Git LFS pointer; fetch the file itself (git lfs pull)",
    b"PK\x03\x04": "a zip archive, as PyTorch saves",
    b"\x80": "a Python pickle",
}


def guess_other_kind(start: bytes) -> str | None:
    """What a file looks like that begins with `start` and is not a strategy; None if it might be one or is unknown."""
    # before the others: a safetensors file begins with its header's length, whose bytes may be any
    if start[8:9] == b"{" and start[7:8] == b"\0":
        return "a checkpoint (.safetensors)"
    return next((kind for magic, kind in _STARTS.items() if start.startswith(magic)), None)


def guess_suffix(start: bytes) -> str:
    """The end of a sentence "… is not a strategy": what it looks like instead, if that can be told."""
    kind = guess_other_kind(start)
    return f"; it looks like {kind}" if kind else ""
