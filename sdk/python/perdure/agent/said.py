"""Reports: messages, lines and text that an agent writes outside of steps. Each is written once."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

from .. import canonical, names, shapes
from ..errors import Failure
from .branch import Branch


def digest(*parts: str) -> str:
    data = b"".join(len(p.encode()).to_bytes(8, "big") + p.encode() for p in parts)
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()[:6]).decode()


MAX_VIEW = 64 << 10


def written(what: str, data: Any) -> Any:
    """Returns a report as JSON. One that can't be written is an error that the agent may handle."""
    try:
        return shapes.encode(data)[0]
    except shapes.Unrecordable as e:
        code = "too_large" if e.code == "too_large" else "invalid"
        raise Failure(code, "%s: %s" % (what, e), permanent=True) from None


def _new(b: Branch, mark: str) -> bool:
    """Tells whether a report is new at this point, and notes that it was made."""
    if any(saga.failed for saga in b.sagas):
        return False
    made = b.ex.facts.said.get(b.point, [])
    if mark in made:
        made.remove(mark)
        return False
    segment = b.ex.segment()
    segment.said[b.point] = segment.said.get(b.point, "") + mark
    segment.add(2)
    b.ex.soon()
    return True


def message(b: Branch, role: str, content: Any, metadata: dict[str, str] | None) -> None:
    b.on_thread("message")
    tree = written("message", content)
    if _new(b, digest("message", role, canonical.canonical(tree))):
        out: dict[str, Any] = {"role": role, "content": tree}
        if metadata:
            out["metadata"] = dict(metadata)
        segment = b.ex.segments[-1]
        segment.messages.append(out)
        segment.bytes += len(canonical.dumps(tree))


def line(b: Branch, type: str, data: Any) -> None:
    if not isinstance(type, str) or not type.startswith("x:"):
        b.wrong("emit of %r, which is not for agents: the type of a line begins with x:" % (type,))
    tree = written("emit", data)
    if _new(b, digest("line", type, canonical.canonical(tree))):
        b.ex.event(type, tree)


def text(b: Branch, text: str) -> None:
    tree = written("delta", text)
    if tree and _new(b, digest("delta", digest(tree), "0")):
        b.ex.event("llm:delta", {"text": tree})


def view(b: Branch, name: str, value: Any) -> None:
    fault = names.fault(name, 200) or ("has a slash" if "/" in name else "")
    if fault:
        b.wrong("publish: the name %r of a view %s" % (str(name)[:200], fault))
    tree = written("publish " + name, value)
    size = len(canonical.dumps(tree).encode())
    if size > MAX_VIEW:
        raise Failure("too_large", "publish %s: the value has %d bytes; a view takes %d: put larger things into an artifact"
                      % (name, size, MAX_VIEW), permanent=True)
    if not b.ex.facts.left(b.prefix):
        b.ex.segment().views[name] = tree
        b.ex.soon()
