"""Text from file names and contents, made safe for logs, JSON and databases."""


def utf8_text(text: str) -> str:
    """Escapes lone surrogates, which UTF-8 cannot encode: a file name may be any bytes, and Python keeps them so."""
    return text.encode(errors="backslashreplace").decode()
