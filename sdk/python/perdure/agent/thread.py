"""The thread of a run: its messages, read once and then as far as before."""

from __future__ import annotations

from typing import Any, AsyncIterator

from .branch import Branch

# Kinds of entries with a place in the order of calls that ask for messages.
_ordered = ("step", "child", "wait", "now", "uuid", "saga", "branch")


def _check(b: Branch, sort: str, key: str) -> None:
    place = b.ex.facts.places.get("_%s:%s" % (sort, key), 0)
    if place and b.asked_at > place:
        raise b.held("_%s:%s: the agent asks for messages after something that was recorded after it, so another call has "
                     "got its number; announce the change with ctx.version" % (sort, key))
    b.ask(sort, key)


async def history(b: Branch, notices: bool) -> list[dict[str, Any]]:
    with b.call("history"):
        b.on_thread("history")
        ex = b.ex
        key = b.number("history", "_history")
        entry = "_history:" + key
        known = ex.facts.entries.get(entry)
        if known is None:
            b.begin("the history " + key)
            await ex.fresh()
        else:
            _check(b, "history", key)
        out = [m async for m in ex.session.messages(0) if known is None or m["seq"] <= known]
        last = known if known is not None else out[-1]["seq"] if out else 0
        ex.read_seq = max(ex.read_seq, last)
        if known is None:
            ex.record(entry, last)
        return [m for m in out if notices or not _is_notice(m)]


def _is_notice(m: dict[str, Any]) -> bool:
    return m.get("role") == "system" and bool((m.get("metadata") or {}).get("perdure"))


async def newest(b: Branch, after: int) -> AsyncIterator[dict[str, Any]]:
    """Gives the messages from the end down to the one after a number.

    The agent may leave the loop; how far it came is recorded then.
    """
    ex = b.ex
    b.guard("newest_messages")
    b.on_thread("newest_messages")
    key = b.number("newest", "_newest")
    entry = "_newest:" + key
    known = ex.facts.entries.get(entry)
    if known is None:
        b.begin("the newest messages " + key)
        await ex.fresh()
    else:
        _check(b, "newest", key)
        ex.read_seq = max(ex.read_seq, known["last"])
        if not known["first"]:
            return  # there were none then
    first, last, until = 0, after, known["first"] - 1 if known else after
    try:
        async for m in ex.session.newest(known["last"] if known else 0):
            if m["seq"] <= until:
                return
            first, last = m["seq"], max(last, m["seq"])
            if not _is_notice(m):
                yield m
    finally:
        if known is None and not ex.over and entry not in ex.facts.entries:
            ex.read_seq = max(ex.read_seq, last)
            ex.record(entry, {"first": first, "last": last})
