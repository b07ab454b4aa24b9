"""Reports: messages, lines and text that an agent writes outside of steps. Each is written once."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

from .. import canonical, shapes
from .branch import Branch


def digest(*parts: str) -> str:
    data = b"".join(len(p.encode()).to_bytes(8, "big") + p.encode() for p in parts)
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()[:6]).decode()


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
    tree, _ = shapes.encode(content)
    if _new(b, digest("message", role, canonical.canonical(tree))):
        out: dict[str, Any] = {"role": role, "content": tree}
        if metadata:
            out["metadata"] = dict(metadata)
        segment = b.ex.segments[-1]
        segment.messages.append(out)
        segment.bytes += len(canonical.dumps(tree))


def line(b: Branch, type: str, data: Any) -> None:
    if not type.startswith("x:"):
        raise ValueError("the type of a line begins with x:, and %r does not" % type)
    tree, _ = shapes.encode(data)
    if _new(b, digest("line", type, canonical.canonical(tree))):
        b.ex.event(type, tree)


def text(b: Branch, text: str) -> None:
    tree, _ = shapes.encode(text)
    if tree and _new(b, digest("delta", digest(tree), "0")):
        b.ex.event("llm:delta", {"text": tree})
