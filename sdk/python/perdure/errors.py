"""Errors of agents and their children. Errors of the server are in problems.py."""

from __future__ import annotations

import re
from typing import Any

_code = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/#@+-]*\Z")


class Failure(Exception):
    """A failure with a code of its own. A permanent one is not tried again."""

    def __init__(self, code: str, message: str = "", permanent: bool = False):
        super().__init__(message)
        if not legal_code(code):
            raise ValueError("%r is no code: at most 200 letters, digits and _ . : / # @ + -" % (code,))
        self.code, self.message, self.permanent = code, message, permanent
        self._cause: Any = None  # the entry from which it follows

    def __str__(self) -> str:
        return self.message


def legal_code(code: Any) -> bool:
    return isinstance(code, str) and len(code) <= 200 and bool(_code.match(code))


class StepFailed(Failure):
    """The error of a step: its code and its text, as the journal keeps them."""


class Cancelled(Failure):
    """The run was asked to stop. From then on nothing new is begun."""

    def __init__(self, message: str = "the run was asked to stop"):
        super().__init__("cancelled", message, permanent=True)


class WaitTimeout(Failure):
    """A wait was not over in time."""

    def __init__(self, message: str = "the wait is not over in time"):
        super().__init__("wait_timeout", message, permanent=True)


class SignalTimeout(WaitTimeout):
    def __init__(self, message: str = "no signal came in time"):
        super().__init__(message)


class TaskFailed(Failure):
    """A child has ended without a result. data has what it left behind."""

    def __init__(self, task_id: str, kind: str, outcome: str, data: Any = None, code: str = "task_failed"):
        data = data if isinstance(data, dict) else {}
        self.task_id, self.kind, self.outcome, self.data = task_id, kind, outcome, data
        self.reason, self.reason_message = data.get("reason", ""), data.get("message", "")
        who = "task %s (%s)" % (task_id, kind) if task_id else "task of the kind %s" % kind
        super().__init__(code, "%s is %s: %s: %s" % (who, outcome, self.reason, self.reason_message), permanent=True)


class TaskTimedOut(TaskFailed):
    def __init__(self, task_id: str, kind: str, outcome: str, data: Any = None):
        super().__init__(task_id, kind, outcome, data, code="task_timed_out")


class TaskStalled(Failure):
    """A child looks stuck. It goes on."""

    def __init__(self, task_id: str, kind: str):
        self.task_id, self.kind = task_id, kind
        super().__init__("task_stalled", "task %s (%s) looks stuck" % (task_id, kind), permanent=True)


class AllTasksFailed(Failure):
    """Too few of several tasks completed. errors has the error of each, in their order."""

    def __init__(self, errors: list[Any]):
        self.errors = errors
        texts = "\n".join(str(e) for e in errors if e is not None)
        super().__init__("all_tasks_failed", "all %d tasks failed: %s" % (len(errors), texts), permanent=True)


class Defect(Exception):
    """The code contradicts its journal, or the rules. The run is held, or fails if that is final."""

    def __init__(self, code: str, message: str, final: bool = False):
        super().__init__(message)
        self.code, self.message, self.final = code, message, final


def misuse(message: str) -> Defect:
    return Defect("agent_misuse", message)


def nondeterminism(message: str) -> Defect:
    return Defect("nondeterminism", message)


class Suspended(BaseException):
    """The run waits, and this execution is over. Let it pass: the function is called again.

    It is no Exception, so "except Exception" does not catch it; "finally" runs.
    """


class Lost(BaseException):
    """The lease is gone. Nothing of this execution counts any more."""


class Refused(Exception):
    """The server refuses a commit."""

    def __init__(self, code: str, detail: str = "", field: str = ""):
        super().__init__("%s: %s%s" % (code, detail, " (%s)" % field if field else ""))
        self.code, self.detail, self.field = code, detail, field


# Errors of these types, outside of a step, say that the code is broken and not the run.
DEFECTS = (NameError, AttributeError, TypeError, ImportError, UnboundLocalError, SyntaxError)
