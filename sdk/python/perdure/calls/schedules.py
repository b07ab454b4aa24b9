"""Schedules: runs that start by a plan."""

from __future__ import annotations

from typing import Any, Iterator

from .caller import Caller, segment
from .run import Run, submission


def _schedule(name: str, *rest: str) -> str:
    return "/".join(["/api/v1/schedules", segment(name), *rest])


class Schedules(Caller):
    def create_schedule(self, kind: str, input: Any = None, *, idempotency_key: str | None = None,
                        **options: Any) -> dict[str, Any]:
        """Makes a schedule. options are those of a start, and name, cron, every, timezone, jitter, overlap, missed."""
        return dict(self.send("POST", "/api/v1/schedules", submission(kind, input, options),
                              idempotency_key=idempotency_key))

    def put_schedule(self, name: str, kind: str, input: Any = None, *, idempotency_key: str | None = None,
                     **options: Any) -> dict[str, Any]:
        """Makes a schedule, or changes the one of this name. A deploy may repeat it: the same plan keeps its instant."""
        return dict(self.send("PUT", _schedule(name), submission(kind, input, options), idempotency_key=idempotency_key))

    def schedules(self) -> Iterator[dict[str, Any]]:
        return self.pages("/api/v1/schedules", "schedules")

    def schedule(self, name: str) -> dict[str, Any]:
        return dict(self.get(_schedule(name)))

    def upcoming_instants(self, name: str, n: int = 10) -> list[dict[str, Any]]:
        return list(self.get(_schedule(name, "next"), n=n)["instants"])

    def pause_schedule(self, name: str) -> dict[str, Any]:
        """Pauses a schedule. Instants that come until it is resumed are missed."""
        return dict(self.send("POST", _schedule(name, "pause")))

    def resume_schedule(self, name: str) -> dict[str, Any]:
        return dict(self.send("POST", _schedule(name, "resume")))

    def trigger_schedule(self, name: str) -> Run:
        """Starts a run of a schedule now."""
        return Run(self.send("POST", _schedule(name, "trigger")))

    def delete_schedule(self, name: str) -> None:
        """Deletes a schedule. Runs that it has started go on."""
        self.send("DELETE", _schedule(name))
