"""The process of the embedded server, started by its path because it imports nothing of reshard.

It inherits its socket, and ends with its standard input, even if its parent process was killed.
"""

import gc
import os
import socket
import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastapi import FastAPI


def _serve(listening: socket.socket) -> None:
    import uvicorn

    gc.disable()  # a million objects are made that stay: searching them repeatedly takes a fifth of the start
    config = uvicorn.Config(_application, factory=True, log_level="error", lifespan="on")
    server = uvicorn.Server(config)

    def end_with_the_input() -> None:
        os.read(sys.stdin.fileno(), 1)
        server.should_exit = True

    threading.Thread(target=end_with_the_input, daemon=True).start()
    server.run(sockets=[listening])


def _application() -> "FastAPI":
    from prefect.server.api.server import create_app

    application = create_app(ephemeral=True)
    gc.freeze()
    gc.enable()
    return application


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
