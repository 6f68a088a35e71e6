"""The functions in async programs: in a thread, cancelled with their task."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from threading import Event
from typing import ParamSpec, TypeVar

from reshard.core.errors import StoppedError
from reshard.listening import cancelled_by

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


async def to_thread(
    function: Callable[_Arguments, _Result], /, *args: _Arguments.args, **kwargs: _Arguments.kwargs
) -> _Result:
    """Call one of reshard's functions in a thread of its own, as `asyncio.to_thread` does, and await its result.

    If the task is cancelled, so is the work: the task ends when nothing is read or written any more. A conversion or a
    join that is called again resumes. The task waits for functions that take no `cancel`.
    """
    import asyncio  # programs without it are not to load it

    cancel = Event()

    def call() -> _Result:
        with cancelled_by(cancel):
            return function(*args, **kwargs)

    pool = ThreadPoolExecutor(1, thread_name_prefix="reshard-async")
    work = pool.submit(copy_context().run, call)
    pool.shutdown(wait=False)
    ended, loop = asyncio.Event(), asyncio.get_running_loop()
    work.add_done_callback(lambda _: loop.call_soon_threadsafe(ended.set))
    cancelled: asyncio.CancelledError | None = None
    while not ended.is_set():
        try:
            await ended.wait()
        except asyncio.CancelledError as error:
            cancelled = error
            cancel.set()
    if cancelled is None:
        return work.result()
    failure = work.exception()
    raise cancelled from (None if isinstance(failure, StoppedError) else failure)
