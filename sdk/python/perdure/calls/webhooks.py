"""Webhooks of the tenant and of threads, and their deliveries. perdure.webhooks verifies what they send."""

from __future__ import annotations

from typing import Any, Iterable, Iterator

from .caller import Caller, fields, segment


def _webhook(id: str, *rest: str) -> str:
    return "/".join(["/api/v1/webhooks", segment(id), *rest])


class Webhooks(Caller):
    def create_webhook(self, url: str, *, thread_id: str = "", events: Iterable[str] | None = None,
                       description: str = "", format: str = "") -> dict[str, Any]:
        """Makes a webhook. The answer has its secret, which is told only once. format is the form of what it
        receives: perdure, openai or langgraph."""
        body = fields(url=url, thread_id=thread_id or None, events=None if events is None else [*events],
                      description=description or None, format=format or None)
        return dict(self.send("POST", "/api/v1/webhooks", body))

    def webhooks(self) -> Iterator[dict[str, Any]]:
        return self.pages("/api/v1/webhooks", "webhooks")

    def webhook(self, id: str) -> dict[str, Any]:
        return dict(self.get(_webhook(id)))

    def change_webhook(self, id: str, **changes: Any) -> dict[str, Any]:
        """Changes url, events, format, description or disabled."""
        return dict(self.send("PATCH", _webhook(id), fields(**changes)))

    def delete_webhook(self, id: str) -> None:
        self.send("DELETE", _webhook(id))

    def rotate_webhook(self, id: str) -> dict[str, Any]:
        """Gives a webhook a new secret. The old one signs beside it for a while."""
        return dict(self.send("POST", _webhook(id, "rotate")))

    def test_webhook(self, id: str) -> dict[str, Any]:
        """Sends a message now, and returns how it was answered."""
        return dict(self.send("POST", _webhook(id, "test"), wait=15))

    def deliveries(self, id: str, **filter: Any) -> Iterator[dict[str, Any]]:
        return self.pages(_webhook(id, "deliveries"), "deliveries", **filter)

    def delivery(self, delivery_id: str) -> dict[str, Any]:
        """Returns a delivery with its attempts."""
        return dict(self.get("/api/v1/deliveries/" + segment(delivery_id)))

    def redeliver(self, delivery_id: str) -> dict[str, Any]:
        return dict(self.send("POST", "/api/v1/deliveries/%s/redeliver" % segment(delivery_id)))
