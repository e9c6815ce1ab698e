"""What the author of a platform service uses: write the step's function, and the runtime does the rest of the contract.

Pull, dedupe, ACK, heartbeat, RESULT, spool and graceful stop live here. Imports the message contract and the bus, never
the ledger, the core, the service layer or the API: a service lives in a repository of its own.
"""

from lucius.worker.context import StepContext, StepResult
from lucius.worker.failure import (
    CompensationRequired,
    DependencyFailed,
    FailureClass,
    NonRetryable,
    RateLimited,
    StepFailure,
    Stopped,
    StopReason,
    Transient,
    failure_from_status,
)
from lucius.worker.service import Service
from lucius.worker.workspace import Artifact, Files, Workspace

__all__ = [
    "Artifact",
    "CompensationRequired",
    "DependencyFailed",
    "FailureClass",
    "Files",
    "NonRetryable",
    "RateLimited",
    "Service",
    "StepContext",
    "StepFailure",
    "StepResult",
    "StopReason",
    "Stopped",
    "Transient",
    "Workspace",
    "failure_from_status",
]
