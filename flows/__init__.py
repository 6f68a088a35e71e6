"""Prefect flows, one a file: compositions of tasks."""

import reshard.tasks  # noqa: F401  # before Prefect is imported: switches its telemetry off
