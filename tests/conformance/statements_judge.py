"""in-toto's own messages and securesystemslib's envelopes, in a process of its own; `answering` calls its `OPERATIONS`.

Run by the Python of model-signing's environment. It knows nothing of reshard, so that their agreement means something.
"""

import json
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.serialization import load_pem_public_key
from google.protobuf import json_format
from in_toto_attestation.predicates.provenance.v1 import provenance_pb2
from in_toto_attestation.v1 import statement_pb2
from in_toto_attestation.v1.resource_descriptor import ResourceDescriptor
from in_toto_attestation.v1.statement import Statement
from securesystemslib.dsse import Envelope
from securesystemslib.signer import SSlibKey


def statement(path: str) -> dict[str, Any]:
    """Parse a statement strictly, and return what its messages say."""
    found = _parsed(Path(path).read_text())
    return {
        "type": found.predicate_type,
        "subjects": {subject.name: dict(subject.digest) for subject in found.subject},
    }


def provenance(path: str) -> dict[str, Any]:
    """Parse SLSA's predicate strictly, with no field that it does not have."""
    found = _parsed(Path(path).read_text())
    text = json_format.MessageToJson(found.predicate)
    predicate = json_format.Parse(text, provenance_pb2.Provenance())
    definition, run = predicate.build_definition, predicate.run_details
    for each in definition.resolved_dependencies:
        ResourceDescriptor.copy_from_pb(each).validate()
        assert each.uri or each.digest, each  # by the specification, more than `validate` asks for
    return {
        "build_type": definition.build_type,
        "dependencies": {each.name: [each.uri, dict(each.digest)] for each in definition.resolved_dependencies},
        "source": dict(definition.external_parameters)["source"],
        "seconds": run.metadata.finished_on.ToSeconds() - run.metadata.started_on.ToSeconds(),
        "versions": dict(run.builder.version),
    }


def envelope(path: str, key: str) -> dict[str, Any]:
    """Verify an envelope with a public key, and parse the statement in it."""
    found = Envelope.from_dict(json.loads(Path(path).read_text()))
    public = load_pem_public_key(Path(key).read_bytes())
    [keyid] = found.signatures
    accepted = found.verify([SSlibKey.from_crypto(public, keyid=keyid)], 1)
    _parsed(found.payload.decode())
    return {"accepted": list(accepted), "payload_type": found.payload_type}


def _parsed(text: str) -> statement_pb2.Statement:
    found: statement_pb2.Statement = json_format.Parse(text, statement_pb2.Statement())
    Statement.copy_from_pb(found).validate()
    return found


OPERATIONS = {"statement": statement, "provenance": provenance, "envelope": envelope}
