"""Recognizes and hides credentials in URLs and messages.

URLs and options of a run end in logs, records, artifacts and Prefect's database. So they carry no secrets: credentials
are kept elsewhere, under a name (`reshard.core.runtime.named_values`), and only the name is passed around.
"""

import re
from urllib.parse import unquote

_SECRET_NAME = (
    r"(?:[\w.-]*(?:token|signature|secret|passw(?:or)?d|credentials?|(?:api|access|account|secret|shared)[-_.]?key)"
    r"|(?:[\w.-]*[-_.])?(?:sig|auth|authorization|jwt|pwd))"
)
"""Names of URL fields that hold secrets: x-obs-security-token, accessToken, sig."""

_FIELD = re.compile(rf"((?:[?&;#]|%3f|%26){_SECRET_NAME}(?:=|%3d))[^&<>\"'\s]*", re.IGNORECASE)
# digits before the first slash are a port; secrets may contain slashes, as S3's do; IPv6 addresses contain colons
_PASSWORD = re.compile(r"://(?!\[[\da-fA-F:.]+\](?::\d+)?(?:[/?#]|$))[^/@:]*(?::(?!\d+(?:[/?#]|$))|%3[aA])[^@]*@")
# with other schemes a name before the @ is a user's (sftp), or a container's (abfs)
_LONE_TOKEN = re.compile(r"((?<![a-z\d])(?:https?|s3[an]?|obs|oss|gc?s|(?:web)?davs?)://)[^/?#@]+@", re.IGNORECASE)
_WORD = re.compile(r"\S+")
_SECRET_FIELD = re.compile(
    r"\b(x-(?:amz|obs|goog)-(?:signature|credential|security-token)|signature|sig|[a-z]*accesskeyid|stringtosign"
    r"|(?:session|security|access)_?token|password|secret)(=|\">|>)[^&<>\"'\s]+",
    re.IGNORECASE,
)
_MAX_ENCODINGS = 3
"""Rounds of percent-decoding: a URL encoded more often is meant to hide something."""

ADVICE = (
    "a URL must not carry credentials (user:password@, a token or a signature): they would end up in logs and records. "
    "Give them through the environment, the storage's own configuration, or storage options that are named"
)


_SECRET_OPTION = re.compile(r"storage|(?:^|_)key(?:_|$)|passphrase|^sign$")
"""Fields that name where a secret is kept: storage options, keys, passphrases."""


def names_secret(field: str) -> bool:
    """True if an option's value is the name of a secret: what is given there and is no name may be the secret."""
    return _SECRET_OPTION.search(field) is not None


def carries_credentials(url: str) -> bool:
    """True if a URL, or one in a chain, contains a password or a token, percent-encoded or not."""
    for _ in range(_MAX_ENCODINGS):
        if _shows_credentials(url):
            return True
        decoded = unquote(url, errors="surrogateescape")
        if decoded == url:
            return False
        url = decoded
    return _shows_credentials(url)


def _shows_credentials(url: str) -> bool:
    # bounded on both sides, every search takes a single pass, however long and odd the text
    begin, last = url.find("://"), url.rfind("@") + 1
    if begin < 0:
        return False
    return (
        _PASSWORD.search(url, begin, last) is not None
        or _LONE_TOKEN.search(url, 0, last) is not None
        or _FIELD.search(url, begin) is not None
    )


def scrubbed(text: str) -> str:
    """Replace secrets in a text by `…`: signatures and tokens of URLs, passwords of proxies."""
    if "://" in text:
        text = _WORD.sub(_without_users, text)
    return _SECRET_FIELD.sub(r"\1\2…", _FIELD.sub(r"\1…", text))


def _without_users(word: re.Match[str]) -> str:
    url = word[0]
    if not carries_credentials(url):
        return url
    last = url.rfind("@") + 1
    hidden = _LONE_TOKEN.sub(r"\1…@", _PASSWORD.sub("://…@", url[:last])) + url[last:]
    # a secret encoded more often than the patterns know cannot be located
    return hidden if _shows_credentials(url) else "…"
