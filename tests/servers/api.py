"""The real API behind a real socket: uvicorn in a thread, on loopback, on a free port."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI

START_TIMEOUT_S = 30.0


@contextmanager
def running_api(app: FastAPI) -> Iterator[str]:
    """The base URL. The app's lifespan runs in the server's thread; its errors end the start."""
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_config=None, lifespan="on", timeout_graceful_shutdown=5)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, name="api")
    thread.start()
    try:
        yield f"http://127.0.0.1:{_port(server, thread)}"
    finally:
        server.should_exit = True
        thread.join()


def _port(server: uvicorn.Server, thread: threading.Thread) -> int:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not server.started:
        if not thread.is_alive() or time.monotonic() > deadline:
            raise RuntimeError("the API did not start")
        time.sleep(0.01)
    return int(server.servers[0].sockets[0].getsockname()[1])
