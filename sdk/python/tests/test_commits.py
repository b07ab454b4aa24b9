"""Commits are kept and sent again byte-equal, against a server that fails in many ways."""

import asyncio
import http.server
import json
import socket
import threading
import time
import unittest

import perdure
from perdure import handlers, problems
from perdure.errors import Lost, Refused
from perdure.lease import Lease


class Server:
    """Answers calls from a list: a status and a body, or None for a connection that is cut."""

    def __init__(self, answers):
        self.calls, outer, self.answers = [], self, answers

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                self.do_POST()

            def do_POST(self):
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                outer.calls.append((self.path, body, dict(self.headers)))
                answer = outer.answers.pop(0) if outer.answers else (200, {"results": [{"ok": True}]})
                if answer is None:
                    self.close_connection = True
                    self.connection.shutdown(socket.SHUT_RDWR)
                    return
                data = json.dumps(answer[1]).encode()
                self.send_response(answer[0])
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_):
                pass
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = "http://127.0.0.1:%d" % self.server.server_port
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()


GRANT = {"run_id": "r", "epoch": 3, "kind": "k", "lease_ms": 60000, "max_attempts": 3}


class CommitsTest(unittest.TestCase):
    def lease(self, *answers):
        self.server = Server(list(answers))
        self.addCleanup(self.server.close)
        self.worker = perdure.Worker(self.server.url, "key", build="b", id="w")
        self.addCleanup(self.worker.loop.close)
        self.addCleanup(self.worker.client.close)
        return Lease(self.worker, dict(GRANT), 0.0)

    def test_the_same_bytes_until_there_is_an_answer(self):
        lease = self.lease(None, (503, {"code": "unknown_outcome"}), (500, {"code": "internal"}),
                           (429, {"code": "too_many_requests"}), (502, {}))
        lease.commit({"journal": [{"key": "a#1", "value": {"aside": True, "as": ["t:"], "ok": 1e-06}}]})
        bodies = {body for _, body, _ in self.server.calls}
        self.assertEqual(len(self.server.calls), 6)
        self.assertEqual(bodies, {b'{"commits":[{"commit_id":"e3-1","run_id":"r","epoch":3,"journal":[{"key":"a#1",'
                                  b'"value":{"aside":true,"as":["t:"],"ok":0.000001}}]}]}'})
        lease.commit({"outcome": {"type": "suspend"}})
        self.assertIn(b'"commit_id":"e3-2"', self.server.calls[-1][1])

    def test_a_failure_is_in_the_log_with_its_place(self):
        """Who writes a first agent sees what is wrong with it where the worker was started."""
        lease = self.lease()

        async def broken(ctx, value):
            return value + 1

        def task(value):
            raise ValueError("no such item")

        async def declines(ctx):
            raise perdure.Failure("declined", "no money", permanent=True)

        self.worker.agent("broken")(broken)
        self.worker.agent("declines")(declines)
        self.worker.task("task")(task)
        place = "test_commits.py:%d, in broken" % (broken.__code__.co_firstlineno + 1)
        for kind, code, traced in (("broken", "panic", True), ("declines", "declined", False), ("task", "failed", True)):
            lease.grant = dict(GRANT, kind=kind, input=None)
            lease.heard.set()
            with self.assertLogs("perdure", "WARNING") as logs:
                if kind == "task":
                    handlers.execute_task(self.worker, self.worker.kinds[kind], lease)
                else:
                    asyncio.run(handlers.execute_agent(self.worker, self.worker.kinds[kind], lease))
            self.assertIn("%s failed run=r kind=%s" % ("task" if kind == "task" else "agent", kind), logs.output[0])
            self.assertEqual("Traceback" in logs.output[0], traced, logs.output[0])
            outcome = json.loads(self.server.calls[-1][1])["commits"][0]["outcome"]
            self.assertEqual(outcome["error"]["code"], code)
            self.assertEqual(place in outcome["error"]["message"], kind == "broken", outcome)

    def test_a_lease_that_is_gone(self):
        for code in ("stale_epoch", "wrong_state", "run_ended", "not_found"):
            lease = self.lease((409, {"code": code}))
            with self.assertRaises(Lost):
                lease.commit({"ack": [1]})
            self.assertTrue(lease.lost.is_set())
            with self.assertRaises(Lost):
                lease.commit({"ack": [1]})
            self.assertEqual(len(self.server.calls), 1)

    def test_a_part_is_meant_if_there_is_a_field(self):
        lease = self.lease((404, {"code": "not_found", "field": "commits[0].cancel[0]"}))
        with self.assertRaises(Refused) as caught:
            lease.commit({"cancel": ["x"]})
        self.assertEqual(caught.exception.field, "commits[0].cancel[0]")
        self.assertFalse(lease.lost.is_set())

    def test_finished_work_is_sent_when_the_lease_is_lost(self):
        lease = self.lease((409, {"code": "stale_epoch"}))
        lease.lose()
        with self.assertRaises(Lost):
            lease.commit({"outcome": {"type": "complete", "result": 1}})
        self.assertEqual(len(self.server.calls), 1)

    def test_a_request_to_stop_comes_with_a_commit(self):
        lease = self.lease((200, {"results": [{"ok": True, "cancel": True}]}))
        lease.commit({"ack": [1]})
        self.assertTrue(lease.cancel and lease.stop.is_set())
        lease.commit({"ack": [2]})
        self.assertIn(b'"cancel_ack":true', self.server.calls[-1][1])


    def test_limits_are_asked_for_until_there_is_an_answer(self):
        lease = self.lease(None, (503, {"code": "unavailable"}), (200, {"results": [{"ok": True, "taken": True}]}),
                           (200, {"results": [{"error": {"code": "unknown_limit", "detail": "no limit x"}}]}),
                           (404, {"code": "not_found"}), (200, {"results": [{"error": {"code": "stale_epoch"}}]}))
        self.assertTrue(lease.take_limits("call#1", [{"name": "x", "units": 3}], 0)["taken"])
        self.assertEqual({(path, body) for path, body, _ in self.server.calls}, {(
            "/api/v1/workers/w/limits",
            b'{"steps":[{"run_id":"r","epoch":3,"step":"call#1","limits":[{"name":"x","units":3}]}]}')})
        for code in ("unknown_limit", "not_found"):
            with self.assertRaises(Refused) as caught:
                lease.take_limits("call#1", [{"name": "x"}], 2)
            self.assertEqual(caught.exception.code, code)
            self.assertFalse(lease.lost.is_set(), code)
        self.assertIn(b'"try":2', self.server.calls[-1][1])
        with self.assertRaises(Lost):
            lease.take_limits("call#1", [{"name": "x"}], 0)
        self.assertTrue(lease.lost.is_set())

    def test_a_run_that_is_asked_to_stop_does_not_wait_for_a_quota(self):
        quota = (429, {"code": "quota_exceeded"})
        lease = self.lease(quota)
        lease.commit({"children": [{"key": "a"}]})
        self.assertEqual(len(self.server.calls), 2, "a commit that the quota holds up is sent again")
        lease.ask_to_stop()
        self.server.answers[:] = [quota]
        with self.assertRaises(Refused) as caught:
            lease.commit({"children": [{"key": "b"}]})
        self.assertEqual(caught.exception.code, "cancel_requested")

    def test_pages_are_read_until_there_is_an_answer(self):
        lease = self.lease(None, (503, {"code": "unavailable"}), (503, {"code": "query_timeout"}), (200, {"inbox": []}),
                           (409, {"code": "stale_epoch"}))
        self.worker.transport.patience = 0.0
        self.assertEqual(lease.get("inbox"), {"inbox": []})
        with self.assertRaises(Lost):
            lease.get("inbox")
        self.assertEqual(len(self.server.calls), 5)

    def test_a_refused_heartbeat_renews_the_lease_without_what_it_said(self):
        lease = self.lease()
        lease.activity, lease.progress = "reads", {"done": 1}
        for status, code, kept in ((503, "unavailable", True), (400, "invalid", False)):
            self.server.answers[:] = [(status, {"code": code})]
            self.worker._beat([lease])
            said = self.beaten(lease, {"later": [lease.key()]})
            self.assertEqual(("activity" in said, "progress" in said), (kept, kept), code)

    def test_a_task_closes_a_limit(self):
        lease = self.lease()
        perdure.Task(lease).close_limit("openai", 90, reason="429")
        self.assertEqual(json.loads(self.server.calls[-1][1])["commits"][0]["limits"],
                         [{"name": "openai", "closed_for": "1m30s", "reason": "429"}])

    def beaten(self, lease, answer):
        self.server.answers.append((200, {"lost": [], "cancel": [], **answer}))
        self.worker._beat([lease])
        return json.loads(self.server.calls[-1][1])["runs"][0]

    def test_a_locked_row_is_neither_lost_nor_heard(self):
        lease = self.lease()
        lease.progress = {"done": 1}
        mine = {"run_id": "r", "epoch": 3}
        self.beaten(lease, {"later": [{**mine, "error": {"code": "unavailable"}}]})
        self.assertFalse(lease.lost.is_set() or lease.stop.is_set(), "a lease in later is lost")
        self.assertFalse(lease.heard.is_set(), "a run with one attempt would begin unheard")
        self.assertLess(lease.beat_at, time.monotonic() + 1, "the next heartbeat tries again soon")
        lease.heard.set()
        self.assertEqual(self.beaten(lease, {"later": [mine]}).get("progress"), {"done": 1})
        self.assertGreater(lease.beat_at, time.monotonic() + 1)
        self.assertEqual(self.beaten(lease, {}).get("progress"), {"done": 1}, "a progress that was not noted is told again")
        self.assertNotIn("progress", self.beaten(lease, {}))
        self.beaten(lease, {"lost": [mine]})
        self.assertTrue(lease.lost.is_set())


class ProblemsTest(unittest.TestCase):
    def test_each_code_has_a_class(self):
        self.assertGreater(len(problems.CODES), 40)
        for code in problems.CODES:
            made = problems.problem(code, "why")
            self.assertIs(type(made), getattr(problems, problems.class_name(code)))
            self.assertIsInstance(made, perdure.Problem)
        self.assertIs(type(problems.problem("of_a_later_release")), perdure.Problem)
        e = problems.problem_of(503, {"Retry-After": "7"}, b'{"code":"unavailable","detail":"away"}')
        self.assertEqual((e.code, e.status, e.retry_after), ("unavailable", 503, 7.0))
        self.assertEqual(problems.problem_of(502, {}, b"<html>").code, "unavailable")

    def test_a_start_is_repeated_under_its_key(self):
        server = Server([None, (503, {"code": "unknown_outcome"}), (201, {"run_id": "r", "state": "queued"})])
        self.addCleanup(server.close)
        client = perdure.Client(server.url, "key")
        self.addCleanup(client.close)
        self.assertEqual(client.start("k", {"a": 1.0}).id, "r")
        keys = {headers["Idempotency-Key"] for _, _, headers in server.calls}
        self.assertEqual((len(server.calls), len(keys)), (3, 1))
        self.assertEqual(server.calls[0][1], b'{"kind":"k","input":{"a":1}}')

    def test_another_address_answers(self):
        dead = Server([])
        dead.close()
        server = Server([(201, {"run_id": "r", "state": "queued"})])
        self.addCleanup(server.close)
        client = perdure.Client([dead.url, server.url], "key")
        self.addCleanup(client.close)
        self.assertEqual(client.start("k").id, "r")
