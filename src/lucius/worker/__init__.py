"""What the author of a platform service uses: write `execute`, and the runtime does the rest of the contract.

Pull, dedupe, ACK, heartbeat, RESULT and graceful stop live here. Imports the message contract and the bus port, never
the ledger, the core's decisions, the service layer or the API: a service may live in another repository.
"""

from lucius.worker.failure import FailureClass, StepFailure
from lucius.worker.host import HostOptions, host
from lucius.worker.service import Output, PlatformService, Task
from lucius.worker.workspace import Places, Workspace

__all__ = [
    "FailureClass",
    "HostOptions",
    "Output",
    "Places",
    "PlatformService",
    "StepFailure",
    "Task",
    "Workspace",
    "host",
]
