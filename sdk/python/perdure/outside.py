"""Sees what the code of an agent does to the machine between its steps, for perdure.testing.

It is executed again whenever the run goes on, so what it writes is written again, and what it reads may be otherwise
then. Python tells of files, processes and connections by audit events; reads of the environment and the name of the
machine have none, so these two functions are wrapped while agents are watched.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Any, Callable, Iterable

from .agent.branch import current, inside

_EVENTS = {"os.remove": "removes", "os.rename": "renames", "os.mkdir": "makes the folder", "os.rmdir": "removes",
           "os.truncate": "writes", "subprocess.Popen": "starts the program", "os.system": "starts the program",
           "socket.gethostname": "reads the name of the machine", "socket.getaddrinfo": "looks up the address of"}
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

_lock = threading.Lock()
_watchers: dict[str, "Watch"] = {}  # by the id of the run
_hooked = False
_open = 0
_own: list[Any] = []


class Watch:
    """What the runs of a scenario did between their steps. A name in allow is not told."""

    def __init__(self, allow: Iterable[str] = ()):
        self.allow, self.seen = frozenset(allow), set[str]()

    def run(self, run_id: str) -> None:
        _watchers[run_id] = self

    def __enter__(self) -> "Watch":
        global _hooked, _open
        with _lock:
            if not _hooked:  # a hook can't be taken away
                sys.addaudithook(_event)
                _hooked = True
            _open += 1
            if _open == 1:
                _wrap()
        return self

    def __exit__(self, *_: object) -> None:
        global _open
        with _lock:
            _open -= 1
            if _open == 0:
                _unwrap()
            for run_id in [r for r, w in _watchers.items() if w is self]:
                del _watchers[run_id]


def _saw(what: str, name: str = "") -> None:
    branch = current.get()
    if branch is None or inside.get():
        return
    watch = _watchers.get(branch.ex.session.grant.get("run_id", ""))
    if watch and name not in watch.allow:
        watch.seen.add(("%s %s" % (what, name)).rstrip())


def _event(event: str, args: tuple[Any, ...]) -> None:
    if not _open:
        return
    if event == "open":
        path, mode, flags = args
        if not isinstance(path, (str, bytes)) or not isinstance(flags, int) or not flags & _WRITES:
            return
        name = os.fsdecode(path)
        if "__pycache__" not in name:  # of an import
            _saw("writes the file", name)
    elif event in _EVENTS:
        _saw(_EVENTS[event], "" if event == "socket.gethostname" else str(args[0]) if args else "")


def _wrap() -> None:
    environ = type(os.environ)
    get: Callable[..., Any] = environ.__getitem__
    uname = getattr(os, "uname", None)
    _own[:] = [get, uname]

    def getitem(self: Any, key: Any) -> Any:
        _saw("reads the environment variable", str(key))
        return get(self, key)

    environ.__getitem__ = getitem  # type: ignore[method-assign]
    if uname:
        def named() -> Any:
            _saw("reads the name of the machine")
            return uname()
        os.uname = named


def _unwrap() -> None:
    type(os.environ).__getitem__ = _own[0]  # type: ignore[method-assign]
    if _own[1]:
        os.uname = _own[1]
