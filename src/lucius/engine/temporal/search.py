"""What workflows can be searched by in Temporal's own console and CLI."""

import structlog
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.client import Client
from temporalio.common import SearchAttributeKey
from temporalio.service import RPCError

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


async def make_searchable(client: Client) -> bool:
    """Whether the server knows our attributes, if need be because we told it. It may not let us."""
    service = client.operator_service
    try:
        known = await service.list_search_attributes(ListSearchAttributesRequest(namespace=client.namespace))
        missing = {name: kind for name, kind in KINDS.items() if name not in known.custom_attributes}
        if missing:
            await service.add_search_attributes(
                AddSearchAttributesRequest(namespace=client.namespace, search_attributes=missing)
            )
    except RPCError as error:
        log.warning("jobs can't be searched by our attributes in Temporal: add them there", reason=error.message)
        return False
    return True
