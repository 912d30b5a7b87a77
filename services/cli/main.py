"""The `sluice` command: reads the configuration and hands it to the one process that was asked for.

A process's code is imported only when its command is given, so that pd_master never loads what an engine needs.
"""

import contextlib
import dataclasses
import importlib
import os
import signal
import sys
from collections.abc import Sequence

from services.common.config import GatewayConfig, UpConfig, WorkerConfig
from services.common.options import EXIT_USAGE, ConfigError, HelpRequested, Options, read, specs
from services.common.options_help import render_help

EXIT_INTERRUPTED = 128 + signal.SIGINT


@dataclasses.dataclass(frozen=True, slots=True)
class Command:
    """One subcommand: its options, its purpose, and the `module:function` that takes them and returns a status."""

    config: type[Options]
    purpose: str
    entry: str


COMMANDS = {
    "up": Command(UpConfig, "Start pd_master, prefill and decode workers on this machine.", "services.cli.up:run"),
    "pd-master": Command(
        GatewayConfig,
        "Run a gateway: takes HTTP and gRPC requests and sends each to a pair of workers.",
        "services.pd_master.processes:run",
    ),
    "prefill": Command(
        WorkerConfig,
        "Run a prefill worker: computes prompts and pushes their KV cache to decode workers.",
        "services.prefill.main:run",
    ),
    "decode": Command(
        WorkerConfig,
        "Run a decode worker: receives KV caches and streams the output tokens.",
        "services.decode.main:run",
    ),
    "mixed": Command(
        WorkerConfig, "Run a worker that computes prompts and decodes in one pool.", "services.decode.main:run"
    ),
    "fetch-demo-model": Command(
        Options, "Make the demo model's folder in the cache ($SLUICE_CACHE).", "services.cli.demo_model:run"
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 2 for a wrong configuration, else the process's own."""
    name, *rest = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    if name in ("--help", "-h", "help"):
        return _show(_overview())
    if name in ("--version", "-V", "version"):
        from importlib import metadata  # reads archives too, whose modules no other command needs

        return _show(f"sluice {metadata.version('sluice')}")
    command = COMMANDS.get(name)
    if command is None:
        return _refuse(f"sluice: unknown command {name!r}; it takes {', '.join(COMMANDS)}")
    try:
        config = _configure(name, command, rest)
    except HelpRequested:
        return _show(render_help(command.config, f"sluice {name}", command.purpose))
    except ConfigError as error:
        return _refuse(f"sluice {name}: {error}\nsluice {name} --help lists the options.")
    return _run(name, command, config)


def _run(name: str, command: Command, config: Options) -> int:
    module, _, function = command.entry.partition(":")
    try:
        return int(getattr(importlib.import_module(module), function)(config))
    except ConfigError as error:
        # What only the running process can see: a model that is not there, a port that is taken.
        return _refuse(f"sluice {name}: {error}")
    except KeyboardInterrupt:  # while it still imports: nothing runs yet that would have to be stopped in order
        return EXIT_INTERRUPTED


def _configure(name: str, command: Command, argv: list[str]) -> Options:
    known = {spec.env for other in COMMANDS.values() for spec in specs(other.config)}
    if command.config is not WorkerConfig:
        return read(command.config, argv, os.environ, also_known=known)
    config = read(WorkerConfig, [f"--role={name}", *argv], os.environ, also_known=known)
    if config.role != name:
        raise ConfigError(f"--role: {config.role!r} is not allowed; the command says {name}")
    return config


def _overview() -> str:
    lines = ["usage: sluice COMMAND [OPTIONS]", ""]
    lines += [f"  {name:18}{command.purpose}" for name, command in COMMANDS.items()]
    return "\n".join(
        [*lines, "", "sluice COMMAND --help lists a command's options; sluice --version tells the version."]
    )


def _show(text: str) -> int:
    with contextlib.suppress(BrokenPipeError):  # `| head` has read enough
        print(text)
        sys.stdout.flush()
        return 0
    # What is left in the buffer would fail once more when the interpreter flushes it at its end.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _refuse(message: str) -> int:
    print(message, file=sys.stderr)
    return EXIT_USAGE


if __name__ == "__main__":
    sys.exit(main())
