"""Executes the edits of docs/agents.md. Reads them as JSON, and writes what has become of each.

A run waits at "wait" under the scripts before the edit, and goes on under those after it. Its server is in
memory: children end in the order in which they were begun, timers fire, and nobody answers questions.
"""

import json
import re
import sys

from perdure import canonical
from tests import scripts
from tests.runs import Run


class Trial:
    def __init__(self, case, words, reads):
        self.case, self.effects = case, []
        self.run = Run(json.loads(case["Input"]) if case["Input"] else None, thread_id="thread")
        self.run.thread = []
        self.done, self.kids, self.waits, self.hashes = set(), [], [], {}
        sent = set()
        for name in re.findall(r"(?:^| )signal:([a-z]+)", case["Before"] + " " + case["After"]):
            if name not in sent:
                sent.add(name)
                self.run.send("signal", name=name, data=json.loads((case["Signals"] or {}).get(name) or "1"))
        self.said = {"message": [], "x:line": [], "llm:delta": ""}
        self.use(words, reads)

    def use(self, words, reads):
        tells = reads != ""
        self.agent = scripts.agent(words, lambda _, what: self.effects.append(what), tells)
        self.options = {"input_type": scripts.INPUTS[reads]}
        if reads == "moved ignores":
            self.options["ignores"] = ("City",)

    def go(self):
        """Executes until the run waits for "go on", ends, or is held."""
        while True:
            outcome = self.run.execute(self.agent, **self.options)
            self.waits = outcome.get("waits", [])
            for c in self.run.session.commits:
                self.hashes.update({w["id"]: canonical.action_hash(w["approval"]["action"]) for w in c.get("waits", [])
                                    if w["type"] == "approval"})
                self.kids += [(k["key"], k["kind"], k["input"]) for k in c.get("children", [])]
                for m in c.get("messages", []):
                    self.said["message"].append(m["content"])
                for e in c.get("events", []):
                    if e["type"] == "llm:delta":
                        self.said["llm:delta"] += e["data"]["text"]
                    elif e["type"] == "x:line":
                        self.said["x:line"].append(e["data"])
            if outcome["type"] == "suspend" and self.wakes(outcome["waits"]):
                continue
            return outcome

    def signal(self, name):
        """Sends a signal, which the server gives to the wait that is open for it."""
        given = [w for w in self.waits if w.rsplit("//", 1)[-1] == "signal:%s#1" % name]
        self.run.send("signal", name=name, data=None, **({"wait_id": given[0]} if given else {}))

    def wakes(self, waits):
        """Ends what the run waits for. Returns whether there was something."""
        woken = False
        kids, self.kids = self.kids, []
        for key, kind, input in kids:
            if kind == "never":
                continue
            self.run.send("child", name=key, run_id="run:" + key, outcome="completed",
                          data={"Amount": 7, "Tax": 1} if kind == "priced" else kind + input["In"])
            if kind != "priced":
                self.effects.append(kind + input["In"])
            woken = True
        for w in waits:
            sort = w.rsplit("//", 1)[-1].split(":", 1)[0]
            if w not in self.done and sort in ("sleep", "approval", "callback"):
                self.done.add(w)
                data = {"decision": "reject", "action_hash": self.hashes[w]} if sort == "approval" else None
                self.run.send("timer" if sort == "sleep" else "timeout", wait_id=w, data=data)
                woken = True
        return woken


def told(outcome):
    if outcome.get("defect"):
        return "held: " + outcome["error"]["message"]
    if "error" in outcome:
        return "%s %s" % (outcome["type"], outcome["error"]["code"])
    return "%s %s" % (outcome["type"], outcome.get("result", outcome.get("waits")))


def judge(case):
    trial = Trial(case, case["Before"], case["Reads"])
    first = trial.go()
    at = [*trial.effects]
    trial.use(case["After"], case["ReadsAfter"])
    trial.signal("go on")
    journal = len(trial.run.journal)
    past = trial.go()
    fresh = Trial(case, case["After"], case["ReadsAfter"])
    fresh.signal("go on")
    new = fresh.go()
    back = None
    if past.get("defect"):  # the release before continues it as if nothing had been
        written = [e["key"] for e in trial.run.journal[journal:] if not e["key"].startswith("_frame:")]
        effects = trial.effects[len(at):]
        trial.use(case["Before"], case["Reads"])
        old = Trial(case, case["Before"], case["Reads"])
        old.signal("go on")
        back = [written, effects, told(trial.go()), told(old.go()), trial.effects, old.effects]
    return {"first": told(first), "past": told(past), "fresh": told(new), "effects": trial.effects, "said": trial.said,
            "back": back}


if __name__ == "__main__":
    out = []
    for case in json.load(sys.stdin):
        try:
            out.append(judge(case))
        except Exception as e:
            out.append({"error": "%s: %s" % (type(e).__name__, e)})
    json.dump(out, sys.stdout)
