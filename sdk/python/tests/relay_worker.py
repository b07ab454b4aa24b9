"""A worker for sdk/relay and kill_test.go: agents in words, of which Go has the same. RELAY has them by kind, as JSON.

With KILL, such as "before 3", it kills itself before or after its commit of that number.
"""

import itertools
import json
import os
import signal
import threading

import perdure
from perdure.lease import Lease
from tests import scripts

worker = perdure.Worker(slots=64, agent_slots=100, build="python")


def note(run, what):
    with open(os.environ["LOG"], "a") as f:
        f.write("%s %s\n" % (run, what))
    if what == "hold" and os.environ.get("HOLD"):
        threading.Event().wait()


def child(kind):
    def f(input) -> str:
        note(input["Of"], kind + input["In"])
        return kind + input["In"]
    return f


for kind, words in json.loads(os.environ["RELAY"]).items():
    worker.agent(kind, scripts.agent(words, note))
for kind in () if os.environ.get("CHILDREN") == "none" else ("one", "two", "three"):
    worker.task(kind, child(kind))

when, _, at = os.environ.get("KILL", "").partition(" ")
commits = itertools.count(1)


class KilledLease(Lease):
    def commit(self, commit):
        n = next(commits)
        with open(os.environ["LOG"], "a") as f:
            f.write("commit %d\n" % n)
        if when == "before" and at == str(n):
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            return super().commit(commit)
        finally:
            if at == str(n):
                os.kill(os.getpid(), signal.SIGKILL)


if os.environ.get("CHILDREN") == "none":  # of kill_test.go
    worker.lease_type = KilledLease
worker.run()
