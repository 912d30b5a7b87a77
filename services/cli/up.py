"""`sluice up`: all of Sluice on one machine, as the separate processes it is on a cluster.

It starts them, waits until they serve, prints where, and then waits for the first of: Ctrl-C, SIGTERM or a closed
terminal (stop all in order, 0), a process that ends (stop the others, its status). A second Ctrl-C kills.
"""

import asyncio
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TextIO

from services.cli.crew import Crew
from services.cli.demo_model import demo_model_folder, demo_model_is_there
from services.cli.plan import Plan, Process, make_plan
from services.cli.readiness import until_model_is_served, until_ready
from services.common.config import UpConfig
from services.common.model_source import model_name, resolve_model
from services.common.options import ConfigError
from services.common.ports import check_free
from services.pd_master.keys import ApiKeys, first_key

EXIT_FAILED = 1


def run(config: UpConfig) -> int:
    """Run everything until it is stopped; return the exit status."""
    for port, flag in ((config.http_port, "--http-port"), (config.grpc_port, "--grpc-port")):
        check_free(config.host, port, flag)
    if config.api_keys_file:
        ApiKeys.load(Path(config.api_keys_file))  # a mistake shows before anything starts
    return asyncio.run(_serve(make_plan(_with_local_model(config)), config))


def _with_local_model(config: UpConfig) -> UpConfig:
    """Fetch or find the model once, here, so that the workers only read it."""
    if config.model:
        name = config.served_model_name or model_name(config.model)
        return dataclasses.replace(config, model=str(resolve_model(config.model)), served_model_name=name)
    if not demo_model_is_there():
        # Converting takes torch; a process of its own leaves this one small.
        fetched = subprocess.run([sys.executable, "-m", "services.cli.main", "fetch-demo-model"], check=False)
        if fetched.returncode != 0:
            raise ConfigError("--model: the demo model could not be fetched; give another")
    return dataclasses.replace(config, model=str(demo_model_folder()))


async def _serve(plan: Plan, config: UpConfig) -> int:
    stop_asked = _catch_signals()
    crew = Crew.start(plan.processes, sys.stderr)
    first_exit = asyncio.create_task(crew.first_exit())
    serving = asyncio.create_task(_announce(plan, config, sys.stdout))
    asked = asyncio.create_task(stop_asked.wait())
    status, clean = EXIT_FAILED, {0}
    try:
        await asyncio.wait({first_exit, serving, asked}, return_when=asyncio.FIRST_COMPLETED)
        if serving.done() and serving.exception() is None:
            await asyncio.wait({first_exit, asked}, return_when=asyncio.FIRST_COMPLETED)
        status = _outcome(first_exit, serving, asked)
        if not serving.done():
            # A process that has not come up yet has no handler for SIGTERM, and ends by it.
            clean.add(128 + signal.SIGTERM)
    finally:
        for task in (first_exit, serving, asked):
            task.cancel()
        await _stop(crew, config.drain_s, stop_asked)
    return status or await _report_unclean(crew, clean)


def _outcome(
    first_exit: "asyncio.Task[tuple[str, int]]", serving: "asyncio.Task[None]", asked: "asyncio.Task[bool]"
) -> int:
    if asked.done():
        _say("stopping")
        return 0
    if first_exit.done():
        name, status = first_exit.result()
        _say(f"{name} ended with status {status}; stopping the others")
        return status or EXIT_FAILED
    _say(f"not ready: {serving.exception() or 'start was cancelled'}; stopping")
    return EXIT_FAILED


async def _announce(plan: Plan, config: UpConfig, out: TextIO) -> None:
    start, timeout_s = time.monotonic(), config.start_timeout_s
    awaited = {process.name for process in plan.processes}
    api_key = first_key(Path(config.api_keys_file)) if config.api_keys_file else None
    try:
        async with asyncio.timeout(timeout_s), asyncio.TaskGroup() as group:
            for process in plan.processes:
                group.create_task(_tell_when_ready(process, awaited))
        async with asyncio.timeout(timeout_s - (time.monotonic() - start)):
            model = await until_model_is_served(plan.url, plan.num_pairs, api_key)
    except TimeoutError:
        missing = f"no answer of {', '.join(sorted(awaited))}" if awaited else "not every pair of workers is proven"
        raise TimeoutError(f"{missing} after {timeout_s:g} s (--start-timeout-s)") from None
    print(_banner(plan, config, model, time.monotonic() - start), file=out, flush=True)


async def _tell_when_ready(process: Process, awaited: set[str]) -> None:
    _say(f"{process.name} is up after {await until_ready(process.ready_url):.1f} s")
    awaited.remove(process.name)


def _banner(plan: Plan, config: UpConfig, model: str, seconds: float) -> str:
    *workers, _ = (process.name for process in plan.processes)
    question = {
        "model": model,
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "stream": True,
        "max_tokens": 64,
        "temperature": 0,
    }
    keys = config.api_keys_file
    choose_key = f"  KEY=...  # one of {keys}\n" if keys else ""
    curl = "curl -N" + ("k" if config.tls_cert_file else "")  # a certificate seldom names this machine's loopback
    header = ' -H "Authorization: Bearer $KEY"' if keys else ""
    return (
        f"\nSluice serves {model} after {seconds:.1f} s: pd_master, {', '.join(workers)}\n"
        f"  HTTP  {plan.url}\n  gRPC  {plan.grpc_address}\n\nTry it from another terminal:\n\n"
        f"{choose_key}  {curl} {plan.url}/v1/chat/completions{header} -H 'Content-Type: application/json' \\\n"
        f"    -d '{json.dumps(question)}'\n\nCtrl-C stops everything.\n"
    )


def _catch_signals() -> asyncio.Event:
    asked = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, asked.set)
    return asked


async def _stop(crew: Crew, drain_s: float, stop_asked: asyncio.Event) -> None:
    """Stop everything in order; another Ctrl-C meanwhile kills what is left."""
    stop_asked.clear()
    stopping = asyncio.create_task(crew.stop(drain_s))
    again = asyncio.create_task(stop_asked.wait())
    await asyncio.wait({stopping, again}, return_when=asyncio.FIRST_COMPLETED)
    again.cancel()
    stopping.cancel()
    await asyncio.wait({stopping})


async def _report_unclean(crew: Crew, clean: set[int]) -> int:
    """Name each process that ended otherwise than asked; return the largest of their statuses, 0 for none."""
    bad = {name: status for name, status in (await crew.statuses()).items() if status not in clean}
    for name, status in bad.items():
        _say(f"{name} ended with status {status}")
    return max(bad.values(), default=0)


def _say(text: str) -> None:
    bold = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    print(f"\033[1m{text}\033[0m" if bold else text, file=sys.stderr, flush=True)
