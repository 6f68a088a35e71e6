"""Leases: which run works on which ranks of a target. A lease is a small file that its holder locks or rewrites."""
