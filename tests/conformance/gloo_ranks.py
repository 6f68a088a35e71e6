"""Processes of one gloo group on this machine, for judges; run by the Python of a judge's environment."""

import os
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def on_ranks(world: int, task: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What a task comes to on each rank, in processes made for it: trainings keep much of themselves in globals.

    They are forks: this process has imported what they need, and has computed nothing.
    """
    context = mp.get_context("fork")
    with tempfile.TemporaryDirectory(prefix="gloo-ranks-") as directory:
        pipes: list[Connection] = []
        processes = []
        for rank in range(world):
            here, there = context.Pipe(duplex=False)
            # not daemons: saving starts processes
            process = context.Process(target=_work, args=(rank, world, f"{directory}/store", there, task, arguments))
            process.start()
            there.close()
            pipes.append(here)
            processes.append(process)
        answers = [_receive(rank, pipe) for rank, pipe in enumerate(pipes)]
        for process in processes:
            process.join()
    failures = [answer for answer in answers if isinstance(answer, Exception)]
    if failures:
        raise failures[0]
    return answers


def _receive(rank: int, pipe: Connection) -> Any:
    try:
        return pipe.recv()
    except EOFError:
        return RuntimeError(f"rank {rank} died")


def _work(
    rank: int, world: int, store: str, answers: Connection, task: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    torch.set_num_threads(1)
    try:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
        answer = task(*arguments)
        dist.barrier()
        answers.send(answer)
    except BaseException as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        answers.send(
            RuntimeError(f"rank {rank}: {type(error).__name__}: {error} ({Path(last.filename).name}:{last.lineno})")
        )
        traceback.print_exc()
        os._exit(1)  # the others would wait for this one
