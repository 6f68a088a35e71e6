"""Prefect flows, one a file: compositions of tasks."""
