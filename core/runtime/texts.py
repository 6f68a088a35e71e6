"""Texts for people, programs and databases, made of what files and their names hold."""


def utf8_text(text: str) -> str:
    """A text with escapes for what UTF-8 cannot hold: a file's name may be any bytes, and Python keeps them."""
    return text.encode(errors="backslashreplace").decode()
