"""The reshard library: converts distributed MindSpore checkpoints between sharding strategies.

Knows nothing of Prefect or MindSpore. `core.convert` is the whole conversion; the other modules are its parts.
"""

__version__ = "0.1.0"
