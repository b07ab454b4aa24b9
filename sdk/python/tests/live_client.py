"""Makes each call of perdure.Client against a real server, with a worker beside it. For client_test.go."""

import datetime
import inspect
import os

import perdure
from perdure import problems

worker = perdure.Worker(grace=1)
called = set()


class Client(perdure.Client):
    def __getattribute__(self, name):
        called.add(name)
        return super().__getattribute__(name)


@worker.task("echo")
def echo(value) -> object:
    return value


@worker.agent("ask")
async def ask(ctx, about) -> object:
    ctx.publish("state", {"about": about})
    await ctx.step("plan", lambda: {"about": about})
    verdict = await ctx.approve("pay", {"about": about}, timeout=600)
    paid = ctx.callback("paid", 600)
    await paid.token()
    return [verdict.granted, await paid.join(), await ctx.signal("go", 600)]


def refused(error, call, *args, **options):
    try:
        call(*args, **options)
    except error as e:
        return e
    raise AssertionError("%s%s was not refused" % (call.__name__, args))


def runs(c):
    run = c.run("echo", {"a": 1}, name="order/7", metadata={"who": "me"})
    assert run.result == {"a": 1}, run
    assert c.look(run.id).state == "completed"
    assert c.by_name("order/7").id == run.id
    assert c.name_run(run.id, "order seven", from_seq=1)["name"] == "order seven"
    assert c.by_name("order seven").id == run.id
    assert refused(problems.NotFound, c.by_name, "nobody").code == "not_found"
    again = c.retry(run.id)
    assert c.join(again.id).result == {"a": 1}
    many = c.retry_many([run.id])
    assert c.join(many[0]["retried_by_run_id"]).result == {"a": 1}, many
    assert run.id in [r.id for r in c.list(kind="echo", metadata_who="me", created_after=long_ago)]
    assert c.counts(kind="echo")
    assert [r.id for r in c.tree(run.id)] == [run.id]
    assert c.deliverable(run.id)["content"] == {"a": 1}
    assert c.artifacts(run.id) == []
    late = [*c.late_results(run.id)]  # those of the retries
    assert [x["result"] for x in late] == [{"a": 1}] * 2, late
    refused(problems.NotFound, c.artifact, run.id, "x")
    refused(problems.Problem, c.adopt, run.id, 9)
    assert c.discard(run.id, late[0]["n"]).id == run.id
    assert "run:completed" in [e["type"] for e in c.events(run.id)]
    assert "run:completed" in [e["type"] for e in c.stream(run.id)]
    many = c.start_many([{"kind": "echo", "input": 1}, {"kind": ""}])
    assert [bool(r.get("error")) for r in many] == [False, True], many
    later = c.start("echo", 1, delay=3600)
    assert c.defer(later.id)["status"] in ("deferred", "queued")
    assert c.cancel(later.id, "enough", wait=30).state == "cancelled"
    group = c.create_group([run.id, again.id], mode="all")
    assert c.join_group(group["group_id"], 30)["state"] and c.group(group["group_id"])
    listed = [g["group_id"] for g in c.groups()]
    assert group["group_id"] in listed and not [*c.groups("timed_out")], listed
    c.delete(run.id)


def unique(c):
    first = c.start("echo", 1, delay=3600, unique={"key": "k", "while": "for", "for": 3600})
    e = refused(problems.NotUnique, c.start, "echo", 2, unique={"key": "k", "while": "for", "for": 60, "on_conflict": "reject"})
    assert e.status == 409
    slow = [c.start("echo", n, debounce={"key": "d", "for": 3600, "max": 7200}) for n in (1, 2)]
    assert slow[0].id == slow[1].id, slow
    c.cancel(first.id)
    c.cancel(slow[0].id)


def people(c):
    run = c.start("ask", "lamp", run_class="agent")
    while True:
        found = [a for a in c.approvals() if a["run_id"] == run.id]
        if found:
            break
    approval = c.approval(found[0]["approval_id"])
    assert c.view(run.id, "state")["value"] == {"about": "lamp"} and [v["name"] for v in c.views(run.id)] == ["state"]
    assert "plan#1" in [s["key"] for s in c.steps(run.id)]
    seq = [s["seq"] for s in c.steps(run.id) if s["key"] == "plan#1"][0]
    assert c.step(run.id, seq)["value"]["ok"] == {"about": "lamp"}
    refused(problems.ActionChanged, c.decide, approval["approval_id"], "approve", "another")
    assert c.decide(approval["approval_id"], "approve", approval["action_hash"])["state"] == "approved"
    token = ""
    while not token:
        token = "".join(e["value"] for e in c.replay(run.id)["journal"] if e["key"] == "_token:callback:paid#1")
    assert c.answer_callback(token, 7)
    c.signal(run.id, "go", "now", idempotency_key="once")
    c.signal(run.id, "go", "now", idempotency_key="once")
    assert c.activity(run.id)
    assert c.join(run.id).result == [True, 7, "now"]
    items = [*c.inbox_items(run.id)]
    assert items and c.inbox_item(run.id, items[0]["seq"])["type"] == items[0]["type"]
    refused(problems.Problem, c.continue_run, run.id, "job", status="done")


def threads(c):
    thread = c.create_thread({"a": 1}, name="case 7")
    assert c.create_thread({"a": 2}, name="case 7")["thread_id"] == thread["thread_id"]
    assert c.thread_by_name("case 7")["thread_id"] == thread["thread_id"]
    c.name_thread(thread["thread_id"], "the case")
    assert c.thread(thread["thread_id"])["metadata"] == {"a": 1}
    assert c.change_thread(thread["thread_id"], {"a": None, "b": 2})["metadata"] == {"b": 2}
    other = c.create_thread()
    refused(problems.NameTaken, c.name_thread, other["thread_id"], "case 7")
    c.append_message(thread["thread_id"], "user", "hello")
    assert [m["content"] for m in c.messages(thread["thread_id"])] == ["hello"]
    assert len([*c.threads()]) == 2
    answer = c.chat("hello", kind="echo", wait=30)
    assert answer["thread_id"], answer
    c.delete_thread(other["thread_id"])


def limits(c):
    c.put_limit("mail", concurrency=2, rate={"count": 5, "per": 1}, per_key=True)
    assert c.limit("mail")["rate"]["per"] == "1s" and [x["name"] for x in c.limits()] == ["mail"]
    c.put_limit_key("mail", "a/b", concurrency=1)
    assert [k["key"] for k in c.limit_keys("mail")] == ["a/b"]
    c.close_limit("mail", 3600, key="a/b", reason="they are down")
    c.close_limit("mail", until=datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(hours=1))
    assert c.limit("mail")["closed_until"]
    c.open_limit("mail")
    c.open_limit("mail", key="a/b")
    assert c.run("echo", 3, limits=["mail"], limit_key="a/b", wait=30).result == 3
    c.delete_limit_key("mail", "a/b")
    c.delete_limit("mail")
    refused(problems.UnknownLimit, c.start, "echo", 1, limits=["mail"])


def schedules(c):
    c.create_schedule("echo", {"n": 1}, name="nightly", cron="30 2 * * *", timezone="Europe/Zurich")
    refused(problems.NameTaken, c.create_schedule, "echo", name="nightly", every=60)
    assert c.put_schedule("nightly", "echo", {"n": 2}, every=3600, jitter=60, timeout=30)["every"] == "1h0m0s"
    assert [s["name"] for s in c.schedules()] == ["nightly"]
    assert len(c.upcoming_instants("nightly", 3)) == 3
    assert c.pause_schedule("nightly")["state"] == "paused" and c.resume_schedule("nightly")["state"] == "active"
    assert c.join(c.trigger_schedule("nightly").id).result == {"n": 2}
    assert c.schedule("nightly")["fired"] is not None
    c.delete_schedule("nightly")


def hooks(c):
    hook = c.create_webhook(os.environ["HOOK"], events=["run:completed"], description="mine")
    id = hook["webhook_id"]
    assert hook["secret"] and [w["webhook_id"] for w in c.webhooks()] == [id]
    assert c.change_webhook(id, description="ours")["description"] == "ours" == c.webhook(id)["description"]
    assert c.rotate_webhook(id)["secret"] != hook["secret"]
    assert c.test_webhook(id)["delivered"]
    c.run("echo", 1)
    while not [*c.deliveries(id)]:
        pass
    delivery = [*c.deliveries(id)][0]
    while c.delivery(delivery["delivery_id"])["state"] != "delivered":
        pass
    c.redeliver(delivery["delivery_id"])
    c.delete_webhook(id)


def server(c):
    assert c.session()["tenant"] and c.health() and c.ready()[1] and c.attention() and c.run_history(3600, 60)
    assert isinstance(c.signing_keys(), list)
    assert {"echo", "ask"} <= {k["kind"] for k in c.kinds()} and c.kind("echo")["class"] == "task"
    assert c.change_kind("echo", timeout=60)["timeout"] == "1m0s"
    c.change_kind("echo", remove=["timeout"])
    c.kind_stats("echo")
    assert [*c.queues()]
    assert c.for_tenant("other").transport.tenant == "other"
    refused(problems.Problem, c.for_tenant("other").look, "x")
    refused(problems.Problem, c.delete_kind, "nothing")


long_ago = datetime.datetime(2000, 1, 1, tzinfo=datetime.timezone.utc)
c = Client()
worker.start()
for part in (runs, unique, people, threads, limits, schedules, hooks, server):
    part(c)
c.close()
missing = {n for n, _ in inspect.getmembers(perdure.Client, inspect.isfunction) if n[0] != "_"} - called
assert not missing, missing
worker.stop()
print("every call")
