"""The processes that MindSpore, MindFormers, torch, DeepSpeed and others judge in, as seen from here."""

import ast
import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.checkpoints import Contents
from tests.support.places import PROJECT

PYTHON = PROJECT / ".venv-mindspore" / "bin" / "python"
TORCH_PYTHON = PROJECT / ".venv-torch" / "bin" / "python"
MEGATRON_PYTHON = PROJECT / ".venv-megatron" / "bin" / "python"
SIGNING_PYTHON = PROJECT / ".venv-signing" / "bin" / "python"
MINDFORMERS_PYTHON = PROJECT / ".venv-mindformers" / "bin" / "python"
_HERE = Path(__file__).parent
# the slowest take about a second; MindSpore waits for ever for a child that died
_TIMEOUT_SECONDS = 120.0


class RefusalError(Exception):
    """A judge raised something, died or did not answer."""


class JudgeProcess:
    """Asks a judge; its process is started when it is first needed, and again after it died."""

    def __init__(self, log: Path, python: Path, script: str) -> None:
        self._log = log
        self._python = python
        self._script = script
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._stop()

    def ask(self, operation: str, **arguments: object) -> Any:
        """The result of an operation; all are JSON.

        Raises:
            RefusalError: it raised something instead, or died.
        """
        process = self._process = self._process or self._start()
        assert process.stdin
        assert process.stdout
        watchdog = threading.Timer(_TIMEOUT_SECONDS, self._kill)
        watchdog.start()
        try:
            process.stdin.write(json.dumps({"operation": operation, **arguments}) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            watchdog.cancel()
        if not line:
            self._stop()
            raise RefusalError(f"{self._script}: its process died or did not answer within {_TIMEOUT_SECONDS:.0f} s")
        answer = json.loads(line)
        if "refusal" in answer:
            raise RefusalError(answer["refusal"])
        return answer["result"]

    def _start(self) -> subprocess.Popen[str]:
        with self._log.open("a") as log:
            return subprocess.Popen(
                [self._python, "-P", _HERE / "answering.py", _HERE / self._script],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=os.environ | {"GLOG_v": "3"},  # MindSpore's log: errors only
                cwd=self._log.parent,  # MindFormers logs into ./output
                start_new_session=True,  # it starts processes of its own, which end with it
            )

    def _kill(self) -> None:
        if self._process:
            os.killpg(self._process.pid, signal.SIGKILL)

    def _stop(self) -> None:
        if self._process:
            self._kill()
            self._process.communicate()
            self._process = None


class Judge(JudgeProcess):
    """Asks MindSpore."""

    def __init__(self, log: Path) -> None:
        super().__init__(log, PYTHON, "judge.py")

    def save(self, contents: dict[Path, Contents], text: dict[str, str]) -> None:
        """Saves a file for each path."""
        self.ask("save", files=[_file(path, parameters, text) for path, parameters in contents.items()])

    def transform(self, source: Path, target: Path, source_strategy: Path | None, target_strategy: Path | None) -> None:
        """Converts a checkpoint.

        Raises:
            RefusalError: MindSpore does not.
        """
        self.ask(
            "transform",
            source=str(source),
            target=str(target),
            source_strategy=source_strategy and str(source_strategy),
            target_strategy=target_strategy and str(target_strategy),
        )

    def cast(self, source: Path, target: Path, dtype: str) -> None:
        """Saves a checkpoint file's parameters in another dtype."""
        self.ask("cast", source=str(source), target=str(target), dtype=dtype)

    def merge(self, directory: Path, path: Path) -> None:
        """Merges strategy files."""
        self.ask("merge", directory=str(directory), path=str(path))

    def load(self, directory: Path) -> dict[int, dict[str, Any]]:
        """What MindSpore loads from each rank: text, or dtype, shape and SHA-256 of the bytes by name."""
        return {int(rank): entries for rank, entries in self.ask("load", directory=str(directory)).items()}

    def call(self, directory: Path, function: str, arguments: str) -> dict[str, Any]:
        """What a function of its API comes to, called in a directory; see `judge.call`.

        Raises:
            RefusalError: it has no such function, or died.
        """
        answer: dict[str, Any] = ast.literal_eval(
            self.ask("call", directory=str(directory), function=function, arguments=arguments)
        )
        return answer

    def configure(self, arguments: str, properties: Sequence[str]) -> dict[str, Any]:
        """What CheckpointConfig makes of its arguments; see `judge.configure`."""
        answer: dict[str, Any] = ast.literal_eval(
            self.ask("configure", arguments=arguments, properties=list(properties))
        )
        return answer

    def signatures(self, functions: list[str]) -> dict[str, list[list[str]]]:
        """The parameters of functions of its API: name, kind and default of each."""
        found: dict[str, list[list[str]]] = self.ask("signatures", functions=functions)
        return found


class MindFormersJudge(JudgeProcess):
    """Asks MindFormers: see the operations of `mindformers_judge`."""

    def __init__(self, log: Path) -> None:
        super().__init__(log, MINDFORMERS_PYTHON, "mindformers_judge.py")


class TransformersJudge(JudgeProcess):
    """Asks transformers: see the operations of `transformers_judge`."""

    def __init__(self, log: Path) -> None:
        super().__init__(log, TORCH_PYTHON, "transformers_judge.py")


class MegatronJudge(JudgeProcess):
    """Asks Megatron-Core: see the operations of `megatron_judge`."""

    def __init__(self, log: Path) -> None:
        super().__init__(log, MEGATRON_PYTHON, "megatron_judge.py")


class SigningJudge(JudgeProcess):
    """Asks model-signing: see the operations of `signing_judge`."""

    def __init__(self, log: Path) -> None:
        super().__init__(log, SIGNING_PYTHON, "signing_judge.py")


class FsdpJudge(JudgeProcess):
    """Asks torch's FSDP: see the operations of `fsdp_judge`."""

    def __init__(self, log: Path) -> None:
        super().__init__(log, TORCH_PYTHON, "fsdp_judge.py")


class ZeroJudge(JudgeProcess):
    """Asks DeepSpeed: see the operations of `zero_judge`."""

    def __init__(self, log: Path) -> None:
        super().__init__(log, TORCH_PYTHON, "zero_judge.py")


class UniversalJudge(JudgeProcess):
    """Asks DeepSpeed: see the operations of `universal_judge`."""

    def __init__(self, log: Path) -> None:
        super().__init__(log, TORCH_PYTHON, "universal_judge.py")


class StateDictJudge(JudgeProcess):
    """Asks torch.save: see the operations of `state_dict_judge`."""

    def __init__(self, log: Path) -> None:
        super().__init__(log, TORCH_PYTHON, "state_dict_judge.py")


def _file(path: Path, parameters: Contents, text: dict[str, str]) -> dict[str, object]:
    entries: Iterable[dict[str, object]] = (
        {"name": name, "dtype": dtype, "shape": shape, "hex": content.hex()}
        for name, (dtype, shape, content) in parameters.items()
    )
    return {"path": str(path), "parameters": list(entries), "text": text}
