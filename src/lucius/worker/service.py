"""What a service author writes against: PlatformService, Task, Output."""

import asyncio
from typing import Any, TypeVar

import msgspec

from lucius.contract import Directive, StepInput
from lucius.worker.failure import StepFailure, never
from lucius.worker.workspace import Places, Workspace

T = TypeVar("T")


class Output(msgspec.Struct, frozen=True):
    """What a successful attempt leaves: a small JSON result, and refs to the artifacts it wrote."""

    result: Any = None
    artifact_refs: list[str] = msgspec.field(default_factory=list)


class Task:
    """One attempt at one step, as its service sees it."""

    __slots__ = ("_places", "_progress", "_workspace", "cancelled", "directive")

    def __init__(self, directive: Directive, places: Places) -> None:
        self.directive = directive
        self.cancelled = asyncio.Event()
        """Set once someone asked to cancel the job: stop soon, nobody waits for the result."""
        self._progress: float | None = None
        self._places = places
        self._workspace: Workspace | None = None

    @property
    def payload(self) -> dict[str, Any]:
        return self.directive.payload

    @property
    def inputs(self) -> dict[str, StepInput]:
        """What earlier steps of the job left behind, by step id."""
        return self.directive.inputs

    @property
    def workspace(self) -> Workspace:
        if self._workspace is None:
            self._workspace = Workspace(self.directive, self._places)
        return self._workspace

    def payload_as(self, kind: type[T]) -> T:
        """The payload as a typed record. A payload that does not fit fails the step for good."""
        try:
            return msgspec.convert(self.directive.payload, kind)
        except msgspec.ValidationError as error:
            raise never("INVALID_PAYLOAD", str(error)) from error

    def progress(self, done: float) -> None:
        """How far the work is, 0 to 1. It leaves with the next heartbeat."""
        self._progress = min(1.0, max(0.0, done))

    @property
    def last_progress(self) -> float | None:
        return self._progress

    def raise_if_cancelled(self) -> None:
        """For long loops: end the attempt here if the job is being cancelled."""
        if self.cancelled.is_set():
            raise StepFailure("CANCELLED", "the job is being cancelled")


class PlatformService:
    """Subclass it, name the service, write `execute`. One object serves all attempts of a process."""

    service: str

    async def execute(self, task: Task) -> Output:
        """Do the step's work. Must be safe to run twice. Raise StepFailure to fail; block only in threads."""
        raise NotImplementedError
