"""What workflows can be searched by in Temporal's own console and CLI."""

from datetime import timedelta

import structlog
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest
from temporalio.client import Client
from temporalio.common import SearchAttributeKey
from temporalio.service import RPCError, RPCStatusCode

from lucius.core.model import JobStatus

log = structlog.get_logger(__name__)

TENANT = SearchAttributeKey.for_keyword("LuciusTenant")
PROTOCOL = SearchAttributeKey.for_keyword("LuciusProtocol")
STATE = SearchAttributeKey.for_keyword("LuciusState")
LANE = SearchAttributeKey.for_int("LuciusLane")

KINDS = {
    TENANT.name: IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD,
    PROTOCOL.name: IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD,
    STATE.name: IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD,
    LANE.name: IndexedValueType.INDEXED_VALUE_TYPE_INT,
}
BY_ALL = " and ".join((f"{TENANT.name}=''", f"{PROTOCOL.name}=''", f"{STATE.name}=''", f"{LANE.name}=0"))
"""A server refuses a search by what it does not know, or knows as something else."""
CALL_SECONDS = timedelta(seconds=5)
_USUAL = frozenset({"", JobStatus.QUEUED, JobStatus.DISPATCHING, JobStatus.IN_PROGRESS})
NO_ANSWER = frozenset(
    {
        RPCStatusCode.UNAVAILABLE,
        RPCStatusCode.DEADLINE_EXCEEDED,
        RPCStatusCode.RESOURCE_EXHAUSTED,
        RPCStatusCode.CANCELLED,
        RPCStatusCode.NOT_FOUND,  # the namespace
    }
)


def state_of(status: str) -> str:
    """What comes and goes within seconds is told as one."""
    return str(JobStatus.IN_PROGRESS if status in _USUAL else status)


async def make_searchable(client: Client) -> bool:
    """Whether the server knows our attributes, if need be because we told it. It may not let us, as Temporal Cloud does
    not: then somebody adds them there. Raises RPCError if it does not answer."""
    if not await _why_unknown(client):
        return True
    added = AddSearchAttributesRequest(namespace=client.namespace, search_attributes=KINDS)
    reason = ""
    try:
        await client.operator_service.add_search_attributes(added, timeout=CALL_SECONDS)
    except RPCError as error:
        reason = error.message
    unknown = await _why_unknown(client)
    if unknown:
        log.warning(
            "Temporal can't search jobs by our attributes: add them there, and start anew",
            reason=reason or unknown,
            attributes={name: IndexedValueType.Name(kind) for name, kind in KINDS.items()},
        )
    return not unknown


async def _why_unknown(client: Client) -> str:
    try:
        await client.count_workflows(BY_ALL, rpc_timeout=CALL_SECONDS)
    except RPCError as error:
        if error.status in NO_ANSWER:
            raise
        return error.message
    return ""
