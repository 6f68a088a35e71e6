"""Prefect tasks, one for each unit of work: thin, over the steps of reshard.core.conversion.

Importing this package switches Prefect's telemetry off for this process and those that it starts. Every part of reshard
that uses Prefect imports it first, because Prefect's own import already sends an event from a terminal.
"""

import os

TELEMETRY_OFF = {
    # the events of Prefect's client: first import, flow, run, deployment
    "DO_NOT_TRACK": "1",
    # the reports of servers that are started from here
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
}
"""Environment variables; one that the user has set is left as it is."""

for _name, _value in TELEMETRY_OFF.items():
    os.environ.setdefault(_name, _value)
