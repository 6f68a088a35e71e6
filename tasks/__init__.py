"""Prefect tasks, one for each unit of work: thin, over the steps of reshard.core.conversion."""
