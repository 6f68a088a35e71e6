"""Guesses from a file's first bytes what it is, if it was given as a strategy and is none."""

START_BYTES = 16
"""Number of bytes needed for a guess."""

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
    """Name the kind of file that begins with `start`; None if it may be a strategy or is unknown."""
    # first of all: a safetensors file begins with its header's length, whose bytes may look like any other kind
    if start[8:9] == b"{" and start[7:8] == b"\0":
        return "a checkpoint (.safetensors)"
    return next((kind for magic, kind in _STARTS.items() if start.startswith(magic)), None)


def guess_suffix(start: bytes) -> str:
    """Complete a sentence "… is not a strategy" with a guess at what it is, if there is one."""
    kind = guess_other_kind(start)
    return f"; it looks like {kind}" if kind else ""
