"""Indexes of many remote files with few requests."""
