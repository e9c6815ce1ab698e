"""The door: from a command's bytes to a durable job, in a fixed order of checks. A refusal creates nothing."""

from collections.abc import Callable
from typing import Any

from lucius.contract import Accepted, ClientCallbackUrls, CommandEnvelope
from lucius.core.inputs import Input, Start, Submit
from lucius.core.model import Command, JobStatus, Mode
from lucius.core.protocol import Protocol
from lucius.core.routing import route
from lucius.ports.config import ConfigSource
from lucius.ports.errors import AlreadyAccepted, LimitReached
from lucius.ports.ledger import IdempotencyRow, Ledger, idempotency_token
from lucius.service.admission import Admission
from lucius.service.auth import Principal
from lucius.service.canonical import command_value, fingerprint
from lucius.service.catalog import Catalog
from lucius.service.config import LimitDefaults, ModeChoice, caps, over_limit, resolve_mode
from lucius.service.envelope import decode_command
from lucius.service.errors import RejectCode, Rejected
from lucius.service.jobs import Jobs
from lucius.service.payloads import Payloads
from lucius.service.protocols import choose_protocol
from lucius.service.refs import check_callback_urls, check_refs


class Ingress:
    def __init__(
        self,
        *,
        ledger: Ledger,
        jobs: Jobs,
        admission: Admission,
        protocols: Catalog,
        config: ConfigSource,
        limits: LimitDefaults,
        workspace_root: str,
        new_job_id: Callable[[], str],
        engine: str = "",
    ) -> None:
        self._ledger = ledger
        self._jobs = jobs
        self._admission = admission
        self._protocols = protocols
        self._config = config
        self._limits = limits
        self._workspace_root = workspace_root.rstrip("/")
        self._new_job_id = new_job_id
        self._engine = engine
        self._payloads = Payloads()

    async def submit(self, body: bytes, principal: Principal) -> Accepted:
        """One command. Raises Rejected."""
        envelope = decode_command(body)
        principal.require_tenant(envelope.tenant_id)
        try:
            protocol = choose_protocol(self._protocols, envelope.request_type, envelope.protocol_version)
        except Rejected as refused:
            return await self._repeated(envelope, principal, refused)
        payload = self._payloads.fill(protocol, envelope.payload)
        self._check_policy(envelope)
        job_id = self._new_job_id()
        command = self._command(job_id, envelope, protocol, payload, principal)
        try:
            choice = resolve_mode(self._config.current(), envelope.mode, command.tenant_id, command.doc_id)
        except Rejected as refused:
            return await self._unless_known(command, refused)
        return await self._accept(job_id, command, protocol, choice)

    async def _repeated(self, envelope: CommandEnvelope, who: Principal, refused: Rejected) -> Accepted:
        """A deprecated protocol takes nothing new; a command that it took before still finds its job."""
        retired = self._protocols.retired(envelope.request_type, envelope.protocol_version)
        if retired is None:
            raise refused
        command = self._command("", envelope, retired.protocol, {}, who)
        return await self._unless_known(command, refused)

    async def _unless_known(self, command: Command, refused: Rejected) -> Accepted:
        """What was accepted once finds its job, whatever would be said to it today."""
        known = await self._ledger.accepted(command.tenant_id, idempotency_token(command))
        if known is None:
            raise refused
        return await self._existing(known, command)

    def _check_policy(self, envelope: CommandEnvelope) -> None:
        config = self._config.current()
        if faults := check_refs(envelope.input_ref, envelope.output_ref, config.refs):
            raise Rejected(RejectCode.FORBIDDEN_REF, f"{faults[0].pointer}: {faults[0].message}", faults)
        callbacks = config.callbacks
        if faults := check_callback_urls(envelope.callback_urls, callbacks.hosts, callbacks.job_hosts):
            raise Rejected(RejectCode.CALLBACK_URL_FORBIDDEN, f"{faults[0].pointer}: {faults[0].message}", faults)

    def _command(
        self, job_id: str, envelope: CommandEnvelope, protocol: Protocol, payload: dict[str, Any], who: Principal
    ) -> Command:
        target = envelope.target
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
            idempotency_hash=_fingerprint(envelope, protocol),
            doc_id=envelope.doc_id,
            traceparent=envelope.traceparent,
            callback_urls=_given_urls(envelope.callback_urls),
            target={"type": target.type, "id": target.id} if target else None,
            submitted_by=who.name,
        )

    async def _accept(self, job_id: str, command: Command, protocol: Protocol, choice: ModeChoice) -> Accepted:
        submit = Submit(
            job_id=job_id,
            command=command,
            protocol=protocol,
            protocol_digest=self._payloads.digest(protocol),
            routing=route(command.tenant_id, command.doc_id, choice.mode, choice.source, choice.reason),
            caps=caps(self._config.current(), self._limits, command.tenant_id, choice.mode, protocol),
            engine=self._engine,
        )
        if full := await self._admission.full(submit.caps):
            return await self._unless_known(command, over_limit(full))
        inputs: tuple[Input, ...] = (submit,) if self._engine else (submit, Start())
        try:
            decision = await self._jobs.create(inputs)
        except AlreadyAccepted as known:
            return await self._existing(IdempotencyRow(known.job_id, known.idempotency_hash), command)
        except LimitReached as reached:
            self._admission.refused(reached)
            raise over_limit(reached) from None
        # What was accepted is what the command is told, also when a service was given its first step with that.
        status = JobStatus.DISPATCHING if decision.given else decision.job.status
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
        return Accepted(jobId=known.job_id, status=view.job.status, duplicate=True)


def _fingerprint(envelope: CommandEnvelope, protocol: Protocol) -> str:
    """Of what the client sent, before defaults: a default that changes later must not make a repeat a new command."""
    return fingerprint(command_value(envelope, protocol.request_type))


def _given_urls(urls: ClientCallbackUrls | None) -> dict[str, str]:
    if urls is None:
        return {}
    given = {"ack": urls.ack, "result": urls.result, "job": urls.job}
    return {name: url for name, url in given.items() if url is not None}
