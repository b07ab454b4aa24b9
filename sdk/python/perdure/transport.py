"""Calls of the server: connections, addresses, retries and problems."""

from __future__ import annotations

import http.client
import json
import random
import ssl
import threading
import time
import urllib.parse
from typing import Any, Iterator

from . import canonical
from .problems import Problem, problem_of

# With these codes nothing was changed, or the call has a key: it may be sent again.
AGAIN = {"unavailable", "unknown_outcome", "shutting_down", "too_many_requests", "storage_full", "query_timeout"}
MAX_CALL = 16 << 20


class Unreachable(Problem):
    """No address answers."""


class Answer:
    """An answer that has arrived whole."""

    def __init__(self, status: int, headers: Any, data: bytes):
        self.status, self.headers, self.data = status, headers, data

    def json(self) -> Any:
        return json.loads(self.data) if self.data else None


class Transport:
    """Sends calls to the addresses of a server. The one that answers is kept."""

    def __init__(self, addresses: list[str], key: str, *, tenant: str = "", patience: float = 30.0,
                 timeout: float = 30.0, context: ssl.SSLContext | None = None):
        if not addresses or not all(a.startswith(("http://", "https://")) for a in addresses):
            raise ValueError("%r: an address begins with http:// or https://" % (addresses,))
        self.addresses = [a.rstrip("/") for a in addresses]
        self.key, self.tenant, self.patience, self.timeout, self.context = key, tenant, patience, timeout, context
        self._at = 0
        self._local = threading.local()
        self._closed = False

    def connect(self, timeout: float, fresh: bool = False) -> tuple[http.client.HTTPConnection, str]:
        """Returns a connection of this thread to the current address, and the path before all paths."""
        address = self.addresses[self._at % len(self.addresses)]
        kept = getattr(self._local, "connection", None)
        if kept and not fresh and kept[0] == address:
            c = kept[1]
            c.timeout = timeout
            if c.sock:
                c.sock.settimeout(timeout)
            return c, kept[2]
        url = urllib.parse.urlsplit(address)
        c = http.client.HTTPSConnection(url.netloc, timeout=timeout, context=self.context) \
            if url.scheme == "https" else http.client.HTTPConnection(url.netloc, timeout=timeout)
        if not fresh:
            self.drop()
            self._local.connection = (address, c, url.path)
        return c, url.path

    def drop(self) -> None:
        kept = getattr(self._local, "connection", None)
        self._local.connection = None
        if kept:
            kept[1].close()

    def next_address(self) -> None:
        self._at += 1

    def headers(self, body: bytes | None, idempotency_key: str) -> dict[str, str]:
        out = {"Authorization": "Bearer " + self.key, "Accept": "application/json"}
        if body is not None:
            out["Content-Type"] = "application/json"
        if idempotency_key:
            out["Idempotency-Key"] = idempotency_key
        return out

    def path(self, path: str, query: dict[str, Any] | None) -> str:
        pairs = []
        if self.tenant and not path.startswith("/api/v1/workers/"):
            pairs.append(("tenant", self.tenant))
        for name, value in (query or {}).items():
            if value is not None and value != "":
                pairs.append((name, str(value).lower() if isinstance(value, bool) else str(value)))
        return path + ("?" + urllib.parse.urlencode(pairs) if pairs else "")

    def once(self, method: str, path: str, *, query: dict[str, Any] | None = None, body: bytes | None = None,
             idempotency_key: str = "", timeout: float = 0, content_type: str = "") -> Answer:
        """Makes a call once. OSError and HTTPException say that nobody has answered."""
        if body is not None and len(body) > MAX_CALL:
            raise Problem("too_large", "the call has %d bytes; at most 16 MiB are taken" % len(body), status=413)
        headers = self.headers(body, idempotency_key)
        if content_type:
            headers["Content-Type"] = content_type
        c, before = self.connect(timeout or self.timeout)
        reused = c.sock is not None
        try:
            try:
                c.request(method, before + self.path(path, query), body, headers)
                response = c.getresponse()
            except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
                if not reused or not (method == "GET" or idempotency_key):
                    raise
                self.drop()  # a kept connection was closed meanwhile
                c, before = self.connect(timeout or self.timeout)
                c.request(method, before + self.path(path, query), body, headers)
                response = c.getresponse()
            data = response.read()
        except BaseException:
            self.drop()
            raise
        if response.will_close:
            self.drop()
        return Answer(response.status, response.headers, data)

    def call(self, method: str, path: str, *, query: dict[str, Any] | None = None, body: Any = None,
             idempotency_key: str = "", timeout: float = 0, again: bool | None = None, raw: bytes | None = None,
             content_type: str = "") -> Answer:
        """Makes a call, again while it may be repeated and patience lasts. A refusal raises a Problem."""
        data = raw if raw is not None else None if body is None else canonical.dumps(body).encode()
        repeat = again if again is not None else method == "GET" or bool(idempotency_key)
        until, pause = time.monotonic() + self.patience, 0.1
        while True:
            try:
                answer = self.once(method, path, query=query, body=data, idempotency_key=idempotency_key, timeout=timeout,
                                   content_type=content_type)
                if answer.status < 400:
                    return answer
                problem = problem_of(answer.status, answer.headers, answer.data)
            except (OSError, http.client.HTTPException) as e:
                problem = Unreachable("unavailable", "%s does not answer: %s" % (self.addresses[self._at % len(self.addresses)],
                                                                                 e), status=0)
                self.next_address()
                if isinstance(e, ConnectionRefusedError):
                    pass  # nothing was sent
                elif not repeat:
                    raise problem from e
            else:
                if not (problem.code in AGAIN and repeat or problem.code == "unavailable"):
                    raise problem
                if problem.code == "shutting_down":
                    self.next_address()
            left = until - time.monotonic()
            wait = max(problem.retry_after, pause * (0.5 + random.random()))
            if left <= wait:
                raise problem
            time.sleep(wait)
            pause = min(2.0, pause * 2)

    def stream(self, path: str, query: dict[str, Any], headers: dict[str, str], silence: float) -> Iterator[bytes]:
        """Gives the lines of an answer as they come, over a connection of its own."""
        c, before = self.connect(silence, fresh=True)
        response = None
        try:
            c.request("GET", before + self.path(path, query), None, {**self.headers(None, ""), **headers})
            response = c.getresponse()
            if response.status == 204:
                return
            if response.status >= 400:
                raise problem_of(response.status, response.headers, response.read())
            for line in response:
                yield line.rstrip(b"\r\n")
            raise EOFError("the stream was cut")
        finally:
            if response:
                response.close()
            c.close()
