"""The flows as Prefect deploys or serves them."""

import reshard.tasks  # noqa: F401  # before Prefect is imported: switches its telemetry off
