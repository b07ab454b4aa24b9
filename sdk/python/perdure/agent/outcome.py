"""What becomes of a run whose agent has raised an error."""

from __future__ import annotations

import os
import re
import traceback
from typing import Any

from ..errors import DEFECTS, Failure, legal_code

_forbidden = re.compile("[\x00\ud800-\udfff]")


def clean(text: str, most: int = 4000) -> str:
    """Returns a text that can be stored: at most so many bytes, without NUL and half surrogate pairs."""
    text = _forbidden.sub("\ufffd", text)
    return text.encode()[:most].decode(errors="ignore")


def failure_of(e: BaseException | None) -> Failure | None:
    """Returns the failure that an error is, or that it was raised from."""
    seen = 0
    while e is not None and seen < 20:
        if isinstance(e, Failure):
            return e
        e, seen = e.__cause__, seen + 1
    return None


def code_of(e: BaseException) -> str:
    code = getattr(e, "code", None)
    if legal_code(code):
        return code
    failure = failure_of(e)
    return failure.code if failure else "failed"


def message_of(e: BaseException) -> str:
    return clean(str(e) or type(e).__name__)


def _place(e: BaseException) -> str:
    """Returns where an error was raised: the last line of it that is not of this package or of the standard library."""
    own = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    library = os.path.dirname(os.path.abspath(os.__file__))
    for frame in reversed(traceback.extract_tb(e.__traceback__)):
        if not os.path.abspath(frame.filename).startswith((own + os.sep, library + os.sep)):
            return " (%s:%s, in %s)" % (os.path.basename(frame.filename), frame.lineno, frame.name)
    return ""


def failed(e: Exception) -> dict[str, Any]:
    """Returns the outcome of an agent that has raised an error."""
    if isinstance(e, DEFECTS):
        message = clean("%s: %s%s; the code of the agent is broken" % (type(e).__name__, e, _place(e)))
        return {"type": "fail", "retryable": True, "defect": True, "error": {"code": "panic", "message": message}}
    failure = failure_of(e)
    permanent = bool(failure and failure.permanent)
    out: dict[str, Any] = {"type": "fail", "error": {"code": code_of(e), "message": message_of(e)},
                           "retryable": not permanent}
    if failure is not None and failure._cause is not None:
        out["cause"] = failure._cause
    return out
