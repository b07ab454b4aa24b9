"""Durable agents. An agent is an async function that is called from its first line whenever its run is leased."""

from .branch import Branch
from .context import Context
from .execution import Execution
from .futures import Future, Verdict
from .joins import FirstSelected, Selected, Settled
from .limits import Limit
from .steps import Retry, StepContext

__all__ = ["Branch", "Context", "Execution", "FirstSelected", "Future", "Limit", "Retry", "Selected", "Settled", "StepContext",
           "Verdict"]
