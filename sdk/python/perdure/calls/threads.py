"""Threads with their messages, chat, and the names of threads."""

from __future__ import annotations

from typing import Any, Iterator

from .. import durations, shapes
from ..durations import Duration
from .caller import Caller, fields, segment


def _thread(id: str, *rest: str) -> str:
    return "/".join(["/api/v1/threads", segment(id), *map(segment, rest)])


class Threads(Caller):
    def create_thread(self, metadata: Any = None, *, name: str = "", copy_of: str = "",
                      idempotency_key: str | None = None) -> dict[str, Any]:
        """Makes a thread. If there is a thread of this name, the answer is that one, whatever its metadata.

        With copy_of it has the messages of that thread, and its metadata unless some are given."""
        body = fields(metadata=metadata, name=name or None, copy_of=copy_of or None)
        return dict(self.send("POST", "/api/v1/threads", body,
                              idempotency_key=idempotency_key))

    def thread(self, thread_id: str) -> dict[str, Any]:
        return dict(self.get(_thread(thread_id)))

    def thread_by_name(self, name: str) -> dict[str, Any]:
        return dict(self.get("/api/v1/threads/by-name/" + segment(name)))

    def name_thread(self, thread_id: str, name: str) -> dict[str, Any]:
        """Gives a thread one more name. Repeating it changes nothing."""
        return dict(self.send("PUT", _thread(thread_id, "names", name)))

    def threads(self, **filter: Any) -> Iterator[dict[str, Any]]:
        return self.pages("/api/v1/threads", "threads", **filter)

    def change_thread(self, thread_id: str, metadata: dict[str, Any]) -> dict[str, Any]:
        """Changes the metadata: each key replaces the one that is there, and None removes it."""
        return dict(self.send("PATCH", _thread(thread_id), {"metadata": metadata}))

    def delete_thread(self, thread_id: str) -> None:
        self.send("DELETE", _thread(thread_id))

    def messages(self, thread_id: str, after: int = 0) -> Iterator[dict[str, Any]]:
        while True:
            page = self.get(_thread(thread_id, "messages"), after=after)
            found = page.get("messages") or []
            yield from found
            if not found or page.get("next_after", after) <= after:
                return
            after = page["next_after"]

    def append_message(self, thread_id: str, role: str, content: Any, *, metadata: Any = None,
                       idempotency_key: str | None = None) -> dict[str, Any]:
        body = fields(role=role, content=shapes.encode(content)[0], metadata=metadata)
        return dict(self.send("POST", _thread(thread_id, "messages"), body, idempotency_key=idempotency_key))

    def chat(self, message: Any, *, wait: Duration | None = None, idempotency_key: str | None = None,
             **options: Any) -> dict[str, Any]:
        """Says something to an agent. With wait the answer is there if it came in time."""
        seconds = 0.0 if wait is None else durations.microseconds(wait) / 1e6
        return dict(self.send("POST", "/api/v1/chat", fields(message=message, wait=wait, **options), wait=seconds,
                              idempotency_key=idempotency_key))
