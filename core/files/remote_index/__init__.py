"""Indexes many remote files with few requests."""
