"""A control plane as a list of its parts, each built once from the settings and the opened adapters."""

import random
from functools import cached_property, partial

from lucius.adapters.config.file import ConfigFile
from lucius.adapters.protocols.checker import ProtocolChecker
from lucius.adapters.protocols.directory import SHIPPED, ProtocolsDir
from lucius.bootstrap import check_protocol
from lucius.bootstrap.adapters import open_caller, open_dead_letters, open_webhook_secrets
from lucius.bootstrap.drain import Drain
from lucius.bootstrap.ids import new_job_id
from lucius.bootstrap.keys import started_keys, token_secrets
from lucius.bootstrap.own_files import ref_defaults
from lucius.bootstrap.settings import Settings
from lucius.core.model.decision import Env
from lucius.engine.dead_letters import DeadLetterRunner
from lucius.engine.embedded.engine import EmbeddedEngine
from lucius.engine.embedded.relay import Relay
from lucius.engine.embedded.sweeper import Sweeper
from lucius.engine.liveness import SingleProcessLiveness
from lucius.engine.loops import QUIET_SECONDS, EngineLoops
from lucius.engine.outbound.calls import StepCalls
from lucius.engine.outbound.http_attempt import HttpAttempt
from lucius.engine.outbound.job_webhooks import MAX_CONCURRENT_CALLS, JobWebhooks
from lucius.engine.outbound.runner import OutboundRunner
from lucius.observability.metrics import Metrics
from lucius.observability.readiness import Readiness, Role, readiness_of
from lucius.ports.admission import AdmissionCache
from lucius.ports.bus import Publisher
from lucius.ports.clock import Clock
from lucius.ports.config import ConfigSource
from lucius.ports.engine import Engine
from lucius.ports.errors import SettingsError
from lucius.ports.http import Caller
from lucius.ports.peers import MAX_SWEEP_BACKOFF, EngineLiveness
from lucius.ports.store import Store
from lucius.usecases.access.auth import Authenticator
from lucius.usecases.access.webhook_secrets import WebhookSecrets
from lucius.usecases.callbacks.apply import Callbacks
from lucius.usecases.callbacks.tokens import TokenSigner
from lucius.usecases.catalog.catalog import Catalog
from lucius.usecases.handover.broker import HandoverBroker
from lucius.usecases.handover.deliverable_directives import DeliverableDirectives
from lucius.usecases.handover.directive_loader import DirectiveLoader
from lucius.usecases.handover.handover_recorder import HandoverRecorder
from lucius.usecases.handover.outbox_handover import OutboxHandover
from lucius.usecases.handover.publish import BusHandover
from lucius.usecases.handover.pull import DirectivePulls
from lucius.usecases.handover.rendering import DirectiveWriter
from lucius.usecases.handover.row_holds import RowHolds
from lucius.usecases.handover.unacked_caps import UnackedCaps
from lucius.usecases.handover.unpublished_claims import UnpublishedClaims
from lucius.usecases.notifier import Notifier
from lucius.usecases.operations.operations import Operations
from lucius.usecases.operations.operator_actions import RunLimits
from lucius.usecases.operations.reviews import Reviews
from lucius.usecases.queries.backlog import Backlogs
from lucius.usecases.queries.jobs import Queries
from lucius.usecases.queries.services import ServiceRegistry
from lucius.usecases.submit.admission_cache import Admission
from lucius.usecases.submit.limits import LimitDefaults
from lucius.usecases.submit.ref_policy import RefPolicies
from lucius.usecases.submit.refs import permits_callback
from lucius.usecases.submit.submit import CommandIntake
from lucius.usecases.submit.tenant_pacing import TenantPacer

SWEEP_INTERVAL_SECONDS = 0.2
SHARED_SWEEP_INTERVAL_SECONDS = 2.0  # replicas announce earlier deadlines to each other


class ControlPlane:
    """A control plane, wired. Creating it builds every part, in the order of their needs, and starts nothing."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        publisher: Publisher | None,
        clock: Clock,
        env: Env,
        caller: Caller | None = None,
        *,
        role: Role = Role.WHOLE,
        drain: Drain | None = None,
        admission_cache: AdmissionCache | None = None,
        pacer: TenantPacer | None = None,
    ) -> None:
        self.settings = settings
        self.store = store
        self.publisher = publisher
        self.clock = clock
        self.drain = drain or Drain()
        self._env = env
        self._given_caller = caller
        self._role = role
        self._admission_cache = admission_cache
        self._pacer = pacer
        for name, part in vars(ControlPlane).items():
            if isinstance(part, cached_property):
                getattr(self, name)

    # Observers and configuration

    @cached_property
    def notifier(self) -> Notifier:
        shared = self.store.liveness
        notifier = Notifier(self.clock if shared else None)
        if shared is not None:
            notifier.poll_backoff = shared.poll_backoff
        return notifier

    @cached_property
    def metrics(self) -> Metrics:
        metrics = Metrics(self.store.jobs, self.store.reviews, self.clock)
        metrics.config_stale.set_function(lambda: float(bool(self.config.problems())))
        return metrics

    @cached_property
    def config(self) -> ConfigSource:
        return ConfigFile(self.settings.config_path, self.settings.dev)

    @cached_property
    def auth(self) -> Authenticator:
        auth = Authenticator(started_keys(self.settings), self.settings.dev)
        auth.use(self.config.current())
        return auth

    @cached_property
    def webhook_secrets(self) -> WebhookSecrets:
        return open_webhook_secrets(self.settings, self.config)

    @cached_property
    def protocols(self) -> Catalog:
        folders = (self.settings.protocols_dir,) if self.settings.protocols_dir else ()
        files = ProtocolsDir(self._env.tools, *folders)
        checker = ProtocolChecker(self._env.tools, check_protocol.__name__)
        catalog = Catalog(files, self.store.protocols, self.clock, checker.check, SHIPPED)
        catalog.describe_unseen = self.services.describe_unseen
        return catalog

    # Engine: changes jobs

    @cached_property
    def engine(self) -> Engine:
        if self.settings.engine == "temporal":
            return self._open_temporal_engine()
        return EmbeddedEngine(self.store.ledger, self.clock, self._env, self._pull_broker)

    def _open_temporal_engine(self) -> Engine:
        try:
            from lucius.bootstrap.temporal import open_temporal_engine
        except ModuleNotFoundError as error:
            raise SettingsError(f"LUCIUS_ENGINE=temporal: {error}; install lucius[temporal]") from None
        role = self._role
        return open_temporal_engine(
            self.settings,
            self.store,
            self._liveness,
            self.clock,
            self._env,
            self._pull_broker,
            self.notifier,
            self.metrics,
            self.publisher,
            directive_loader=self._directive_loader,
            unacked_caps=self._unacked_caps,
            caller=lambda: self.caller,
            hosts_worker=role is Role.WORKER or (role is Role.WHOLE and not self.settings.shares_ledger),
            repairs=role in (Role.WHOLE, Role.ENGINE),
        )

    @cached_property
    def _liveness(self) -> EngineLiveness:
        return self.store.liveness or SingleProcessLiveness(self.clock.now())

    # Hand-over: directives for services

    @cached_property
    def _unacked_caps(self) -> UnackedCaps:
        return UnackedCaps(self.store.jobs, self.notifier, self.settings.max_unacked)

    @cached_property
    def _broker(self) -> HandoverBroker:
        return HandoverBroker(self.store.ledger, self.notifier.pulls, self._unacked_caps, self._env.jitter)

    @property
    def _pull_broker(self) -> HandoverBroker | None:
        """The broker, unless a bus delivers the directives."""
        return self._broker if self.publisher is None else None

    @cached_property
    def _directive_writer(self) -> DirectiveWriter:
        return DirectiveWriter(
            self.settings.orchestrator_url,
            self._token_signer,
            self.settings.late_window_ms,
            self.settings.defaults,
            self.refs.rules,
            partial(permits_callback, self.config, self.refs),
        )

    @cached_property
    def _directive_loader(self) -> DirectiveLoader:
        return DirectiveLoader(self.store.ledger, self._directive_writer)

    @cached_property
    def row_holds(self) -> RowHolds:
        return RowHolds(self.store.outbox, self.notifier, self.clock, self._env.jitter)

    @cached_property
    def _handover_recorder(self) -> HandoverRecorder:
        return HandoverRecorder(self.engine, self.row_holds, self._unacked_caps, self.notifier)

    @cached_property
    def directive_pulls(self) -> DirectivePulls:
        loader, waiting, pace = self._directive_loader, self.notifier.pulls, self._broker.pace
        handover = OutboxHandover(
            holds=self.row_holds,
            caps=self._unacked_caps,
            recorder=self._handover_recorder,
            loader=loader,
            pulls=waiting,
            pace=pace,
            jitter=self._env.jitter,
        )
        deliverable = DeliverableDirectives(self.store.ledger, waiting, self.clock, loader, self.metrics.loop_failed)
        return DirectivePulls(handover, deliverable, self.notifier, pace)

    @cached_property
    def _bus_handover(self) -> BusHandover:
        recorder = self._handover_recorder
        claims = UnpublishedClaims(self.store.ledger, recorder, self.clock, self._env.jitter, self.metrics.loop_failed)
        return BusHandover(self.row_holds, self._unacked_caps, recorder, self._directive_loader, claims)

    @cached_property
    def _token_signer(self) -> TokenSigner:
        return TokenSigner(token_secrets(self.settings))

    # Use cases: what the API calls

    @cached_property
    def intake(self) -> CommandIntake:
        return CommandIntake(
            ledger=self.store.ledger,
            engine=self.engine,
            admission=self.admission,
            protocols=self.protocols,
            config=self.config,
            refs=self.refs,
            limits=self._limit_defaults,
            workspace_root=self.settings.workspace_root,
            new_job_id=new_job_id,
            new_jobs_engine=self.settings.new_jobs_engine,
            job_timeout_ms=self.settings.job_timeout_ms,
            pacer=self._pacer,
        )

    @cached_property
    def admission(self) -> Admission:
        return Admission(self._admission_cache, self.store.jobs)

    @cached_property
    def refs(self) -> RefPolicies:
        return RefPolicies(self.config, ref_defaults(self.settings))

    @cached_property
    def _limit_defaults(self) -> LimitDefaults:
        return LimitDefaults(self.settings.global_inflight, self.settings.tenant_inflight)

    @cached_property
    def callbacks(self) -> Callbacks:
        return Callbacks(
            self.engine,
            self.store.jobs,
            self.store.history,
            self._token_signer,
            self.clock,
            self.settings.late_window_ms,
            self.services.note_callback,
        )

    @cached_property
    def queries(self) -> Queries:
        return Queries(
            self.store.ledger,
            self.store.jobs,
            self.store.history,
            self.notifier,
            self._env,
            self.settings.max_unacked,
            self.settings.temporal_workflows_url,
            auth=self.auth,
            services=self.services,
            is_push_bus=self.publisher is not None,
        )

    @cached_property
    def services(self) -> ServiceRegistry:
        is_push_bus = self.publisher is not None
        return ServiceRegistry(self.store.sightings, self.store.jobs, self.clock, is_push_bus=is_push_bus)

    @cached_property
    def backlogs(self) -> Backlogs:
        return Backlogs(self.store.jobs, self.clock)

    @cached_property
    def operations(self) -> Operations:
        return Operations(self.store.outbox, self.engine, self.queries, self.notifier, self._run_limits)

    @cached_property
    def reviews(self) -> Reviews:
        store = self.store
        return Reviews(store.jobs, store.history, store.reviews, self.engine, self.queries, self._run_limits)

    @cached_property
    def _run_limits(self) -> RunLimits:
        return RunLimits(self.config, self._limit_defaults)

    # Outbound HTTP: calls and webhooks

    @cached_property
    def caller(self) -> Caller:
        if self._given_caller is not None:
            return self._given_caller
        return open_caller(self.settings, self.config, self.clock, self.webhook_secrets, self.refs)

    @cached_property
    def _calls(self) -> OutboundRunner:
        calls = StepCalls(
            ledger=self.store.ledger,
            engine=self.engine,
            caller=self.caller,
            http_attempt=HttpAttempt(caller=self.caller, ledger=self.store.ledger, clock=self.clock, env=self._env),
            clock=self.clock,
            jitter=self._env.jitter,
            on_failure=self.metrics.loop_failed,
        )
        return self._outbound(calls)

    @cached_property
    def _webhooks(self) -> OutboundRunner:
        webhooks = JobWebhooks(
            ledger=self.store.ledger,
            engine=self.engine,
            caller=self.caller,
            jitter=self._env.jitter,
            on_failure=self.metrics.loop_failed,
        )
        return self._outbound(webhooks, parallel=MAX_CONCURRENT_CALLS)

    def _outbound(self, work: StepCalls | JobWebhooks, **limits: int) -> OutboundRunner:
        return OutboundRunner(
            work,
            holds=self.row_holds,
            caller=self.caller,
            notifier=self.notifier,
            clock=self.clock,
            retry_interval=self.settings.outbox_retry_interval,
            **limits,
        )

    # Loops: move jobs forward between requests

    @cached_property
    def loops(self) -> EngineLoops:
        settings = self.settings
        intervals = (settings.sweep_interval, settings.repair_interval, settings.outbox_retry_interval)
        slowest = (MAX_SWEEP_BACKOFF if self.store.liveness else 1) * max(*intervals, 3 * settings.publish_timeout)
        return EngineLoops(
            self._sweeper,
            self._relay,
            self._calls,
            self._webhooks,
            self.metrics.loop_failed,
            QUIET_SECONDS + slowest,
            dead_letters=self._dead_letters,
        )

    @cached_property
    def _sweeper(self) -> Sweeper:
        shared_interval = SHARED_SWEEP_INTERVAL_SECONDS * random.uniform(0.8, 1.2)
        return Sweeper(
            ledger=self.store.ledger,
            engine=self.engine,
            liveness=self._liveness,
            clock=self.clock,
            interval=self.settings.sweep_interval
            or (shared_interval if self.store.liveness else SWEEP_INTERVAL_SECONDS),
            repair_interval=self.settings.repair_interval,
            on_action=self.metrics.swept,
            wake=self.notifier.due,
            jitter=self._env.jitter,
        )

    @cached_property
    def _relay(self) -> Relay | None:
        if self.publisher is None:
            return None
        return Relay(
            outbox=self.store.outbox,
            engine=self.engine,
            handover=self._bus_handover,
            holds=self.row_holds,
            publisher=self.publisher,
            notifier=self.notifier,
            clock=self.clock,
            retry_interval=self.settings.outbox_retry_interval,
            publish_timeout=self.settings.publish_timeout,
            jitter=self._env.jitter,
            shared=self.store.liveness is not None,
            on_failure=self.metrics.loop_failed,
            at_work_since=self._sweeper.at_work_since,
        )

    @cached_property
    def _dead_letters(self) -> DeadLetterRunner | None:
        dead_letters = open_dead_letters(self.settings) if self.publisher is not None else None
        if dead_letters is None:
            return None
        interval, on_failure = self.settings.outbox_retry_interval, self.metrics.loop_failed
        return DeadLetterRunner(dead_letters, self.engine, self.clock, interval, self._env.jitter, on_failure)

    # Probes

    @cached_property
    def readiness(self) -> Readiness:
        return readiness_of(
            self._role,
            ledger=self.store.ledger,
            engine_health=self.engine.health,
            publisher=self.publisher,
            protocols=self.protocols,
            loops=self.loops,
            liveness=self.store.liveness,
            clock=self.clock,
            draining=self.drain.asked.is_set,
            config=self.config,
        )
