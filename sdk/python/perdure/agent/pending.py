"""What is to be committed next.

Everything that an agent does is collected in a segment, which becomes one commit. A segment that is
large is closed and the next one begun, so no commit is beyond the server's bounds.
"""

from __future__ import annotations

from typing import Any

from .. import canonical

MAX_ENTRIES = 500  # the server takes 1000, and an outcome's waits count as well
MAX_BYTES = 4 << 20
LARGE = 8 << 10  # content beyond this is written apart
DEEP, DEEPER = 40, 60


class Segment:
    def __init__(self) -> None:
        self.data: dict[str, Any] = {}
        self.entries: list[tuple[str, Any]] = []
        self.frame: dict[str, Any] = {}
        self.said: dict[str, str] = {}
        self.children: dict[str, dict[str, Any]] = {}
        self.waits: dict[str, dict[str, Any]] = {}
        self.close: list[str] = []
        self.cancel: list[str] = []
        self.views: dict[str, Any] = {}
        self.messages: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []
        self.limits: list[dict[str, Any]] = []  # that are closed
        self.ack: list[int] = []
        self.items: list[Any] = []
        self.weight = 0
        self.bytes = 0

    def add(self, entries: int = 1, size: int = 100) -> None:
        self.weight += entries
        self.bytes += size

    def empty(self) -> bool:
        return not (self.data or self.entries or self.frame or self.said or self.children or self.waits or self.close
                    or self.cancel or self.views or self.messages or self.events or self.limits or self.ack)

    def full(self) -> bool:
        return self.weight >= MAX_ENTRIES or self.bytes >= MAX_BYTES

    def of_frame(self, field: str, key: str | None = None) -> Any:
        """Returns a field of the frame: an object, or with a key of None a list."""
        self.add()
        return self.frame.setdefault(field, {} if key is not None else [])

    def item(self, raw: dict[str, Any]) -> None:
        """Adds an inbox item to the frame, with its content apart if that is large."""
        self.add(3)
        if "data" in raw:
            text = canonical.dumps(raw["data"])
            depth = _depth(raw["data"])
            self.bytes += len(text)
            if len(text) > LARGE // 4 and len(text.encode()) > LARGE or depth > DEEP:
                apart = {**raw, "apart": True}
                data = apart.pop("data")
                if depth > DEEPER:
                    apart["quoted"], data = True, text
                self.data["_data:%d" % raw["seq"]] = data
                raw = apart
        self.frame.setdefault("in", []).append(raw)

    def commit(self, epoch: int, frame: int, said: int, outcome: dict[str, Any] | None) -> dict[str, Any]:
        """Returns the commit. frame and said are the numbers of its frame and its reports."""
        journal = []
        if self.said:
            journal.append({"key": "_said:%d.%d" % (epoch, said), "value": self.said})
        journal += [{"key": k, "value": v} for k, v in self.data.items()]
        journal += [{"key": k, "value": v} for k, v in self.entries]
        if self.frame:
            journal.append({"key": "_frame:%d.%d" % (epoch, frame), "value": self.frame})
        parts = {"journal": journal, "children": list(self.children.values()), "waits": list(self.waits.values()),
                 "close": self.close, "cancel": self.cancel,
                 "views": [{"name": n, "value": v} for n, v in self.views.items()],
                 "messages": self.messages, "events": self.events, "limits": self.limits, "ack": self.ack}
        out: dict[str, Any] = {name: list(part) for name, part in parts.items() if part}
        if outcome:
            out["outcome"] = outcome
        return json_copy(out)


def json_copy(v: Any) -> Any:
    """Copies containers, so that a commit does not change after it was made."""
    if isinstance(v, dict):
        return {k: json_copy(x) for k, x in v.items()}
    if isinstance(v, list):
        return [json_copy(x) for x in v]
    return v


def _depth(v: Any) -> int:
    if isinstance(v, dict):
        return 1 + max(map(_depth, v.values()), default=0)
    if isinstance(v, list):
        return 1 + max(map(_depth, v), default=0)
    return 0
