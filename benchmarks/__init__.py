"""How fast reshard is, in how much memory, and against whom: `make bench`; README.md explains. Not installed."""
