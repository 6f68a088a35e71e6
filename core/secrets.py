"""Secrets are said by name: URLs, requests, records, logs and messages hold none.

URLs end in logs, records, artifacts and Prefect's database, and so do the options of a run. What a storage needs to be
opened is kept elsewhere, under a name, and only the name is passed around.
"""

import re

# secrets may hold slashes, as those of S3 do; digits before the first one are a port
_CREDENTIALS = re.compile(r"://[^/@]*:(?!\d+/)[^@]*@")
_SIGNATURE = re.compile(r"[?&](x-(amz|obs|goog)-signature|signature|sig)=", re.IGNORECASE)
_NAME = re.compile(r"(env|file|block):\S.*")

_USER = re.compile(r"://[^/@\s:]*:[^/@\s]*@")
_SECRET_FIELD = re.compile(
    r"\b(x-(?:amz|obs|goog)-(?:signature|credential|security-token)|signature|sig|[a-z]*accesskeyid|stringtosign"
    r"|(?:session|security)_?token|password|secret)(=|\">|>)[^&<>\"'\s]+",
    re.IGNORECASE,
)

ADVICE = (
    "a URL must not carry credentials (user:password@, or a signature): they would end in logs and records. "
    "Give them through the environment, the storage's own configuration, or storage options that are named"
)
NAME_ADVICE = (
    "must be env:NAME, file:PATH or block:NAME, which says where storage options are kept; never the options themselves"
)
KEY_ADVICE = "must be env:NAME, file:PATH or block:NAME, which says where the key is kept; never the key itself"


def carries_credentials(url: str) -> bool:
    """Whether a URL has a user and a password in it, or a signature that stands for them."""
    # from where they begin both search in one pass, however long and odd the text is
    fields = url.find("?", url.find("://") + 4)
    signed = "://" in url and fields >= 0 and _SIGNATURE.search(url, fields) is not None
    return signed or _CREDENTIALS.search(url, 0, url.rfind("@") + 1) is not None


def is_name(text: str) -> bool:
    """Whether a text is the name of storage options, or of a key, that are kept elsewhere."""
    return _NAME.fullmatch(text) is not None


def scrubbed(text: str) -> str:
    """A text of somebody else's, without the secrets that such texts may repeat: signed URLs, proxies' passwords."""
    return _SECRET_FIELD.sub(r"\1\2…", _USER.sub("://…@", text))
