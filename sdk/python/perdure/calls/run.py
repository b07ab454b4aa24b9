"""A run as its server tells it, and the body that starts one."""

from __future__ import annotations

from typing import Any

from .. import shapes
from .caller import fields

_ends = ("completed", "failed", "cancelled", "timeout")


class Run(dict[str, Any]):
    """A run as the server tells it. All its fields are those of the API."""

    @property
    def id(self) -> str:
        return str(self["run_id"])

    @property
    def state(self) -> str:
        return str(self["state"])

    @property
    def deferred(self) -> bool:
        """Whether it goes on, and nobody waits for it any more."""
        return self.get("status") == "deferred"

    @property
    def ended(self) -> bool:
        return self.state in _ends

    @property
    def result(self) -> Any:
        """The result of a completed run; the failure of another one is raised."""
        if self.state == "completed":
            return self.get("result")
        if not self.ended:
            raise RunNotEnded("run %s is %s" % (self.id, self.state))
        raise RunFailed(self)


class RunNotEnded(Exception):
    """A run has no result yet."""


class RunFailed(Exception):
    """A run has ended without a result."""

    def __init__(self, run: Run):
        error = run.get("error") or {}
        self.run, self.code, self.message = run, error.get("code", run.state), error.get("message", "")
        super().__init__("run %s is %s: %s: %s" % (run.id, run.state, self.code, self.message))


def submission(kind: str, input: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Returns the body that starts a run. class is a word of Python, so the option is run_class."""
    body = fields(kind=kind, **{("class" if n == "run_class" else n): v for n, v in options.items()})
    if input is not None:
        body["input"] = shapes.encode(input)[0]
    return body
