"""A worker process from start to end.

loading --EngineReady--> serving --SIGTERM--> draining --nothing held, or `drain_s`--> gone, exit 0
   '------ engine lost, a task failed, a port taken: unready, sessions end, exit 1 ------'
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from services.common import ipc, rpc
from services.common.config import WorkerConfig
from services.common.identity import group_name
from services.common.ipc import EngineReady
from services.common.messages import Role
from services.common.metrics import WorkerMetrics
from services.common.options import ConfigError, reason_of
from services.common.pod_tls import dial_of, read_pod_tls
from services.common.request import Request
from services.worker.engine_client import ENGINE_COMMAND, EngineClient
from services.worker.engine_config import engine_config
from services.worker.health_server import METRICS_TYPE, HealthServer, Page, verdict
from services.worker.identity import identify
from services.worker.jobs import Jobs
from services.worker.master_edge import WorkerServicer
from services.worker.outputs import ChoiceOutput
from services.worker.parts import BuildRole, Context, Parts
from services.worker.protocol.times import Times
from services.worker.rpc_errors import ErrorInterceptor
from services.worker.service import WorkerService
from services.worker.setup import Model, open_model, router_config, span_exporter, worker_hello
from services.worker.stages import JobTracer
from services.worker.status import Status
from sluice.v1 import reservation_pb2, worker_pb2, worker_pb2_grpc

log = logging.getLogger(__name__)

AUDIT_S = 2.0
"""How long an engine without work may take to answer."""
CLOSE_GRACE_S = 2.0
"""How long streams may take to end once told to."""
_STUCK_POLL_S = 0.5
LIVENESS_PATIENCE = 3.0
"""Times `engine_stall_s` until a wedged engine has the process restarted: later than it makes the worker unready."""


class WorkerBrokenError(RuntimeError):
    """The protocol core or a background task failed."""


class Worker:
    """One worker. `run` is its whole life; `stop` begins its end from any state. Raises ConfigError."""

    def __init__(
        self, config: WorkerConfig, build: BuildRole, *, engine_command: tuple[str, ...] = ENGINE_COMMAND
    ) -> None:
        role = Role(config.role)
        self._config = config
        self._build = build
        self._metrics = WorkerMetrics(has_prefill=role is not Role.DECODE, has_decode=role is not Role.PREFILL)
        self._server = rpc.server([ErrorInterceptor(self._metrics.sessions)])
        self._health = health.aio.HealthServicer()
        self._tls = read_pod_tls(config)
        self._stopping = asyncio.Event()
        self._parts: Parts | None = None
        self._listeners: list[Callable[[ipc.Event], None]] = []
        self.jobs: Jobs | None = None
        self.service: WorkerService | None = None
        self.identity = identify(config, self._bind())
        self.engine = EngineClient(command=engine_command)
        self.status = Status(self.engine, self._metrics, stall_s=config.engine_stall_s, max_queue=config.max_queue)
        self._exporter = span_exporter(config, self.identity)
        self.http_port = 0
        self.serving = asyncio.Event()
        """Set once masters may come."""

    def _bind(self) -> int:
        try:
            credentials = self._tls.server_credentials() if self._tls else None
            return rpc.bind(self._server, f"{self._config.host}:{self._config.grpc_port}", credentials)
        except OSError as error:
            raise ConfigError(f"--grpc-port: {reason_of(error)}") from error

    def stop(self) -> None:
        """SIGTERM: drain, then end."""
        self._stopping.set()

    def on_engine_event(self, listener: Callable[[ipc.Event], None]) -> None:
        """Have every event of the engine told to one more listener, for tools and tests."""
        self._listeners.append(listener)

    @property
    def num_attempts(self) -> int:
        """Attempts that the protocol core knows, ended but not forgotten ones included."""
        return 0 if self._parts is None else self._parts.core.num_attempts

    async def run(self) -> None:
        """Live. Raises EngineLostError, or ConfigError when a port is taken; returns after `stop`."""
        pages = HealthServer(self._pages())
        try:
            self.http_port = await self._listen(pages)
            model = await asyncio.to_thread(open_model, self._config)  # health answers while a model is downloaded
            await self.engine.start(engine_config(self._config, self.identity, model.path), self._config.tp)
            await self._run_engine(model)
        finally:
            await pages.stop()

    async def _listen(self, pages: HealthServer) -> int:
        try:
            return await pages.start(self._config.host, self._config.http_port)
        except OSError as error:
            raise ConfigError(f"--http-port: {reason_of(error)}") from error

    async def _run_engine(self, model: Model) -> None:
        ready: asyncio.Future[EngineReady] = asyncio.get_running_loop().create_future()
        engine = asyncio.create_task(self.engine.run(lambda event: self._dispatch(event, ready)))
        life = asyncio.create_task(self._live(ready, model))
        traces = asyncio.create_task(self._send_traces())
        try:
            await asyncio.wait({engine, life}, return_when=asyncio.FIRST_COMPLETED)
            if life.done():
                life.result()
            elif not (self._stopping.is_set() and self.engine.ready is None):
                engine.result()
        finally:
            self.status.draining = True
            life.cancel()
            await asyncio.gather(life, return_exceptions=True)
            await self._end(engine)
            traces.cancel()  # last: a collector that does not answer keeps no master waiting
            await asyncio.gather(traces, return_exceptions=True)

    async def _send_traces(self) -> None:
        """Until cancelled. Requests are served without them too."""
        if self._exporter is not None:
            try:
                await self._exporter.run()
            except Exception:
                log.exception("no more traces are sent")

    def _dispatch(self, event: ipc.Event, ready: "asyncio.Future[EngineReady]") -> None:
        match event:
            case EngineReady():
                ready.set_result(event)
            case ipc.StepDone():
                self.status.observe_step(event)
            case ipc.Counters(values=values):
                self._metrics.engine.counters.values.update(values)
            case ipc.CacheChanged() if self.service is not None:
                self.service.cache.note(event)
        if self.jobs is not None and self._parts is not None:
            self.jobs.dispatch(event)
            self._parts.on_engine_event(event)
        for listener in self._listeners:
            listener(event)

    # ------------------------------------------------------------------------------------------------------- serving

    async def _live(self, ready: "asyncio.Future[EngineReady]", model: Model) -> None:
        stopping = asyncio.create_task(self._stopping.wait())
        first: list[asyncio.Future[Any]] = [stopping, ready]
        await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        if not ready.done():
            return
        async with asyncio.TaskGroup() as tasks:
            service, jobs = self._set_up(ready.result(), model)
            background = [tasks.create_task(service.beat()), tasks.create_task(jobs.router.run())]
            await self._server.start()
            await self._health.set("", health_pb2.HealthCheckResponse.SERVING)
            self.serving.set()
            log.info("serving on %s, http port %d", self.identity.grpc_address, self.http_port)
            await self._until_told(service, stopping)
            await self._drain(service, jobs)
            for task in background:
                task.cancel()

    async def _until_told(self, service: WorkerService, stopping: "asyncio.Task[bool]") -> None:
        broken = asyncio.create_task(service.broken.wait())
        try:
            await asyncio.wait({stopping, broken}, return_when=asyncio.FIRST_COMPLETED)
            _check_whole(service)
        finally:
            broken.cancel()

    def _set_up(self, ready: EngineReady, model: Model) -> tuple[WorkerService, Jobs]:
        config, group = self._config, group_name(ready.model_fingerprint, ready.layout, ready.transfer_protocol)
        service = WorkerService(
            self.engine, worker_hello(config, self.identity, group, ready), self.status, self._metrics
        )
        tracer = None if self._exporter is None else JobTracer(self._exporter, config.role)
        jobs = Jobs(self.engine, router_config(config, ready), self._metrics, service.job_event, tracer)

        def open_log(request: Request, choice: int, output_ids: list[int]) -> ChoiceOutput:
            return ChoiceOutput(model.vocabulary, request, choice, output_ids, ready.eos_token_ids)

        context = Context(
            identity=self.identity,
            group=group,
            ready=ready,
            engine=self.engine,
            service=service,
            metrics=self._metrics,
            server=self._server,
            open_log=open_log,
            new_id=jobs.new_id,
            times=Times(config.master_timeout_s, config.reservation_lease_s),
            dial=dial_of(self._tls),
        )
        parts = self._build(context)
        service.core, service.peers, service.jobs = parts.core, parts.peers, jobs
        self._parts, self.jobs, self.service, self.status.router = parts, jobs, service, jobs.router
        self.status.sample()
        self._add_services(WorkerServicer(service, model.folder))
        return service, jobs

    def _add_services(self, servicer: WorkerServicer) -> None:
        worker_pb2_grpc.add_WorkerServiceServicer_to_server(servicer, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = [
            worker_pb2.DESCRIPTOR.services_by_name["WorkerService"].full_name,
            reservation_pb2.DESCRIPTOR.services_by_name["ReservationService"].full_name,
            health.SERVICE_NAME,
            reflection.SERVICE_NAME,
        ]
        reflection.enable_server_reflection(names, self._server)

    # ----------------------------------------------------------------------------------------------------------- end

    async def _drain(self, service: WorkerService, jobs: Jobs) -> None:
        log.info("draining: %d jobs", len(jobs))
        service.drain(self._config.drain_s)
        await self._health.enter_graceful_shutdown()
        waits = (service.drained.wait(), service.broken.wait(), self._until_stuck())
        ends = [asyncio.ensure_future(wait) for wait in waits]
        await asyncio.wait(ends, timeout=self._config.drain_s, return_when=asyncio.FIRST_COMPLETED)
        for task in ends:
            task.cancel()
        _check_whole(service)
        if service.drained.is_set():
            await self._audit()
        else:
            log.warning("%d jobs are given up: %s", len(jobs), self.status.stalled() or "the time to drain is over")

    async def _audit(self) -> None:
        """Nothing is at stake any more, and what was lost over a whole life shows."""
        try:
            async with asyncio.timeout(AUDIT_S):
                problems = await self.engine.audit()
        except TimeoutError:
            return
        for problem in problems:
            log.error("the engine ends with wrong books: %s", problem)

    async def _until_stuck(self) -> None:
        """A wedged engine finishes nothing: there is no point in giving it time."""
        while self.status.stalled() is None:  # noqa: ASYNC110 - a matter of time passing, which no event tells
            await asyncio.sleep(_STUCK_POLL_S)

    async def _end(self, engine: "asyncio.Task[None]") -> None:
        if self.service is not None:
            self.service.close_sessions()
        if self._parts is not None:
            self._parts.close()
        await self._server.stop(CLOSE_GRACE_S)
        status = await self.engine.stop()
        engine.cancel()
        await asyncio.gather(engine, return_exceptions=True)
        log.info("ended; the engine's status is %d", status)

    # --------------------------------------------------------------------------------------------------------- pages

    def _pages(self) -> dict[str, Callable[[], Page]]:
        def ready() -> Page:
            return verdict(self.status.problem())

        def alive() -> Page:
            return verdict(self.status.stalled(LIVENESS_PATIENCE))

        return {"/health": ready, "/readiness": ready, "/liveness": alive, "/metrics": self._metrics_page}

    def _metrics_page(self) -> Page:
        self.status.feed_gauges()
        return Page(200, self._metrics.render(), METRICS_TYPE)


def _check_whole(service: WorkerService) -> None:
    if service.broken.is_set():
        raise WorkerBrokenError("the worker's state cannot be trusted any more; the cause stands above")
