"""The command `reshard`: thin, it calls core and, for one engine, the flows."""
