"""The width of texts in cells of a terminal, and texts made shorter."""

import re
import unicodedata

ELLIPSIS = "…"
_LONG = 8
_DIGIT = re.compile(r"\d")
_NUMBERS = re.compile(r"\d[\d,-]*")


def cell_count(text: str) -> int:
    """Return the number of a terminal's cells that a text fills."""
    return len(text) if text.isascii() else sum(map(_width, text))


def _width(character: str) -> int:
    # marks above and below letters, and the later parts of a Korean syllable
    if unicodedata.category(character) in ("Mn", "Mc", "Me") or "\u1160" <= character <= "\u11ff":
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def shortened(text: str, width: int, mark: str = ELLIPSIS) -> str:
    """Shorten a text in its middle to a width; of a list of numbers, whole ones are left out."""
    if cell_count(text) <= width:
        return text
    if len(text) > _LONG * width:  # the best place for a cut is not looked for in a megabyte
        text = f"{text[: 2 * width]}{text[-2 * width :]}"
    if _NUMBERS.fullmatch(text):
        first, last = text.split(","), text.rpartition(",")[2]
        while len(first) > 1:
            first.pop()
            if len(shorter := f"{','.join(first)},{mark},{last}") <= width:
                return shorter
        return text
    surplus = cell_count(text) - width + len(mark)
    for count in range(surplus if text.isascii() else surplus // 2, len(text)):
        start = _cut(text, count)
        shorter = f"{text[:start]}{mark}{text[start + count :]}"
        if cell_count(shorter) <= width:
            return shorter
    return mark


def _cut(text: str, count: int) -> int:
    """Return where to take so many characters out of a text: near its middle, and no digits if possible."""
    middle = (len(text) - count) // 2
    starts = sorted(range(len(text) - count + 1), key=lambda start: abs(start - middle))
    return next((start for start in starts if not _DIGIT.search(text, start, start + count)), middle)
