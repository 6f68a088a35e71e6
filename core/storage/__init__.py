"""Storages: URLs through fsspec, range reads, uploads, leases, atomic publishing."""
