"""Suggests known words in place of an unknown one."""

from collections.abc import Iterable, Mapping

_CUTOFF = 0.6
_CERTAIN = 0.95
"""One letter more or less in a word of ten; then no other word is meant."""
_MIN_PART = 2


def close_words(word: str, known: Iterable[str], count: int = 2) -> list[str]:
    """Return the known words most similar to `word`, or else those that contain it.

    Capitals and hyphens do not matter.
    """
    from difflib import SequenceMatcher, get_close_matches

    spellings: dict[str, str] = {}
    for each in known:
        spellings.setdefault(_plain(each), each)
    plain = _plain(word)
    near = get_close_matches(plain, spellings, count, _CUTOFF)
    if near and SequenceMatcher(None, near[0], plain).ratio() >= _CERTAIN:
        near = near[:1]
    found = [spellings[each] for each in near]
    if found or len(plain) < _MIN_PART:
        return found
    return [spelling for each, spelling in spellings.items() if plain in each][:count]


def did_you_mean(word: str, known: Iterable[str], others: Mapping[str, str] | None = None) -> str:
    """Format a suggestion of known words, to append to a message; empty if there is none.

    `others`: usual words for known ones, such as `bf16` for `bfloat16`.
    """
    usual = (others or {}).get(_plain(word))
    found = [usual] if usual else close_words(word, known)
    return f"; did you mean {' or '.join(found)}?" if found else ""


def _plain(word: str) -> str:
    return word.lower().replace("-", "_")
