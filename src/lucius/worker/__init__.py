"""SDK for platform services: the author writes a step's function, the runtime does the rest of the contract.

Pull, deduplication, ACK, heartbeat, RESULT, spool and graceful stop live here. Imports the message contract and the
bus, never the ledger, the core, the service layer or the API: a service has a repository of its own.
"""

from lucius.worker.context import StepContext, StepResult
from lucius.worker.failure import (
    CompensationRequired,
    DependencyFailed,
    NonRetryable,
    RateLimited,
    StepFailure,
    Stopped,
    StopReason,
    Transient,
    failure_from_status,
)
from lucius.worker.failure_classes import FailureClass
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
