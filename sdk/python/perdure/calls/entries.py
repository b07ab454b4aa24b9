"""What a run has recorded, for people and for replays."""

from __future__ import annotations

from typing import Any, Iterator

from ..problems import problem
from .caller import Caller, segment


def _run(run_id: str, *rest: str) -> str:
    return "/".join(["/api/v1/runs", segment(run_id), *rest])


class Entries(Caller):
    def steps(self, run_id: str, after: int = 0) -> Iterator[dict[str, Any]]:
        """Gives the steps that a run has recorded. Values of more than 4 KiB are left out: see step."""
        return self._numbered(_run(run_id, "journal", "entries"), "entries", after)

    def step(self, run_id: str, seq: int) -> dict[str, Any]:
        return dict(self.get(_run(run_id, "journal", "entries", str(seq))))

    def inbox_items(self, run_id: str, after: int = 0) -> Iterator[dict[str, Any]]:
        """Gives what has come to a run. It takes nothing out of the inbox."""
        return self._numbered(_run(run_id, "inbox", "items"), "items", after)

    def inbox_item(self, run_id: str, seq: int) -> dict[str, Any]:
        return dict(self.get(_run(run_id, "inbox", "items", str(seq))))

    def _numbered(self, path: str, field: str, after: int) -> Iterator[dict[str, Any]]:
        while True:
            page = self.get(path, after=after, limit=200)
            yield from page.get(field) or []
            after = page.get("next_after") or 0
            if not after:
                return

    def replay(self, run_id: str) -> dict[str, Any]:
        """Returns all that a replay of a run needs: its input, journal and inbox, and the messages that it has read.

        A run that changes meanwhile is read again, a few times.
        """
        for _ in range(5):
            out = dict(self.get(_run(run_id, "replay")))
            if self._rest(run_id, out):
                out["messages"] = self._read(out)
                return out
        raise problem("wrong_state", "run %s changes faster than it can be read" % run_id)

    def _rest(self, run_id: str, out: dict[str, Any]) -> bool:
        """Adds the further parts. Returns False if one is of a later change of the run."""
        parts = ("journal", "inbox")
        for name in parts:
            out[name] = out.get(name) or []
        while any(out.get(name + "_next") for name in parts):
            after = {name + "_after": out.get(name + "_next") or "" for name in parts}
            page = self.get(_run(run_id, "replay"), **after)
            if page["change"] != out["change"]:
                return False
            for name in parts:
                out[name] += page.get(name) or []
                out[name + "_next"] = page.get(name + "_next") or 0
        return True

    def _read(self, replay: dict[str, Any]) -> list[dict[str, Any]]:
        last = 0
        for e in replay["journal"]:
            if e["key"].startswith("_history:") and isinstance(e["value"], int):
                last = max(last, e["value"])
            elif e["key"].startswith("_newest:") and isinstance(e["value"], dict):
                last = max(last, e["value"].get("last", 0))
        out: list[dict[str, Any]] = []
        after = 0
        while replay.get("thread_id") and after < last:
            page = self.get("/api/v1/threads/%s/messages" % segment(replay["thread_id"]), after=after)
            found = page.get("messages") or []
            if not found:
                break
            out += [m for m in found if m["seq"] <= last]
            after = found[-1]["seq"]
        return out
