"""Options of joining parts, stages converted one by one, into one checkpoint."""

from pydantic import Field

from reshard.core.options.fields import RequiredUrl, SharedParameters, StorageName, Url
from reshard.core.request.target import Sha256Level, TargetSignature


class JoinRequest(TargetSignature):
    """Join pipeline stages that were converted separately into one checkpoint."""

    parts: list[RequiredUrl] = Field(
        min_length=1, description="The directories that conversions of single stages made."
    )
    target: RequiredUrl = Field(description="The directory to create; it appears only when it is complete.")
    shared_parameters: SharedParameters = Field(
        default="fail",
        description="If copies of a tied parameter, such as an embedding, differ between parts, which one to use. "
        "first: the first stage's; a number: that stage's; fail: stop.",
    )
    sha256: Sha256Level = Field(
        default=Sha256Level.NONE,
        title="SHA-256",
        description="target, source: record the SHA-256 of every file, and of those of the parts, compared with what "
        "the parts state; and write statements that continue those of the parts. A signature needs it. none: neither.",
    )
    require_signed_by: Url = Field(
        default="",
        description="Join only parts that are signed by one of these public keys, or by a certificate that one of "
        "these CAs issued: a PEM file, or its name: env:NAME, file:PATH or block:NAME. Each part's model.sig must be "
        "valid and cover every file there. Empty: a part's signature, by any key, must fit its files.",
    )
    storage: StorageName = ""

    @property
    def hashes_target(self) -> bool:
        """True if the SHA-256 of the target's files is taken."""
        return self.sha256 is not Sha256Level.NONE or bool(self.sign)
