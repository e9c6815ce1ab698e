"""Submission of a command: from its bytes to a durable job, in a fixed order of checks. A refusal creates nothing."""

import difflib
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from msgspec.structs import replace

from lucius.contract import Accepted, ClientCallbackUrls, CommandEnvelope, Fault
from lucius.core.model.inputs import Input, Start, Submit
from lucius.core.model.records import Command
from lucius.core.model.routing import route
from lucius.core.model.statuses import JobStatus, Mode
from lucius.core.protocol.definition import ProtocolDefinition
from lucius.ports.config import ConfigSource
from lucius.ports.engine import Engine
from lucius.ports.errors import AlreadyAccepted, LimitReached
from lucius.ports.ledger import IdempotencyRow, Ledger, idempotency_token
from lucius.ports.protocols import ProtocolVersion
from lucius.usecases.access.auth import Principal
from lucius.usecases.catalog.catalog import Catalog
from lucius.usecases.catalog.lifecycle import named
from lucius.usecases.errors import RejectCode, Rejected
from lucius.usecases.submit.admission_cache import Admission
from lucius.usecases.submit.canonical import command_value, fingerprint
from lucius.usecases.submit.envelope import decode_command, find_tenant
from lucius.usecases.submit.limits import LimitDefaults, ModeChoice, caps, over_limit, resolve_mode
from lucius.usecases.submit.payloads import Payloads
from lucius.usecases.submit.ref_policy import RefPolicies
from lucius.usecases.submit.refs import check_callback_urls, check_refs
from lucius.usecases.submit.request_context import NOTHING, RequestContext, apply_context
from lucius.usecases.submit.tenant_pacing import TenantPacer, account_of_key, weigh_command
from lucius.usecases.timestamps import timestamp

JOBS_PER_UNIT = 8  # listed jobs that cost about as much as a small command


class CommandIntake:
    """Accepts commands: one durable job for each, or the existing job for a repeated command."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        engine: Engine,
        admission: Admission,
        protocols: Catalog,
        config: ConfigSource,
        refs: RefPolicies,
        limits: LimitDefaults,
        workspace_root: str,
        new_job_id: Callable[[], str],
        new_jobs_engine: str = "",
        job_timeout_ms: int | None = None,
        pacer: TenantPacer | None = None,
    ) -> None:
        self._ledger = ledger
        self._engine = engine
        self._admission = admission
        self._protocols = protocols
        self._config = config
        self._refs = refs
        self._limits = limits
        self._workspace_root = workspace_root.rstrip("/")
        self._new_job_id = new_job_id
        self._new_jobs_engine = new_jobs_engine
        self._job_timeout_ms = job_timeout_ms
        self._pacer = pacer
        self._payloads = Payloads()

    async def submit(self, body: bytes, principal: Principal, context: RequestContext = NOTHING) -> Accepted:
        """Accept one command; `context` fills in what its envelope lacks. Raises Rejected."""
        envelope = await self._decode(body, principal)
        envelope, tracestate = apply_context(envelope, context)
        try:
            protocol = choose_protocol(self._protocols, envelope.request_type, envelope.protocol_version)
        except Rejected as refused:
            return await self._repeated(envelope, principal, refused)
        try:
            with self._charge(envelope.tenant_id):
                payload = self._payloads.fill(protocol, envelope.payload)
            self._check_refs(envelope)
        except Rejected as refused:
            return await self._unless_accepted_before(envelope, protocol, principal, refused)
        self._check_callbacks(envelope)
        job_id = self._new_job_id()
        command = self._command(job_id, envelope, protocol, payload, principal)
        if tracestate is not None:
            command = replace(command, tracestate=tracestate)
        try:
            choice = resolve_mode(self._config.current(), envelope.mode, command.tenant_id, command.doc_id)
        except Rejected as refused:
            return await self._unless_known(command, refused)
        return await self._accept(job_id, command, protocol, choice)

    async def _decode(self, body: bytes, principal: Principal) -> CommandEnvelope:
        """Decode a command and check that its tenant may submit it now; refused commands are charged as well."""
        if self._pacer is None:
            envelope = decode_command(body)
            principal.require_tenant(envelope.tenant_id)
            return envelope
        account = _account(principal, find_tenant(body))
        await self._pacer.admit(account, weigh_command(body))
        with self._pacer.charge(account):
            envelope = decode_command(body)
        principal.require_tenant(envelope.tenant_id)
        if envelope.tenant_id != account:
            await self._pacer.admit(envelope.tenant_id, weigh_command(body))
        return envelope

    async def admit_list(self, principal: Principal, tenant_id: str | None, jobs: int) -> None:
        """Wait until the caller may list `jobs` more jobs. Raises Rejected if the wait would be too long."""
        if self._pacer is not None:
            await self._pacer.admit_list(_account(principal, tenant_id), 1 + jobs // JOBS_PER_UNIT)

    def count_list(self, principal: Principal, tenant_id: str | None, jobs: int) -> None:
        """Charge the caller for the jobs that a list returned."""
        if self._pacer is not None:
            self._pacer.count_list(_account(principal, tenant_id), jobs // JOBS_PER_UNIT)

    def _charge(self, tenant_id: str) -> AbstractContextManager[None]:
        return nullcontext() if self._pacer is None else self._pacer.charge(tenant_id)

    async def _repeated(self, envelope: CommandEnvelope, who: Principal, refused: Rejected) -> Accepted:
        """Return the job of a command accepted before its protocol was deprecated; otherwise raise `refused`."""
        retired = self._protocols.retired(envelope.request_type, envelope.protocol_version)
        if retired is None:
            raise refused
        command = self._command("", envelope, retired.protocol, {}, who)
        return await self._unless_known(command, refused)

    async def _unless_accepted_before(
        self, envelope: CommandEnvelope, protocol: ProtocolDefinition, who: Principal, refused: Rejected
    ) -> Accepted:
        """Return the job if the same command was accepted under earlier rules; otherwise raise `refused`."""
        try:
            command = self._command("", envelope, protocol, {}, who)
        except Rejected:  # the command can't be hashed, so no job has its hash
            raise refused from None
        known = await self._ledger.accepted(command.tenant_id, idempotency_token(command))
        if known is None or known.idempotency_hash != command.idempotency_hash:
            raise refused
        return await self._existing(known, command)

    async def _unless_known(self, command: Command, refused: Rejected) -> Accepted:
        """Return the job of a command that was accepted before, although refused today; otherwise raise `refused`."""
        known = await self._ledger.accepted(command.tenant_id, idempotency_token(command))
        if known is None:
            raise refused
        return await self._existing(known, command)

    def _check_refs(self, envelope: CommandEnvelope) -> None:
        refs = self._refs.named_rules(envelope.tenant_id)
        if faults := check_refs(envelope.input_ref, envelope.output_ref, refs):
            raise Rejected(RejectCode.FORBIDDEN_REF, f"{faults[0].pointer}: {faults[0].message}", faults)

    def _check_callbacks(self, envelope: CommandEnvelope) -> None:
        callbacks, own = self._config.current().callbacks, self._refs.callback_hosts(envelope.tenant_id)
        if faults := check_callback_urls(
            envelope.callback_urls, callbacks.hosts, callbacks.job_hosts, own, allow_loopback=callbacks.allow_loopback
        ):
            raise Rejected(RejectCode.CALLBACK_URL_FORBIDDEN, f"{faults[0].pointer}: {faults[0].message}", faults)

    def _command(
        self,
        job_id: str,
        envelope: CommandEnvelope,
        protocol: ProtocolDefinition,
        payload: dict[str, Any],
        who: Principal,
    ) -> Command:
        target = envelope.target
        with self._charge(envelope.tenant_id):
            idempotency_hash = _fingerprint(envelope, protocol)
        return Command(
            tenant_id=envelope.tenant_id,
            request_type=protocol.request_type,
            input_ref=envelope.input_ref,
            output_ref=envelope.output_ref,
            payload=payload,
            schema_version=envelope.schema_version,
            workspace_ref=f"{self._workspace_root}/lucius/{envelope.tenant_id}/{job_id}",
            correlation_id=envelope.correlation_id or job_id,
            mode=Mode(envelope.mode) if envelope.mode else None,
            idempotency_key=envelope.idempotency_key,
            idempotency_hash=idempotency_hash,
            doc_id=envelope.doc_id,
            traceparent=envelope.traceparent,
            callback_urls=_given_urls(envelope.callback_urls),
            target={"type": target.type, "id": target.id} if target else None,
            submitted_by=who.name,
        )

    async def _accept(
        self, job_id: str, command: Command, protocol: ProtocolDefinition, choice: ModeChoice
    ) -> Accepted:
        submit = Submit(
            job_id=job_id,
            command=command,
            protocol=protocol,
            protocol_digest=self._payloads.digest(protocol),
            routing=route(command.tenant_id, command.doc_id, choice.mode, choice.source, choice.reason),
            caps=caps(self._config.current(), self._limits, command.tenant_id, choice.mode, protocol),
            engine=self._new_jobs_engine,
            default_timeout_ms=self._job_timeout_ms,
        )
        if full := await self._admission.full(submit.caps):
            return await self._unless_known(command, over_limit(full))
        inputs: tuple[Input, ...] = (submit,) if self._new_jobs_engine else (submit, Start())
        try:
            decision = await self._engine.create(inputs)
        except AlreadyAccepted as known:
            return await self._existing(IdempotencyRow(known.job_id, known.idempotency_hash), command)
        except LimitReached as reached:
            self._admission.refused(reached)
            raise over_limit(reached) from None
        # Report the status at acceptance, even if the same commit handed the first step to a service.
        status = JobStatus.DISPATCHING if decision.handed_over else decision.job.status
        return Accepted(jobId=job_id, status=status, duplicate=False)

    async def _existing(self, known: IdempotencyRow, command: Command) -> Accepted:
        if known.idempotency_hash != command.idempotency_hash:
            raise Rejected(
                RejectCode.IDEMPOTENCY_KEY_REUSED,
                f"this idempotency_key was used for job {known.job_id} with a different command",
                job_id=known.job_id,
            )
        view = await self._ledger.load(known.job_id, fresh=True)
        if view is None:
            raise Rejected(RejectCode.JOB_NOT_FOUND, f"job {known.job_id} holds the key but is gone")
        accepted_at = timestamp(view.job.created_at)
        return Accepted(jobId=known.job_id, status=view.job.status, duplicate=True, accepted_at=accepted_at)


def _account(principal: Principal, tenant_id: str | None) -> str:
    """Return the account to charge for a request: the tenant's, if the key may use it, else the key's own."""
    if len(principal.tenants) == 1 and not principal.every_tenant:
        (tenant_id,) = principal.tenants
    return tenant_id if tenant_id is not None and principal.sees(tenant_id) else account_of_key(principal.name)


def _fingerprint(envelope: CommandEnvelope, protocol: ProtocolDefinition) -> str:
    """Hash what the client sent, before defaults: a changed default must not make a repeat a new command."""
    return fingerprint(command_value(envelope, protocol.request_type))


def _given_urls(urls: ClientCallbackUrls | None) -> dict[str, str]:
    if urls is None:
        return {}
    given = {"ack": urls.ack, "result": urls.result, "job": urls.job}
    return {name: url for name, url in given.items() if url is not None}


def choose_protocol(catalog: Catalog, request_type: str, version: int | None = None) -> ProtocolDefinition:
    """Return the newest version, or the requested one.

    Raises Rejected: UNKNOWN_REQUEST_TYPE, UNKNOWN_PROTOCOL_VERSION, or PROTOCOL_DEPRECATED with the successor named.
    """
    protocol = catalog.resolve(request_type, version)
    if protocol is not None:
        return protocol
    retired = catalog.retired(request_type, version)
    if retired is not None:
        raise _deprecated(catalog, retired, "/request_type" if version is None else "/protocol_version")
    kind = catalog.request_type(request_type)
    if kind is None:
        raise _unknown_type(catalog, request_type)
    versions = [str(other.version) for other in catalog.list() if other.request_type == kind]
    message = f"{kind} has no version {version}; it has {', '.join(versions) or 'none in use'}"
    raise Rejected(RejectCode.UNKNOWN_PROTOCOL_VERSION, message, [Fault("/protocol_version", message)])


def _deprecated(catalog: Catalog, retired: ProtocolVersion, pointer: str) -> Rejected:
    successor = catalog.successor(retired)
    instead = f"use {successor.request_type} version {successor.version}" if successor else "it has no successor"
    reason = f" ({retired.deprecated.reason})" if retired.deprecated and retired.deprecated.reason else ""
    message = f"{named(retired)} is deprecated{reason}; {instead}"
    return Rejected(RejectCode.PROTOCOL_DEPRECATED, message, [Fault(pointer, message)])


def _unknown_type(catalog: Catalog, request_type: str) -> Rejected:
    known = sorted({protocol.request_type for protocol in catalog.list()})
    close = difflib.get_close_matches(request_type.upper(), known, n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    message = f"unknown request type; {hint}known: {', '.join(known) or 'none'}"
    return Rejected(RejectCode.UNKNOWN_REQUEST_TYPE, message, [Fault("/request_type", message)])
