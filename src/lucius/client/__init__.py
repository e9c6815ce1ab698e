"""Python client: AsyncClient, and Client for blocking code. docs/how-to/python-client.md shows both.

Imports the message contract and nothing else of Lucius. Its methods return the contract's records.
"""

from lucius.client.aio import AsyncClient
from lucius.client.batch import Outcome
from lucius.client.command import Command, CommandOptions, Mode, Ref
from lucius.client.errors import (
    Conflict,
    Forbidden,
    Invalid,
    JobFailed,
    LuciusError,
    Misconfigured,
    NotFound,
    NotLucius,
    RequestRefused,
    TimedOut,
    TooMany,
    Unauthenticated,
    Unavailable,
    Unreachable,
)
from lucius.client.sync import Client
from lucius.client.waiting import TERMINAL
from lucius.contract import (
    Accepted,
    AttemptView,
    EventView,
    Fault,
    JobSummary,
    JobView,
    Problem,
    StepView,
    StepWithAttempts,
    Target,
)

__all__ = [
    "TERMINAL",
    "Accepted",
    "AsyncClient",
    "AttemptView",
    "Client",
    "Command",
    "CommandOptions",
    "Conflict",
    "EventView",
    "Fault",
    "Forbidden",
    "Invalid",
    "JobFailed",
    "JobSummary",
    "JobView",
    "LuciusError",
    "Misconfigured",
    "Mode",
    "NotFound",
    "NotLucius",
    "Outcome",
    "Problem",
    "Ref",
    "RequestRefused",
    "StepView",
    "StepWithAttempts",
    "Target",
    "TimedOut",
    "TooMany",
    "Unauthenticated",
    "Unavailable",
    "Unreachable",
]
