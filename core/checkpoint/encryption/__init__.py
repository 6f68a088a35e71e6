"""Encrypted checkpoint files, read and written as the plain files inside."""
