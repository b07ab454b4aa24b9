"""A worker for sdk/relay: agents in words, of which Go has the same. RELAY has them by kind, as JSON."""

import json
import os
import threading

import perdure
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
for kind in ("one", "two", "three"):
    worker.task(kind, child(kind))
worker.run()
