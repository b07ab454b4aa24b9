"""Perdure for Python: durable agents.

An agent is an async function whose steps are recorded. It can be killed anywhere and goes on. The
journal is the one of all SDKs (docs/journal.md of Perdure), so another language may continue a run.
"""

from .agent import (Context, FirstSelected, Future, Limit, Retry, Selected, Settled, StepContext, Verdict)
from .checks import Report, check, checking
from .client import Client, Run, RunFailed, RunNotEnded
from .errors import (AllTasksFailed, Cancelled, Defect, Failure, SignalTimeout, StepFailed, Suspended, TaskFailed,
                     TaskStalled, TaskTimedOut, WaitTimeout)
from .handlers import Task
from .problems import Problem
from .worker import Worker

__version__ = "0.2.0.dev0"

__all__ = [
    "AllTasksFailed", "Cancelled", "Client", "Context", "Defect", "Failure", "FirstSelected", "Future", "Limit", "Problem",
    "Report", "Retry", "Run", "RunFailed", "RunNotEnded", "Selected", "Settled", "SignalTimeout", "StepContext",
    "StepFailed", "Suspended", "Task", "TaskFailed", "TaskStalled", "TaskTimedOut", "Verdict", "WaitTimeout", "Worker", "check", "checking",
]
