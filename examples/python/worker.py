#!/usr/bin/env python3
"""A Perdure worker of nothing but Python's standard library; PERDURE_URL and PERDURE_KEY say which server.
For an https server with an authority of your own, SSL_CERT_FILE names the authority's certificate.

A handler takes the run's input and the run. What it returns is the result; when it raises, the attempt failed
and is tried again. One that takes long looks at run.stopped: the run was asked to stop, or is no longer ours.
"""
import json, os, random, signal, threading, time, traceback, urllib.error, urllib.request, uuid

URL, KEY = os.environ["PERDURE_URL"].rstrip("/"), os.environ["PERDURE_KEY"]
WORKER, SLOTS = "python-" + uuid.uuid4().hex[:8], 4
HANDLERS, RUNS, LOCK, DRAINING = {}, {}, threading.Lock(), threading.Event()

def greet(name, run):
    return "Hello, " + name

def divide(numbers, run):
    return numbers[0] / numbers[1]

def count(to, run):  # a second for each number, unless it is stopped
    for n in range(to):
        run.activity = "at %d of %d" % (n, to)  # for those who watch
        if run.stopped.wait(1):
            raise InterruptedError("stopped at %d" % n)
    return to

HANDLERS.update(greet=greet, divide=divide, count=count)

class Run:  # a leased run; (id, epoch) is the right to write to it
    def __init__(self, grant):
        self.id, self.epoch, self.kind, self.input = grant["run_id"], grant["epoch"], grant["kind"], grant.get("input")
        self.every = min(10, grant["lease_ms"] / 4000)  # seconds between heartbeats: four to a lease
        # Unheard of for 5 s, it is granted to others. So one with a single attempt begins when the server has heard of us.
        self.once, self.heard = grant["max_attempts"] == 1, threading.Event()
        self.beat_at = time.monotonic() + (0 if self.once else min(2, self.every))
        self.cancel, self.lost, self.stopped, self.activity = grant.get("cancel", False), False, threading.Event(), ""

def call(verb, body, timeout=30):
    """One call of the worker protocol: its status and answer. Status 0: nobody answered, nothing is known."""
    headers = {"Authorization": "Bearer " + KEY, "Content-Type": "application/json"}
    request = urllib.request.Request("%s/api/v1/workers/%s/%s" % (URL, WORKER, verb), json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as e:
        return e.code, {"problem": e.read(500).decode(errors="replace")}
    except (OSError, ValueError):
        return 0, {}

def execute(run):
    try:
        if run.once:
            run.heard.wait()
        if run.cancel or run.lost:  # nothing has begun, nothing is to be cleaned up
            raise InterruptedError
        outcome = {"type": "complete", "result": HANDLERS[run.kind](run.input, run)}
        json.dumps(outcome, allow_nan=False)  # a result that is no JSON is the handler's failure
    except Exception as e:
        why = {"code": type(e).__name__, "message": traceback.format_exc()[-1000:]}
        outcome = {"type": "cancelled"} if run.cancel else {"type": "fail", "error": why}
    # Sent until the server takes or refuses it, however long it is away, and always under the same commit_id: it
    # counts once, whatever answers are lost. Finished work is sent even when it is late: the server keeps it.
    commit, pause = {"commit_id": "e%d-1" % run.epoch, "run_id": run.id, "epoch": run.epoch, "outcome": outcome}, 0.1
    while not run.lost or outcome["type"] == "complete":
        status, answer = call("commit", {"commits": [commit]})
        if status in (400, 413, 422) and outcome["type"] == "complete":  # no server takes this result: say so instead
            outcome = {"type": "fail", "retryable": False, "error": {"code": "result_refused", "message": answer["problem"]}}
            commit.update(commit_id="e%d-2" % run.epoch, outcome=outcome)
        elif status == 200 or status in (400, 404, 409, 413, 422):  # taken; or refused: the run is no longer ours
            break
        else:
            time.sleep(pause * (1 + random.random()))
            pause = min(5, pause * 2)
    with LOCK:
        del RUNS[run.id, run.epoch]

def heartbeats():
    """Keeps the leases alive, many in one call; the answer says what is lost and what was asked to stop."""
    while not time.sleep(0.1):
        with LOCK:
            runs = [r for r in RUNS.values() if not r.lost and r.beat_at <= time.monotonic()]
        beats = [{"run_id": r.id, "epoch": r.epoch, "activity": r.activity, "cancel_ack": r.cancel} for r in runs]
        status, answer = call("heartbeat", {"runs": beats}, timeout=10) if runs else (0, {})
        lost, cancel = ({x["run_id"] for x in answer.get(list_, [])} for list_ in ("lost", "cancel"))
        for r in runs:
            r.beat_at = time.monotonic() + (0 if r.id in cancel and not r.cancel else r.every)  # acknowledge at once
            r.lost, r.cancel = r.lost or r.id in lost, r.cancel or r.id in cancel
            if r.lost or r.cancel:
                r.stopped.set()
            if status == 200:
                r.heard.set()

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: DRAINING.set())  # lease no more, finish what there is, end
    threading.Thread(target=heartbeats, daemon=True).start()
    while not DRAINING.is_set():
        free = SLOTS - len(RUNS)  # start: the runs begin at once, in the same write that leases them
        body = {"kinds": list(HANDLERS), "slots": free, "wait": "5s", "start": True, "confirms": True}
        status, answer = call("poll", body) if free else (200, {})
        if status in (400, 401, 403):
            raise SystemExit("the server refuses this worker: %s" % answer)
        for run in map(Run, answer.get("runs", [])):
            with LOCK:
                RUNS[run.id, run.epoch] = run
            threading.Thread(target=execute, args=(run,)).start()
        time.sleep(0 if status == 200 and free else 0.2)
