"""Reads the vectors with nothing but docs/journal.md, and checks what can be computed from them.

It is an example of how a library in another language uses these files, and it shows that the page
says enough: canonical JSON, digests, keys and ids are made here without any code of Perdure.
"""

import base64
import decimal
import glob
import hashlib
import json
import os
import struct
import sys

here = os.path.dirname(os.path.abspath(__file__))
wrong = []
count = 0


def check(where, what, got, want):
    global count
    count += 1
    if got != want:
        wrong.append(f"{where}: {what}: {got!r}, want {want!r}")


def load(name):
    with open(os.path.join(here, name), encoding="utf-8") as f:
        return json.load(f)


# Canonical JSON. Numbers are kept as their text, in a type of their own.


class Number(str):
    pass


def of_digits(text):
    return Number("0" if text == "-0" else text)


def of_float(text):
    """Prints a double as ECMAScript does (Number::toString)."""
    f = float(text)
    if f in (float("inf"), float("-inf")):
        return Number(text)
    if f == 0:
        return Number("0")
    sign, digits, exponent = decimal.Decimal(repr(f)).normalize().as_tuple()
    d = "".join(map(str, digits))
    k, n = len(d), len(d) + exponent
    if k <= n <= 21:
        out = d + "0" * (n - k)
    elif 0 < n <= 21:
        out = d[:n] + "." + d[n:]
    elif -6 < n <= 0:
        out = "0." + "0" * -n + d
    else:
        e = n - 1
        out = d[0] + ("." + d[1:] if k > 1 else "") + ("e+" if e > 0 else "e-") + str(abs(e))
    return Number("-" + out if sign else out)


def no_constant(text):
    raise ValueError(text)


def pairs(members):
    if len({name for name, _ in members}) < len(members):
        raise ValueError("a name is there twice")
    return dict(members)


def text_of(s):
    s = "".join("\ufffd" if 0xD800 <= ord(c) <= 0xDFFF else c for c in s)
    short = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}
    return '"' + "".join(short.get(c) or (f"\\u{ord(c):04x}" if c < " " else c) for c in s) + '"'


def print_value(v, depth=0):
    if depth > 64:
        raise ValueError("too deep")
    if isinstance(v, Number):
        return str(v)
    if isinstance(v, str):
        return text_of(v)
    if isinstance(v, dict):
        names = sorted(v, key=lambda n: n.encode("utf-8", "replace"))
        return "{" + ",".join(text_of(n) + ":" + print_value(v[n], depth + 1) for n in names) + "}"
    if isinstance(v, list):
        return "[" + ",".join(print_value(x, depth + 1) for x in v) + "]"
    return {None: "null", True: "true", False: "false"}[v]


def canonical(text):
    return print_value(json.loads(text, parse_int=of_digits, parse_float=of_float, parse_constant=no_constant,
                                  object_pairs_hook=pairs))


def canonical_of(value):
    return canonical(json.dumps(value))


def digest(data, size=12):
    return hashlib.sha256(data).digest()[:size].hex()


def report(*parts):
    data = b"".join(struct.pack(">Q", len(p.encode())) + p.encode() for p in parts)
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()[:6]).decode()


def check_canonical():
    for row in load("canonical.json"):
        try:
            is_now = canonical(row["text"])
        except (ValueError, RecursionError):
            is_now = None
        check("canonical.json", row["text"], is_now, row.get("canonical"))
        if is_now is not None:
            check("canonical.json", "digest of " + row["text"], digest(is_now.encode()), row["digest"])


# Names and keys.

prefixes = {"signal": "signal:", "approval": "approval:", "callback": "callback:", "saga": "_saga:"}


def check_keys():
    for row in load("keys.json"):
        uses = {}
        calls = row["calls"][:-1] if "refused" in row else row["calls"]
        within = "".join(f"{branch}#1//" for branch in row.get("branches", []))
        for sort, name, key in calls:
            uses[sort, name] = uses.get((sort, name), 0) + 1
            prefix = prefixes.get(sort, "")
            prefix = prefix + within if prefix.startswith("_") else within + prefix
            want = f"{prefix}{name}#{uses[sort, name]}" + ("/0" if sort == "parallel" else "")
            check("keys.json", f"{sort} {name}", key, want)


# Stories.


def check_commit(where, c, mapped):
    children = {x["key"]: x for x in c.get("children", [])}
    for e in c.get("journal", []):
        value = e["value"]
        if e["key"].startswith("_said:"):
            said = "".join(value.values())
            made = [report("message", m["role"], canonical_of(m["content"])) for m in c.get("messages", [])]
            for line in c.get("events", []):
                if line["type"] == "llm:delta":
                    made.append(report("delta", report(line["data"]["text"]), "0"))
                elif line["type"].startswith("x:"):
                    made.append(report("line", line["type"], canonical_of(line["data"])))
            check(where, e["key"], sorted(said[n:n + 8] for n in range(0, len(said), 8)), sorted(made))
        if not e["key"].startswith("_frame:"):
            continue
        refused = [i["name"] for i in value.get("in", []) if i["type"] == "child" and "run" not in i]
        for key, of in value.get("spawned", {}).items():
            if key in refused:
                continue
            child = children[key]
            text = canonical_of(child["input"]) if "input" in child else ""
            check(where, "digest of " + key, of, digest(f"{child['kind']}\0{text}".encode()))
        for key, m in value.get("mapped", {}).items():
            mapped.update({k: canonical_of(x["input"]) for k, x in children.items()})
            inputs = [mapped[f"{key}/{n}"] for n in range(m["n"])]
            check(where, "sum of " + key, m["sum"], digest("".join(f"{len(i.encode())}\0{i}" for i in inputs).encode()))
    on = (c.get("outcome") or {}).get("waits", [])
    for w in c.get("waits", []):
        # A choice among other things, and a child that was refused, are in the digest and not in the keys.
        if w["type"] == "children" and w["id"].startswith("join:") and on == [w["id"]] and where not in has_refused:
            _, mode, rest = w["id"].split(":")
            check(where, "mode of " + w["id"], mode, w["mode"])
            if "/" not in rest:
                keys = "".join(k + " \n" for k in w["keys"])
                check(where, "digest of " + w["id"], rest.split("#")[0], digest(keys.encode(), 6))


has_refused = {"child-refused.json"}


def check_story(path):
    where = os.path.basename(path)
    story = load(path)
    journal, inbox, mapped, outcome = [], {}, {}, {}
    for x in story["executions"]:
        grant = x["grant"]
        if "input" in grant and grant["journal"] == 0:
            check(where, "input of the new run", grant["input"], outcome.get("continue_with", {}).get("input"))
            untaken = [i["data"] for i in inbox.values() if i["type"] == "signal"]
            check(where, "inbox of the new run", [i["data"] for i in grant["inbox"]], untaken)
            inbox = {}
        journal = journal[:grant["journal"]]
        check(where, "entries of the journal", len(journal), grant["journal"])
        inbox.update({i["seq"]: i for i in grant["inbox"]})
        frames = said = 0
        for c in x["commits"]:
            for e in c.get("journal", []):
                if e["key"].startswith("_frame:"):
                    frames += 1
                    check(where, "key", e["key"], f"_frame:{grant['epoch']}.{frames}")
                if e["key"].startswith("_said:"):
                    said += 1
                    check(where, "key", e["key"], f"_said:{grant['epoch']}.{said}")
            check_commit(where, c, mapped)
            if "refused" not in c:
                journal += c.get("journal", [])
                if story["story"] != "map-of-50":  # items come while it is executed
                    check(where, "acknowledged", [n for n in c.get("ack", []) if n not in inbox], [])
            outcome = c.get("outcome", {})
            for n in c.get("ack", []):
                if "refused" not in c:
                    inbox.pop(n, None)
        check(where, "keys that are there twice", len(journal) - len({e["key"] for e in journal}), 0)
    for cut in story["cuts"]:
        check(where, "a cut has commits", ("like" in cut) != ("commits" in cut), True)


check_canonical()
check_keys()
stories = [p for folder in ("stories", "limits", "integers") for p in sorted(glob.glob(os.path.join(here, folder, "*.json")))]
for path in stories:
    check_story(path)
print(f"{count} checks, {len(stories)} stories")
if wrong or not stories:
    sys.exit("\n".join(wrong) or "there are no stories")
