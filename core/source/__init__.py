"""A source opened and examined: damage, integrated saves, findings, diagnosis, recovery."""
