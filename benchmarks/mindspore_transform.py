"""MindSpore's own conversion, in MindSpore's own environment: run by the benchmarks, knows nothing of them.

    python mindspore_transform.py SOURCE TARGET SOURCE_STRATEGY TARGET_STRATEGY FORMAT PROCESSES

Prints how long importing MindSpore and how long the conversion alone took, as JSON.
"""

import json
import sys
import time


def main() -> None:
    """The command."""
    source, target, source_strategy, target_strategy, format, processes = sys.argv[1:]
    started = time.perf_counter()
    import mindspore

    imported = time.perf_counter()
    mindspore.transform_checkpoints(
        source, target, "checkpoint_", source_strategy, target_strategy, int(processes), format
    )
    ended = time.perf_counter()
    print(json.dumps({"import_seconds": imported - started, "transform_seconds": ended - imported}))


if __name__ == "__main__":  # its worker processes import this file
    main()
