"""Storages: URLs, range reads, uploads, leases, atomic publishing."""
