"""Signatures over digests of files: keys, certificates, envelopes and bundles; no checkpoint, no storage."""
