"""The `sluice` command: what it starts with which options, and how it refuses mistakes."""

import os
import socket
import subprocess
import sys

import pytest

from services.cli.main import COMMANDS, main
from services.cli.plan import make_plan, reachable
from services.cli.ports import check_free, free_ports
from services.common.config import GatewayConfig, Role, UpConfig, WorkerConfig, split_address
from services.common.options import ConfigError, Options, read


def _config_of(argv: tuple[str, ...], cls: type[Options]) -> Options:
    """The configuration a child reads from its command line: `python -m services.cli.child PID COMMAND flags...`."""
    return read(cls, argv[5:], {})


def test_plan_starts_every_worker_and_tells_the_gateway_all_of_them() -> None:
    plan = make_plan(UpConfig(model="/m", prefill=2, decode=2, dtype="float32", http_port=0, grpc_port=0))
    assert [process.name for process in plan.processes] == [
        "prefill-0",
        "prefill-1",
        "decode-0",
        "decode-1",
        "pd_master",
    ]
    gateway = _config_of(plan.processes[-1].argv, GatewayConfig)
    workers = [_config_of(process.argv, WorkerConfig) for process in plan.processes[:-1]]
    assert isinstance(gateway, GatewayConfig)
    assert [split_address(worker, "")[1] for worker in gateway.workers] == [worker.grpc_port for worker in workers]  # type: ignore[attr-defined]
    assert plan.url == f"http://127.0.0.1:{gateway.http_port}"


def test_plan_hands_shared_options_to_workers() -> None:
    plan = make_plan(
        UpConfig(
            model="/m", chunk_tokens=7, prefix_cache=False, log_format="json", threads=3, drain_s=1.0,
            local_prefill_tokens=9,
        )
    )  # fmt: skip
    gateway = _config_of(plan.processes[-1].argv, GatewayConfig)
    assert isinstance(gateway, GatewayConfig)
    assert (gateway.local_prefill_tokens, gateway.log_format) == (9, "json")
    config = _config_of(plan.processes[0].argv, WorkerConfig)
    assert isinstance(config, WorkerConfig)
    assert (config.role, config.chunk_tokens, config.prefix_cache) == ("prefill", 7, False)
    assert (config.log_format, config.threads, config.drain_s) == ("json", 3, 1.0)


def test_cores_are_shared_out_unless_threads_are_given() -> None:
    plan = make_plan(UpConfig(model="/m", prefill=1, decode=1))
    config = _config_of(plan.processes[0].argv, WorkerConfig)
    assert isinstance(config, WorkerConfig)
    assert config.threads == max(1, len(os.sched_getaffinity(0)) // 2)


@pytest.mark.parametrize(
    ("devices", "tp", "first_devices"),
    [
        (("0", "1"), 1, ["0", "1", "0"]),
        (("0", "1", "2", "3"), 2, ["0", "2", "0"]),
        (("GPU-a",), 1, ["GPU-a", "GPU-a", "GPU-a"]),
    ],
)
def test_workers_take_gpus_in_turn_and_see_the_others_behind_their_own(
    devices: tuple[str, ...], tp: int, first_devices: list[str]
) -> None:
    plan = make_plan(UpConfig(model="/m", prefill=1, decode=2, devices=devices, tp=tp))
    seen = [process.visible_devices.split(",") for process in plan.processes if process.visible_devices]
    assert [one[0] for one in seen] == first_devices
    assert all(sorted(one) == sorted(devices) for one in seen)
    assert plan.processes[-1].visible_devices is None


def test_too_few_gpus_for_one_worker_are_refused() -> None:
    with pytest.raises(ConfigError, match="--devices: 1 is not allowed; each worker takes --tp 2"):
        UpConfig(model="/m", devices=("0",), tp=2)


def test_free_ports_are_distinct() -> None:
    assert len(set(free_ports(32))) == 32


def test_taken_port_is_refused_with_its_flag() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        with pytest.raises(ConfigError, match="--http-port: 127.0.0.1"):
            check_free("127.0.0.1", listener.getsockname()[1], "--http-port")


@pytest.mark.parametrize(("host", "seen"), [("0.0.0.0", "127.0.0.1"), ("::1", "[::1]"), ("10.0.0.1", "10.0.0.1")])
def test_url_names_a_host_that_can_be_reached(host: str, seen: str) -> None:
    assert reachable(host) == seen


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    assert COMMANDS[command].purpose in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["serve"], "unknown command 'serve'; it takes up, pd-master"),
        (["decode"], "sluice decode: --model (or SLUICE_MODEL) must be given"),
        (["decode", "--model=m", "--role=prefill"], "the command says decode"),
        (["up", "--decodes=1"], "did you mean --decode?"),
        (["up", "--model=/nowhere/at/all"], "no existing path, nor a hub id"),
    ],
)
def test_mistake_ends_with_status_2_and_its_reason(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("role", ["prefill", "decode", "mixed"])
def test_role_comes_from_the_command(role: Role, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[WorkerConfig] = []
    monkeypatch.setattr("services.cli.main.importlib.import_module", lambda _: type("M", (), {"run": seen.append}))
    with pytest.raises(TypeError):  # the stand-in returns no status
        main([role, "--model=m"])
    assert [config.role for config in seen] == [role]


def test_command_alone_loads_neither_torch_nor_grpc() -> None:
    code = "import sys; import services.cli.main, services.cli.up; sys.exit(bool({'torch', 'grpc'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
