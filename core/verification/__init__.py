"""Checks a finished conversion against its records."""
