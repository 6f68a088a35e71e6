"""Checks of a finished conversion against what was recorded of it."""
