"""Errors of the server. The table of codes is made from Go's api.Codes by "go test ./sdk/python -update"."""

from __future__ import annotations

import json
from typing import Any


class Problem(Exception):
    """A refusal. Act on code; a refusal has changed nothing. Each code has a class of its own."""

    def __init__(self, code: str, detail: str = "", *, status: int = 0, field: str = "", retry_after: float = 0.0):
        super().__init__("%s: %s%s" % (code, detail or CODES.get(code, (0, ""))[1], " (%s)" % field if field else ""))
        self.code, self.detail, self.status, self.field, self.retry_after = code, detail, status, field, retry_after


# begin of codes
CODES: dict[str, tuple[int, str]] = {
    "invalid": (400, "The request is malformed"),
    "too_large": (413, "Something is over its limit"),
    "unprocessable": (422, "What it says can't be done"),
    "over_bound": (422, "It is more than one call or one run takes"),
    "not_found": (404, "There is no such thing"),
    "stale_epoch": (409, "The lease was taken away"),
    "wrong_state": (409, "The state does not allow this"),
    "cancel_requested": (409, "The run is asked to stop"),
    "nothing_to_wait_for": (422, "There is nothing to wait for"),
    "outcome_invalid": (422, "The run can't have this outcome"),
    "key_reused": (422, "The key was used with another body"),
    "restored": (409, "The store was restored; the process waits for its new epoch"),
    "not_continuable": (409, "The run can't be continued"),
    "no_runner": (409, "Nobody could execute the new run"),
    "would_repeat": (409, "The journal has the failure; the retry would repeat it"),
    "from_invalid": (422, "The retry can't begin there"),
    "nondeterminism": (409, "The journal says otherwise"),
    "thread_busy": (409, "The thread is busy"),
    "in_use": (409, "Somebody still refers to it"),
    "run_ended": (409, "The run has ended"),
    "wait_closed": (410, "The wait is over"),
    "already_decided": (409, "The approval was decided otherwise"),
    "action_changed": (409, "The decision is about another action"),
    "no_open_approval": (409, "There is nothing to decide about"),
    "answer_invalid": (422, "The answer does not fit the form"),
    "signal_invalid": (422, "The signal does not fit the schema of its kind"),
    "never_fires": (422, "The schedule has no instant"),
    "unknown_format": (422, "There is no such format"),
    "unknown_limit": (422, "There is no such limit"),
    "name_taken": (409, "The name is taken"),
    "not_unique": (409, "Another run has the unique key"),
    "older_node": (409, "A node of an older release does not know this; nothing was changed"),
    "platform_decides": (403, "The platform decides about this"),
    "quota_exceeded": (429, "The quota is used up"),
    "signature_invalid": (409, "The run is not what was accepted"),
    "signing_unavailable": (503, "The server has no key to sign with; nothing was changed"),
    "url_refused": (422, "The server does not send to this address"),
    "storage_full": (507, "The disk is full; nothing was changed"),
    "query_timeout": (503, "The query took longer than one may; ask for less"),
    "unavailable": (503, "Nothing was changed; try again"),
    "unknown_outcome": (503, "It may or may not have been stored; try again with the same key"),
    "internal": (500, "The server has a defect"),
    "unauthorized": (401, "A valid key is needed"),
    "forbidden": (403, "The key does not allow this"),
    "method_not_allowed": (405, "The path does not take this method"),
    "unsupported_media_type": (415, "The body has to be application/json"),
    "host_not_allowed": (421, "The server does not answer for this host"),
    "callback_answered": (409, "The callback was answered otherwise"),
    "range_not_satisfiable": (416, "There are no such bytes"),
    "too_many_requests": (429, "Too many requests"),
    "shutting_down": (503, "The server is shutting down"),
    "origin_not_allowed": (403, "Pages of this origin are not let in"),
    "cross_site": (403, "The call does not come from a page of the dashboard"),
    "upgrade_required": (426, "This path is a WebSocket"),
    "too_many_streams": (503, "The node has as many streams as it may, or the tenant its share"),
}
# end of codes


def class_name(code: str) -> str:
    return "".join(part.capitalize() for part in code.split("_"))


#: The class of each code, which is also in this module: not_found is NotFound.
CLASSES: dict[str, type[Problem]] = {
    code: type(class_name(code), (Problem,), {"__doc__": text, "__module__": __name__})
    for code, (_, text) in CODES.items()
}
globals().update({c.__name__: c for c in CLASSES.values()})


def problem(code: str, detail: str = "", **more: Any) -> Problem:
    """Returns the problem of a code, of its own class."""
    return CLASSES.get(code, Problem)(code, detail, **more)


def problem_of(status: int, headers: Any, data: bytes) -> Problem:
    """Returns the problem that an answer has."""
    try:
        body = json.loads(data)
        code, detail, field = body["code"], body.get("detail", ""), body.get("field", "")
    except (ValueError, KeyError, TypeError):
        code = "unavailable" if status in (502, 503, 504) else "internal" if status >= 500 else "invalid"
        detail, field = "status %d: %s" % (status, data[:200].decode(errors="replace")), ""
    try:
        after = float(headers.get("Retry-After") or 0)
    except ValueError:
        after = 1.0
    return problem(code, detail, status=status, field=field, retry_after=min(after, 60.0))
