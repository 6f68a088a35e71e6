"""The command `reshard`: thin, it calls core and, for flow runs, the flows."""
