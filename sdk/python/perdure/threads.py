"""Threads for functions that block. They are daemons, so a function that does not end can't keep a process alive."""

from __future__ import annotations

import concurrent.futures
import queue
import threading
from typing import Any, Callable


class Threads(concurrent.futures.Executor):
    """Calls functions in at most so many threads, which are kept for the next calls."""

    def __init__(self, most: int, name: str):
        self._most, self._name = most, name
        self._queue: "queue.SimpleQueue[Any]" = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._idle = self._count = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "concurrent.futures.Future[Any]":
        future: "concurrent.futures.Future[Any]" = concurrent.futures.Future()
        with self._lock:
            if self._idle:
                self._idle -= 1
            elif self._count < self._most:
                self._count += 1
                threading.Thread(target=self._work, name=self._name, daemon=True).start()
        self._queue.put((future, fn, args, kwargs))
        return future

    def _work(self) -> None:
        while True:
            future, fn, args, kwargs = self._queue.get()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(fn(*args, **kwargs))
                except BaseException as e:
                    future.set_exception(e)
            del future, fn, args, kwargs
            with self._lock:
                self._idle += 1
