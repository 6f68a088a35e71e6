"""Requests as pydantic models: the one definition behind the command line, forms and programs."""
