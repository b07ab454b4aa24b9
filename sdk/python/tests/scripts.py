"""Agents in words, as internal/testkit/agentcases/script.go describes them. Go executes the same words."""

import dataclasses
import json
from typing import Any, Optional

from perdure import Limit
from perdure.errors import Failure, WaitTimeout


@dataclasses.dataclass
class Order:
    City: str = ""
    Street: str = ""


@dataclasses.dataclass
class Moved:
    Town: str = ""
    Street: str = ""


@dataclasses.dataclass
class Retyped:
    City: int = 0
    Street: int = 0


@dataclasses.dataclass
class Longer(Order):
    Note: str = ""


@dataclasses.dataclass
class Priced:
    Amount: int = 0
    Tax: int = 0


@dataclasses.dataclass
class Renamed:
    Sum: int = 0
    Tax: int = 0


@dataclasses.dataclass
class Less:
    Amount: int = 0


@dataclasses.dataclass
class Gained(Priced):
    Currency: str = ""


INPUTS = {"": Any, "order": Order, "moved": Moved, "moved ignores": Moved, "longer": Longer, "retyped": Retyped,
          "text": str, "map": dict[str, str]}
MEASURES = {"priced": (Priced, Priced(7, 1)), "renamed": (Renamed, Renamed(7, 1)), "lost": (Less, Less(7)),
            "pointer": (Optional[Priced], Priced(7, 1)), "gained": (Gained, Gained(7, 1)), "string": (str, "abcd"),
            "int": (int, 7), "float": (float, 7.0), "bytes": (bytes, b"hi"), "ints": (list[int], [7, 8, 9]),
            "array": (tuple[int, int], (7, 8)), "map": (dict[str, int], {"Amount": 7, "Tax": 1}),
            "any": (Any, {"Amount": 7, "Tax": 1}), "raw": (object, {"Amount": 7, "Tax": 1}),
            "null": (Optional[Priced], None)}
TYPES = {"": Any, "int": int, "string": str, "lost": Less, "priced": Priced}
ENDS = (")", "]", ";", "/")


def agent(words, note, tells=False):
    """Returns an agent that executes words. note is called with what each step does."""
    async def play(ctx, input):
        script = Script(ctx, words.split(), note)
        if tells:
            script.say(json.dumps(plain(input), sort_keys=True))
        await script.play()
        return " ".join(script.out)
    return play


def plain(value):
    if dataclasses.is_dataclass(value):
        return dataclasses.asdict(value)
    return list(value) if isinstance(value, (bytes, tuple)) else value


class Script:
    def __init__(self, ctx, rest, note):
        self.ctx, self.rest, self.note, self.out, self.given = ctx, rest, note, [], []
        self.names, self.uses = {}, {}

    def say(self, value):
        self.out.append(str(value))

    def did(self, what, result):
        def f(s):
            self.note(s.run_id, what)
            return result
        return f

    async def play(self):
        while self.rest:
            word = self.rest.pop(0)
            if word in ENDS:
                return
            await self.word(word)

    def leave_out(self):
        depth = 0
        while self.rest:
            word = self.rest.pop(0)
            if word[0] in "([?":
                depth += 1
            elif word in (")", "]", ";"):
                depth -= 1
                if depth < 0:
                    return
            elif word == "/" and depth == 0:
                return

    async def word(self, word):
        parts = word.split(":") + ["", "", ""]
        method = getattr(self, "do_" + parts[0], None)
        if method:
            await method(*parts[1:4])
        elif word[0] in "([?":
            await self.block(word)
        else:
            await self.step(word, parts)

    async def block(self, word):
        ctx, name = self.ctx, word[1:]
        if word[0] == "(":
            await ctx.saga(name, self.play)
        elif word[0] == "[":
            async def inner(c):
                self.ctx = c
                await self.play()
            try:
                await ctx.branches({name: inner})
            finally:
                self.ctx = ctx
        elif ctx.version(name, 1) < 1:
            self.leave_out()
            await self.play()
        else:
            await self.play()
            self.leave_out()

    async def step(self, word, parts):
        name, about, options = word, parts[1], {}
        if parts[0] == "try":
            try:
                await self.ctx.step(about, self.failing(about))
            except Failure as e:
                self.say(e)
            return
        if parts[0] == "about":
            name, options = "paragraph", {"about": about}
        elif parts[0] == "paragraph":
            name = "paragraph"
        elif word[-1] == "+":
            name, options = word[:-1], {"undo": lambda of, s: self.note(s.run_id, "undo " + of)}
        elif word[-1] == "~":
            name, options = word[:-1], {"timeout": 60, "retries": 3}
        elif word[-1] == "%":
            name, options = word[:-1], {"limit": Limit("narrow")}
        did = (name + " " + about).strip()
        got = await self.ctx.step(name, self.did(did, did), type=str, **options)
        self.say("%s=%s" % (about, got) if about else got)

    def failing(self, about):
        def f(s):
            self.note(s.run_id, about)
            raise Failure("failed", "no " + about, permanent=True)
        return f

    async def do_wait(self, *_):
        await self.ctx.signal("go on", 3600)

    async def do_begin(self, *_):
        await self.ctx.signal("begin", 3600)

    async def do_signal(self, name, tp, _):
        value = await self.ctx.signal(name, 3600, type=TYPES[tp])
        value = plain(value)
        self.say("%s=%s" % (name, json.dumps(value) if isinstance(value, (dict, list)) else value))

    async def do_sleep(self, text, *_):
        units = {"ms": 0.001, "s": 1, "m": 60, "h": 3600}
        unit = next(u for u in units if text.endswith(u))
        await self.ctx.sleep(float(text[:-len(unit)]) * units[unit])

    async def do_approve(self, action, *_):
        verdict = await self.ctx.approve("approve", action, title="?", timeout=0)
        self.say("%s=%s" % (action, str(verdict.granted).lower()))

    async def do_callback(self, name, *_):
        try:
            await self.ctx.callback(name, 0, type=int).join()
        except WaitTimeout:
            self.say(name + " is late")

    def kid(self, x):
        return {"Of": self.ctx.run_id, "In": x}

    async def do_child(self, kind, x, tp):
        options = {"timeout": 3600} if tp == "timeout" else {"type": TYPES[tp] if tp else str}
        value = plain(await self.ctx.spawn(kind, self.kid(x), **options).join())
        self.say(json.dumps(value) if isinstance(value, dict) else value)

    async def do_spawn(self, kind, x, _):
        self.given.append(self.ctx.spawn(kind, self.kid(x), type=str))

    async def do_all(self, *_):
        self.say(" ".join(await self.ctx.join_all(*self.given)))

    async def do_settled(self, *_):
        self.say(" ".join((await self.ctx.join_all_settled(*self.given)).results))

    async def do_select(self, *_):
        self.say(self.given[await self.ctx.select(*self.given)].result())

    async def do_selectok(self, *_):
        self.say((await self.ctx.select_ok(*self.given)).result)

    async def do_race(self, *_):
        self.say((await self.ctx.race(3600, *self.given)).result)

    async def do_first(self, k, *_):
        self.say("the first %d" % len((await self.ctx.first_ok(int(k), *self.given)).results))

    async def do_map(self, kind, items, _):
        got = await self.ctx.map(kind, [self.kid(x) for x in items.split(",")], type=str)
        self.say(" ".join(got.results))

    async def do_par(self, name, items, _):
        def one(x, s) -> str:
            self.note(s.run_id, name + " " + x)
            return x
        self.say(" ".join((await self.ctx.parallel(name, items.split(","), one, limit=1)).results))

    def given_name(self, name, value):
        if value not in self.names:
            self.uses[name] = self.uses.get(name, 0) + 1
            self.names[value] = "%s%d" % (name, self.uses[name])
        self.say("%s=%s" % (name, self.names[value]))

    async def do_uuid(self, name, *_):
        self.given_name(name, self.ctx.uuid(name))

    async def do_now(self, name, *_):
        self.given_name(name, name + str(self.ctx.now(name)))

    async def do_history(self, *_):
        self.say("%d messages" % len(await self.ctx.history()))

    async def do_newest(self, *_):
        self.say("%d newest" % len([m async for m in self.ctx.newest_messages()]))

    async def do_say(self, text, *_):
        self.ctx.message("assistant", text)
        self.ctx.emit("x:line", text)
        self.ctx.delta(text + " ")

    async def do_emit(self, text, *_):
        self.ctx.emit("x:line", text)

    async def do_delta(self, text, *_):
        self.ctx.delta(text + " ")

    async def do_removed(self, name, *_):
        self.ctx.removed(name.replace("#", ":", 1))

    async def do_fail(self, *_):
        raise ValueError("a bug")

    async def do_measure(self, tp, *_):
        tp, value = MEASURES[tp]
        got = await self.ctx.step("measure", self.did("measure", value), type=tp)
        self.say(json.dumps(plain(got), sort_keys=True))
