"""The facts of a run: its journal, read entry by entry.

Everything here is recognized by its key. Each fact has a place, the order in which it was recorded,
and is expected until the code asks for it.
"""

from __future__ import annotations

import json
import re
from typing import Any, Iterator

from .. import names
from ..errors import Defect, nondeterminism

_frame = re.compile(r"_frame:(\d+)\.(\d+)\Z")
_item = re.compile(r"#\d+/\d+\Z")
_older = ("messages", "lines", "times", "uuids", "due", "aside")
_passing = ("join:", "race:", "map:", "limit:", "_again:")


class Item:
    """An item of the inbox that is a fact."""

    __slots__ = ("seq", "type", "wait", "name", "run", "outcome", "data", "has_data", "failure", "unfit", "order", "at")

    def __init__(self, raw: dict[str, Any], order: int, at: str | None):
        self.seq = raw.get("seq", 0)
        self.type = raw["type"]
        self.wait = raw.get("wait", "")
        self.name = raw.get("name", "")
        self.run = raw.get("run", "")
        self.outcome = raw.get("outcome", "")
        self.data = raw.get("data")
        self.has_data = "data" in raw
        self.failure = raw.get("failure")
        self.unfit = bool(raw.get("unfit"))
        self.order = order
        self.at = at  # the key of the frame; None until it is written


class Facts:
    """What the journal has. A journal that this release can't read raises a Defect."""

    def __init__(self, journal: list[dict[str, Any]], first_epoch: int):
        self.first_epoch = first_epoch
        self.entries: dict[str, Any] = {}
        self.places: dict[str, int] = {}
        self.items: list[Item] = []
        self.ends: dict[str, Item] = {}
        self.waits: dict[str, Item] = {}
        self.taken: set[int] = set()
        self.spawned: dict[str, str] = {}
        self.alive: set[str] = set()
        self.versions: dict[str, int] = {}
        self.now: dict[str, int] = {}
        self.uuid: dict[str, str] = {}
        self.timers: dict[str, int] = {}
        self.opened: set[str] = set()
        self.closed: set[str] = set()
        self.winners: dict[str, dict[str, Any]] = {}
        self.cancelled: set[str] = set()
        self.mapped: dict[str, dict[str, Any]] = {}
        self.unfit: set[str] = set()
        self.branches: set[str] = set()
        self.ignored: list[str] | None = None
        self.said: dict[str, list[str]] = {}
        self.expected: dict[str, dict[str, int]] = {}
        self.asked: set[str] = set()  # all that this execution has asked for
        self.begun = False
        self.order = 0
        for entry in journal:
            self.read(entry["key"], entry["value"])

    def read(self, key: str, value: Any) -> None:
        self.order += 1
        if key in self.entries:
            return
        self.entries[key] = value
        self.places[key] = self.order
        if not key.startswith("_"):
            self._step(key, value)
            return
        sort = key.split(":", 1)[0]
        if sort == "_frame":
            self._frame(key, value)
        elif sort == "_said":
            for point, digests in value.items():
                self.said.setdefault(point, []).extend(digests[n:n + 8] for n in range(0, len(digests), 8))
        elif sort == "_saga":
            version_of(key, value)
            if "ok" in value:
                self.expect("saga " + key[len("_saga:"):], names.branch_of(key[len("_saga:"):]))
        elif sort in ("_history", "_newest"):
            name = key.split(":", 1)[1]
            self.expect(sort[1:] + " " + name, names.branch_of(name))
        elif sort == "_undone":
            pass
        elif sort not in ("_data", "_undo", "_token", "_late", "_withdraw"):
            raise Defect("nondeterminism", "%s: this release of perdure does not know such an entry" % key)

    def _step(self, key: str, value: Any) -> None:
        version_of(key, value)
        if "ok" not in value and "error" not in value:
            raise Defect("nondeterminism", "%s: the entry is damaged: it has neither a result nor an error" % key)
        if value.get("aside") and not _item.search(key):
            raise older(key)
        if "ignored" in value:
            self.ignored = value["ignored"]
        self.begun = True
        self.expect("step " + key, names.branch_of(key))

    def _frame(self, key: str, value: Any) -> None:
        match = _frame.match(key)
        if not match or not isinstance(value, dict):
            raise Defect("nondeterminism", "%s: the frame is damaged" % key)
        version_of(key, value)
        if any(name in value for name in _older):
            raise older(key)
        try:
            self._read_frame(key, value, int(match.group(1)) < self.first_epoch)
        except (AttributeError, KeyError, TypeError, ValueError) as e:
            raise Defect("nondeterminism", "%s: the frame is damaged: %s" % (key, e)) from None
        self.begun = True

    def _read_frame(self, key: str, value: dict[str, Any], originals: bool) -> None:
        for raw in value.get("in", []):
            self.add(Item(self._whole(raw), 0, key))
        for child, digest in value.get("spawned", {}).items():
            self.spawned[child] = digest
            self.expect("child " + child, names.branch_of(child))
            if not originals:
                self.alive.add(child)
        for branch in value.get("branches", []):
            self.branches.add(branch)
            self.expect("branch " + branch, names.branch_of(branch))
        for name, number in value.get("versions", {}).items():
            self.versions.setdefault(name, number)
        for name, at in value.get("now", {}).items():
            self.now[name] = at
            self.expect("now " + name, names.branch_of(name))
        for name, text in value.get("uuid", {}).items():
            self.uuid[name] = text
            self.expect("uuid " + name, names.branch_of(name))
        self.winners.update(value.get("winners", {}))
        self.unfit.update(value.get("unfit", []))
        self.closed.update(value.get("closed", []))
        for name, m in value.get("mapped", {}).items():
            self.mapped[name] = m
            self.expect("map " + name, names.branch_of(name))
        self.timers.update(value.get("timers", {}))
        if "ignored" in value:
            self.ignored = value["ignored"]
        if not originals:
            self.opened.update(value.get("opened", []))
            self.cancelled.update(value.get("cancelled", []))

    def _whole(self, raw: dict[str, Any]) -> dict[str, Any]:
        if not raw.get("apart"):
            return raw
        data = self.entries["_data:%d" % raw["seq"]]
        return {**raw, "data": json.loads(data) if raw.get("quoted") else data}

    def add(self, item: Item, expected: bool = True) -> None:
        """Adds an item as a fact. Its place is after all others."""
        self.order += 1
        item.order = self.order
        self.items.append(item)
        if item.seq:
            self.taken.add(item.seq)
        if item.wait:
            self.waits.setdefault(item.wait, item)
            if expected:
                self.expect_wait(item.wait)
        if item.type == "child":
            self.ends.setdefault(item.name, item)

    def expect_wait(self, wait: str) -> None:
        """Expects that the agent asks for a wait that is over, unless it has."""
        branch = names.branch_of(wait)
        if not wait[len(branch):].startswith(_passing) and "wait " + wait not in self.asked:
            self.expect("wait " + wait, branch)

    def expect(self, thing: str, branch: str) -> None:
        self.expected.setdefault(branch, {})[thing] = self.order

    def place(self, thing: str, branch: str) -> int:
        """Returns where a thing that is still expected was recorded, or 0."""
        return self.expected.get(branch, {}).get(thing, 0)

    def ask(self, thing: str, branch: str) -> int:
        """Takes a thing off the list, and returns its place, or 0 if it is not on it."""
        self.asked.add(thing)
        return self.expected.get(branch, {}).pop(thing, 0)

    def left(self, branch: str, within: bool = False) -> list[str]:
        """Lists what a branch has recorded and not asked for; with within also in branches of it."""
        out = [(place, thing) for thing, place in self.expected.get(branch, {}).items()]
        if within:
            for other in self.expected:
                if other != branch and other.startswith(branch):
                    out += [(place, thing) for thing, place in self.expected[other].items()]
        return [thing for _, thing in sorted(out)]

    def remove(self, name: str) -> None:
        """Takes all that has a name off the list, also in branches."""
        for things in self.expected.values():
            for thing in [t for t in things if name in _names_of(t)]:
                del things[thing]

    def steps(self) -> Iterator[str]:
        return (k for k in self.entries if not k.startswith("_"))


def _names_of(thing: str) -> list[str]:
    """Returns the names of a recorded thing: its own, that of a wait also without its type, and those of its branches."""
    sort, key = thing.split(" ", 1)
    branch = names.branch_of(key)
    out = [key[len(branch):].rpartition("#")[0]]
    if sort == "wait" and ":" in out[0]:
        out.append(out[0].split(":", 1)[1])
    while branch:
        outer = names.branch_of(branch[:-2])
        out.append(branch[len(outer):-2].rpartition("#")[0])
        branch = outer
    return out


def version_of(key: str, value: Any) -> None:
    """Refuses an entry of a higher version."""
    if not isinstance(value, dict):
        raise Defect("nondeterminism", "%s: the entry is damaged: it is no object" % key)
    v = value.get("v", 1)
    if v != 1:
        raise Defect("nondeterminism", "%s: the entry has the version %r of the journal, and this release of perdure reads "
                     "version 1; a newer release has written it, and can go on with the run" % (key, v))


def older(key: str) -> Defect:
    return nondeterminism(
        "%s: the entry was written by a release from before the format that all SDKs share, which this one does not "
        "continue; let a worker in Go finish the run" % key)
