"""Search attributes of job workflows, for Temporal's console and CLI."""

from datetime import timedelta

import structlog
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest
from temporalio.client import Client
from temporalio.common import SearchAttributeKey
from temporalio.service import RPCError, RPCStatusCode

from lucius.core.model.statuses import JobStatus

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
ALL_ATTRIBUTES_QUERY = " and ".join((f"{TENANT.name}=''", f"{PROTOCOL.name}=''", f"{STATE.name}=''", f"{LANE.name}=0"))
"""Query that a server refuses if it does not know one of the attributes, or knows it with another type."""
REQUEST_TIMEOUT = timedelta(seconds=5)
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
    """Return the state to show for a job status. Those that last only seconds are shown as one."""
    return str(JobStatus.IN_PROGRESS if status in _USUAL else status)


async def make_searchable(client: Client) -> bool:
    """Register the search attributes if the server lacks them; return whether it knows them now.

    The server may refuse, as Temporal Cloud does: then an operator has to add them there. Raises RPCError if it does
    not answer.
    """
    if not await _why_unknown(client):
        return True
    added = AddSearchAttributesRequest(namespace=client.namespace, search_attributes=KINDS)
    reason = ""
    try:
        await client.operator_service.add_search_attributes(added, timeout=REQUEST_TIMEOUT)
    except RPCError as error:
        reason = error.message
    unknown = await _why_unknown(client)
    if unknown:
        log.warning(
            "Temporal does not know the search attributes: add them there and restart",
            reason=reason or unknown,
            attributes={name: IndexedValueType.Name(kind) for name, kind in KINDS.items()},
        )
    return not unknown


async def _why_unknown(client: Client) -> str:
    try:
        await client.count_workflows(ALL_ATTRIBUTES_QUERY, rpc_timeout=REQUEST_TIMEOUT)
    except RPCError as error:
        if error.status in NO_ANSWER:
            raise
        return error.message
    return ""
