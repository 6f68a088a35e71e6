"""A judge's process: reads requests from stdin, a JSON object a line, and answers each by one.

Run as: PYTHON -P answering.py JUDGE.py, by the Python of the judge's environment. A request names one of the judge's
`OPERATIONS` and its arguments; the answer has its `result`, or the `refusal`: what it raised.
"""

import importlib.util
import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any


def main(script: str) -> None:
    """Answers until stdin ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the judge and the processes that it starts print is not an answer
    operations = _operations(script)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer: dict[str, Any] = {"result": operations[request.pop("operation")](**request)}
        except Exception as error:
            answer = {"refusal": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _operations(script: str) -> Mapping[str, Callable[..., Any]]:
    spec = importlib.util.spec_from_file_location("judge", script)
    assert spec
    assert spec.loader
    judge = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(judge)
    operations: Mapping[str, Callable[..., Any]] = judge.OPERATIONS
    return operations


if __name__ == "__main__":
    main(sys.argv[1])
