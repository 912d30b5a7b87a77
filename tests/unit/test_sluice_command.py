"""The `sluice` command: what it starts with which options, and how it refuses mistakes."""

import os
import socket
import subprocess
import sys
from importlib import metadata

import pytest

from services.cli.main import COMMANDS, main
from services.cli.plan import make_plan, reachable
from services.common.config import GatewayConfig, Role, UpConfig, WorkerConfig, split_address
from services.common.names_elsewhere import NAMES_ELSEWHERE
from services.common.options import ConfigError, Options, read, specs
from services.common.ports import check_free, free_ports


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


def test_plan_hands_what_concerns_clients_to_the_gateway() -> None:
    mine = UpConfig(
        model="/m", api_keys_file="/keys", tls_cert_file="/c", tls_key_file="/k", http_port=443, deadline_s=9
    )
    plan = make_plan(mine)
    gateway = _config_of(plan.processes[-1].argv, GatewayConfig)
    assert isinstance(gateway, GatewayConfig)
    assert (gateway.api_keys_file, gateway.tls_cert_file, gateway.tls_key_file) == ("/keys", "/c", "/k")
    assert gateway.deadline_s == 9
    assert plan.url == "https://127.0.0.1:443"
    assert [process.ready_url.partition(":")[0] for process in plan.processes] == ["http", "http", "https"]


def test_each_name_that_others_give_an_option_leads_to_one_of_ours() -> None:
    flags = {spec.flag for config in (UpConfig, GatewayConfig, WorkerConfig) for spec in specs(config)}
    assert {ours.replace("--no-", "--") for ours in NAMES_ELSEWHERE.values()} <= flags
    assert flags.isdisjoint(NAMES_ELSEWHERE)


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


@pytest.mark.parametrize("host", ["no.such.host.invalid", "192.0.2.254"])
def test_a_host_that_is_not_ours_is_refused_as_one(host: str) -> None:
    with pytest.raises(ConfigError, match=f"--host: '{host}' is no address of this machine"):
        check_free(host, 1234, "--http-port")


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
        (["up", "Qwen/Qwen3-8B"], "'Qwen/Qwen3-8B' is no option: options begin with --; a model is given by --model"),
        (["up", "--max-model-len=8"], "unknown option --max-model-len; here it is --max-context-tokens"),
        (["up", "--disable-radix-cache"], "unknown option --disable-radix-cache; here it is --no-prefix-cache"),
        (["pd-master", "--max-model-len=8"], "unknown option --max-model-len\n"),
        (["up", "--api-keys-file=/nowhere"], "--api-keys-file: /nowhere cannot be read: No such file or directory"),
        (["up", "--tls-cert-file=/c"], "--tls-key-file must be given too"),
    ],
)
def test_mistake_ends_with_status_2_and_its_reason(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 2
    assert message in capsys.readouterr().err


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"sluice {metadata.version('sluice')}\n"


def test_help_into_a_pipe_that_is_closed_early_ends_quietly() -> None:
    command = f"{sys.executable} -m services.cli.main up --help | true"
    ended = subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("command", ["pd-master", "prefill"])
@pytest.mark.parametrize("flag", ["--http-port", "--grpc-port"])
def test_a_process_names_the_port_that_is_taken(command: str, flag: str, capfd: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        ports = {"--http-port": "0", "--grpc-port": "0", flag: str(listener.getsockname()[1])}
        model = ["--model=m"] if command == "prefill" else []
        argv = [command, "--host=127.0.0.1", *model, *(f"{name}={port}" for name, port in ports.items())]
        assert main(argv) == 2
    assert f"{flag}: 127.0.0.1:{ports[flag]} cannot be used (Address already in use)" in capfd.readouterr().err


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
