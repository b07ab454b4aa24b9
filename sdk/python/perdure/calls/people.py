"""What people and other systems answer: approvals, callbacks, late results."""

from __future__ import annotations

from typing import Any, Iterator

from .. import shapes
from .caller import Caller, fields, segment
from .run import Run


def _late(run_id: str, *rest: str) -> str:
    return "/".join(["/api/v1/runs", segment(run_id), "late-results", *rest])


class People(Caller):
    def approvals(self, **filter: Any) -> Iterator[dict[str, Any]]:
        return self.pages("/api/v1/approvals", "approvals", **filter)

    def approval(self, approval_id: str) -> dict[str, Any]:
        return dict(self.get("/api/v1/approvals/" + segment(approval_id)))

    def decide(self, approval_id: str, decision: str, action_hash: str, *, comment: str = "",
               answer: Any = None) -> dict[str, Any]:
        """Decides about an action: "approve" or "reject". action_hash is that of the action that was looked at."""
        body = fields(decision=decision, action_hash=action_hash, comment=comment or None, answer=answer)
        return dict(self.transport.call("POST", "/api/v1/approvals/" + segment(approval_id), body=body, again=True).json())

    def answer_callback(self, token: str, result: Any = None, *, error: dict[str, str] | None = None) -> dict[str, Any]:
        """Answers a callback with a result or an error {"code", "message"}. The same answer may be given again."""
        body = {"error": error} if error else {"result": shapes.encode(result)[0]}
        return dict(self.transport.call("POST", "/api/v1/callbacks/" + segment(token), body=body, again=True).json())

    def continue_run(self, run_id: str, job_id: str, **report: Any) -> dict[str, Any]:
        """Reports that external work, which a run has started, has finished. It counts once per job."""
        path = "/api/internal/runs/%s/continue" % segment(run_id)
        return dict(self.send("POST", path, fields(job_id=job_id, **report)))

    def late_results(self, run_id: str) -> Iterator[dict[str, Any]]:
        """Gives the results of a run that came too late."""
        return self.pages(_late(run_id), "late_results")

    def adopt(self, run_id: str, n: int) -> Run:
        """Accepts a late result: it completes a live run, and becomes the deliverable of an ended one."""
        return Run(self.send("POST", _late(run_id, str(n), "adopt")))

    def discard(self, run_id: str, n: int) -> Run:
        return Run(self.send("POST", _late(run_id, str(n), "discard")))
