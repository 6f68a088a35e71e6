"""How closely the files of a target are checked."""

from enum import StrEnum


class VerifyLevel(StrEnum):
    """How closely the result is checked before it is published."""

    NONE = "none"
    STRUCTURE = "structure"
    CHECKSUM = "checksum"
    CONTENT = "content"

    @property
    def of_files(self) -> "VerifyLevel":
        """The closest check of single files; contents are compared when all files are there."""
        return VerifyLevel.CHECKSUM if self is VerifyLevel.CONTENT else self

    def is_below(self, other: "VerifyLevel") -> bool:
        """True if this level checks less closely than `other`."""
        levels = list(VerifyLevel)
        return levels.index(self) < levels.index(other)
