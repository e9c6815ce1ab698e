"""Facts about one tenant that only its operators may see."""

import structlog
from fastapi import APIRouter, Response

from lucius.api.dependencies import Operator, TenantSecrets, ok
from lucius.api.openapi_parts import answers
from lucius.contract import control as contract
from lucius.core.model.routing import normalise_tenant
from lucius.usecases.errors import RejectCode, Rejected

log = structlog.get_logger(__name__)

router = APIRouter(tags=["operations"])


@router.get("/v1/tenants/{tenant_id}/webhook-secrets", **answers(contract.WebhookSecretList, 401, 403, 404, 422))
async def get_webhook_secrets(tenant_id: str, who: Operator, webhook_secrets: TenantSecrets) -> Response:
    """List the secrets that sign the webhooks of this tenant's jobs, newest first. A receiver needs one of them.

    Needs `operate` for the tenant. Each access is logged.
    """
    tenant = normalise_tenant(tenant_id)
    if tenant is None:
        raise Rejected(RejectCode.INVALID_TENANT, "this is not a tenant id")
    who.require_tenant(tenant)
    log.warning("webhook secrets were shown", tenant_id=tenant, by=who.name)
    answer = ok(contract.WebhookSecretList(tenant_id=tenant, secrets=webhook_secrets.secrets(tenant)))
    answer.headers["cache-control"] = "no-store"
    return answer
