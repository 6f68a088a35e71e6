"""Secrets never travel in URLs: those end in logs, records, artifacts and Prefect's database."""

import re

# secrets may hold slashes, as those of S3 do; digits before the first one are a port
_CREDENTIALS = re.compile(r"://[^/@]*:(?!\d+/)[^@]*@")

ADVICE = (
    "a URL must not carry credentials (user:password@): they would end in logs and records. "
    "Give them through the environment or the storage's own configuration"
)


def carries_credentials(url: str) -> bool:
    """Whether a URL has a user and a password in it."""
    return _CREDENTIALS.search(url) is not None
