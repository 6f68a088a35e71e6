"""Encrypted checkpoint files, read and written like the plain files inside."""
