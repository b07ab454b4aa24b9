"""Runs agents with a crash before and after every commit, against a real server, and compares how they end.

    with perdure.testing.Server() as server:
        report = perdure.testing.crash(worker, "order", {"item": "lamp"}, server=server)
    assert report.ok, report

The server is the command "perdure serve" with a folder of its own, which is removed with it. With moves_clock its clock
can be moved, so that a run that sleeps for a day takes no time.
"""

from __future__ import annotations

import datetime
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Callable, Iterable

from . import durations
from .client import Client
from .errors import Lost
from .lease import Lease
from .outside import Watch
from .problems import Problem

if TYPE_CHECKING:
    from .worker import Worker

MAX_COMMITS = 200
_begun = threading.Lock()  # a run does not commit before its trial is known


class Server:
    """A server in a process of its own. program is the command perdure: by default that of PERDURE, or of the PATH.

    With moves_clock it has a clock that advance and Trial.skip move. The clock is that of all runs, so crash executes
    them one after the other then.
    """

    def __init__(self, program: str = "", *flags: str, moves_clock: bool = False):
        program = program or os.environ.get("PERDURE") or "perdure"
        self.folder = tempfile.mkdtemp(prefix="perdure-test-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
        with socket.create_server(("127.0.0.1", 0)) as s:
            port = s.getsockname()[1]
        self.url, self.key = "http://127.0.0.1:%d" % port, ""
        data = os.path.join(self.folder, "data")
        self._log = open(os.path.join(self.folder, "log"), "w+b")
        self.moves_clock = moves_clock
        self._ahead, self._moving = 0, threading.Lock()
        how = ["dev", "-clock-from-stdin", "-policy", "watchdog_interval=20ms"] if moves_clock else ["serve"]
        try:
            self._process = subprocess.Popen([program, *how, "-data", data, "-listen", "127.0.0.1:%d" % port, *flags],
                                             stdin=subprocess.PIPE if moves_clock else subprocess.DEVNULL,
                                             stdout=subprocess.PIPE if moves_clock else self._log, stderr=self._log)
        except OSError as e:
            self._remove()
            raise RuntimeError("%s: %s; name the command perdure with PERDURE" % (program, e)) from e
        self._await(os.path.join(data, "admin.key"))

    def _await(self, key: str) -> None:
        while self._process.poll() is None:
            try:
                if Client(self.url, "").ready()[1]:
                    with open(key, encoding="utf-8") as f:
                        self.key = f.read().strip()
                    return
            except (OSError, ValueError, Problem):
                pass
            time.sleep(0.02)
        self._log.seek(0)
        said = self._log.read().decode(errors="replace")
        self._remove()
        raise RuntimeError("perdure serve has ended with %s:\n%s" % (self._process.returncode, said[-2000:]))

    def client(self) -> Client:
        return Client(self.url, self.key)

    @property
    def ahead(self) -> int:
        """How many microseconds its clock is ahead of this machine's."""
        return self._ahead

    def advance(self, by: durations.Duration) -> None:
        """Moves its clock ahead, for all runs."""
        with self._moving:
            self._move(durations.microseconds(by))

    def _advance_to(self, at: datetime.datetime) -> None:
        """Moves its clock to an instant, unless it is there."""
        with self._moving:
            here = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(microseconds=self._ahead)
            self._move((at - here) // datetime.timedelta(microseconds=1) + 1000)

    def _move(self, us: int) -> None:
        if not self.moves_clock:
            raise RuntimeError("the clock of this server can't be moved: start it with moves_clock=True")
        if us <= 0:
            return
        assert self._process.stdin and self._process.stdout
        try:
            self._process.stdin.write(b"%dus\n" % us)
            self._process.stdin.flush()
            line = b"http"
            while line.startswith(b"http"):  # its address, which it says at its start
                line = self._process.stdout.readline()
        except OSError:
            line = b""
        if not line.startswith(b"ahead "):
            raise RuntimeError("the clock can't be moved: %s" % (line.decode().strip() or "the server has ended"))
        self._ahead += us

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe:
                pipe.close()
        self._remove()

    def _remove(self) -> None:
        self._log.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Trial:
    """A run of a scenario. It crashes at its commit number crash, before or after it; 0 is no crash."""

    def __init__(self, client: Client, crash: int = 0, after: bool = False, server: Server | None = None):
        self.client, self.crash, self.after, self._server = client, crash, after, server
        self._skipped: set[str] = set()
        self.run_id, self.commits, self.crashed = "", 0, False
        self.error: BaseException | None = None

    def __str__(self) -> str:
        if not self.crash:
            return "without a crash"
        return "with a crash %s commit %d" % ("after" if self.after else "before", self.crash)

    def signal(self, name: str, data: Any = None) -> None:
        """Sends a signal. A run takes it when it waits for it, also later."""
        self.client.signal(self.run_id, name, data)

    def decide(self, decision: str, *, answer: Any = None) -> None:
        """Waits until the run asks a person, and answers: "approve" or "reject"."""
        while True:
            for a in self.client.approvals(run_id=self.run_id):
                if a["run_id"] == self.run_id:
                    self.client.decide(a["approval_id"], decision, a["action_hash"], answer=answer)
                    return
            if self.client.look(self.run_id).ended:
                return
            time.sleep(0.02)


    def skip(self, type: str = "timer") -> None:
        """Waits until the run sleeps, and moves the clock to the end of the sleep.

        With another type of wait, such as "signal", it moves the clock to the timeout of that. Each wait is skipped
        once.
        """
        while True:
            for w in self.client.activity(self.run_id).get("waits") or []:
                if w["type"] == type and w.get("timeout_at") and w["wait_id"] not in self._skipped:
                    self._skipped.add(w["wait_id"])
                    if self._server:
                        self._server._advance_to(_instant(w["timeout_at"]))
                    return
            if self.client.look(self.run_id).ended:
                return
            time.sleep(0.02)


def _instant(text: str) -> datetime.datetime:
    """Reads an instant of the API. Python 3.10 reads no Z, and only fractions of 3 or 6 digits."""
    whole, _, fraction = text.rstrip("Z").partition(".")
    return datetime.datetime.fromisoformat("%s.%s+00:00" % (whole, fraction[:6].ljust(6, "0")))


class Report:
    """What has become of the runs. differences is empty if each has ended as the one without a crash.

    outside has what the agent's code did to the machine between its steps: what it wrote, which programs it started,
    and the environment and the name of the machine, if it read these.
    """

    def __init__(self) -> None:
        self.end: dict[str, Any] = {}
        self.crashes = 0
        self.differences: list[str] = []
        self.outside: list[str] = []

    @property
    def ok(self) -> bool:
        return not self.differences and not self.outside and self.crashes > 0

    def __str__(self) -> str:
        if not self.crashes:
            return "no run has crashed: has the agent no commit?"
        return "\n".join(["%d runs have crashed, and %d have ended otherwise" % (self.crashes, len(self.differences))]
                         + self.differences + ["between its steps it %s: do that in a step" % x for x in self.outside])


class _CrashLease(Lease):
    trials: dict[str, Trial]

    def commit(self, commit: dict[str, Any]) -> dict[str, Any]:
        with _begun:
            trial = self.trials.get(self.run_id)
        if trial is None:
            return super().commit(commit)
        trial.commits += 1
        hit = trial.crash and trial.commits == trial.crash
        if hit:
            trial.crashed = True  # before it is sent: its end may be seen before its answer
        if hit and not trial.after:
            self._crash()
        out = super().commit(commit)
        if hit:
            self._crash()
        return out

    def _crash(self) -> None:
        """Drops the execution. The lease is given back at once, so that nobody waits until it ends."""
        self.released = True
        self.stop.set()
        try:
            self.worker._call("release", {"runs": [self.key()]}, 30)
        except Problem:
            pass  # the commit has ended the run, or suspended it
        raise Lost()


def crash(worker: "Worker", kind: str, input: Any = None, *, server: Server,
          during: Callable[[Trial], None] | None = None, observe: Callable[[str], Any] | None = None,
          on_thread: bool = False, wait: float = 120, allow: Iterable[str] = (), **options: Any) -> Report:
    """Executes an agent without a crash, and then once with a crash before and once after each of its commits.

    The ends have to be equal: the state, the result, the code of the error, and the messages of the thread. during is
    called for each run in a thread of its own, to send signals and to decide. observe returns what else is compared,
    of a run id: effects, for example. allow has names of files and variables that may be used between steps. options
    are those of a start.
    """
    client = server.client()
    trials: dict[str, Trial] = {}
    worker.client = client
    worker.transport = client.transport
    worker.ahead = lambda: server.ahead
    worker.lease_type = type("CrashLease", (_CrashLease,), {"trials": trials})
    watch = Watch(allow)

    def begin(trial: Trial) -> None:
        trials[trial.run_id] = trial
        watch.run(trial.run_id)

    worker.start()
    watch.__enter__()
    try:
        first = _execute(client, Trial(client, server=server), kind, input, begin, during, observe, on_thread, wait, options)
        report = Report()
        report.end = first[1]
        count = min(first[0].commits, MAX_COMMITS)
        rest = [Trial(client, n, after, server) for n in range(1, count + 1) for after in (False, True)]
        with ThreadPoolExecutor(1 if server.moves_clock else 16) as pool:
            ends = list(pool.map(lambda t: _execute(client, t, kind, input, begin, during, observe, on_thread, wait,
                                                    options), rest))
        for trial, end in ends:
            report.crashes += trial.crashed
            if end != report.end:
                report.differences.append("%s it ends with %r, and without one with %r" % (trial, end, report.end))
        report.outside = sorted(watch.seen)
        return report
    finally:
        worker.stop()
        worker.ended.wait()
        watch.__exit__()


def _during(during: Callable[[Trial], None], trial: Trial) -> None:
    try:
        during(trial)
    except BaseException as e:
        trial.error = e
        trial.client.cancel(trial.run_id, "the test has failed")


def _execute(client: Client, trial: Trial, kind: str, input: Any, begin: Callable[[Trial], None],
             during: Callable[[Trial], None] | None, observe: Callable[[str], Any] | None, on_thread: bool, wait: float,
             options: dict[str, Any]) -> tuple[Trial, dict[str, Any]]:
    thread = client.create_thread()["thread_id"] if on_thread else None
    with _begun:
        run = client.start(kind, input, run_class="agent", thread_id=thread, **options)
        trial.run_id = run.id
        begin(trial)
    if during:
        threading.Thread(target=_during, args=(during, trial), daemon=True).start()
    run = client.join(run.id, wait)
    if trial.error:
        raise trial.error
    end = {"state": run.state, "result": run.get("result"), "code": (run.get("error") or {}).get("code")}
    if run.get("hold"):
        end["held"] = run["hold"].get("message")
    if thread:
        end["messages"] = [(m["role"], m["content"]) for m in client.messages(thread)]
    if observe:
        end["observed"] = observe(run.id)
    return trial, end
