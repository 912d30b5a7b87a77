"""The configurations of the processes: defaults are valid, cross-field mistakes are fatal, names map one to one."""

import pytest

from services.common.config import GatewayConfig, UpConfig, WorkerConfig, split_address
from services.common.options import ConfigError, Options, as_flags, read, specs
from services.common.options_help import render_help


@pytest.mark.parametrize("cls", [GatewayConfig, WorkerConfig, UpConfig])
def test_every_option_is_explained(cls: type[Options]) -> None:
    assert all(spec.help and spec.group for spec in specs(cls))
    assert render_help(cls, "sluice", "Purpose.")


def test_one_name_in_all_three_spellings() -> None:
    (spec,) = (spec for spec in specs(WorkerConfig) if spec.name == "max_running_requests")
    assert (spec.flag, spec.env) == ("--max-running-requests", "SLUICE_MAX_RUNNING_REQUESTS")


def test_worker_config_survives_the_way_to_a_child_process() -> None:
    config = WorkerConfig(model="/m", role="decode", dtype="float32", prefix_cache=False, ucx_tls="tcp,sm", drain_s=1.5)
    assert read(WorkerConfig, as_flags(config), {}) == config


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--chunk-tokens=0"], "a whole number of at least 1"),
        (["--transfer-depth=9"], "at most --transfer-pages 8"),
        (["--advertise-address=here"], "it takes host:port"),
        (["--role=both"], "one of prefill, decode, mixed"),
    ],
)
def test_worker_mistake_names_key_and_allowed_values(argv: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(WorkerConfig, ["--model=m", *argv], {})


def test_gateway_takes_a_list_of_workers() -> None:
    config = read(GatewayConfig, [], {"SLUICE_WORKERS": "127.0.0.1:1,[::1]:2"})
    assert [split_address(worker, "--workers") for worker in config.workers] == [("127.0.0.1", 1), ("::1", 2)]
    with pytest.raises(ConfigError, match="--workers: 'a:0'"):
        read(GatewayConfig, ["--workers=a:0"], {})


def test_up_needs_both_roles_or_a_mixed_worker() -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        UpConfig(decode=0)
    assert UpConfig(prefill=0, decode=0, mixed=1).model == ""


@pytest.mark.parametrize(
    "url",
    [
        "collector:4318",
        "http://",
        "http://[::1",
        "http://a:b",
        "http://a:99999",
        "ftp://a",
        "http://[::1]x",
        "http://a?b",
        "http://\n",
    ],
)
def test_a_collector_without_a_usable_url_is_named_at_start(url: str) -> None:
    for cls, argv in ((WorkerConfig, ["--model=m"]), (GatewayConfig, []), (UpConfig, [])):
        with pytest.raises(ConfigError, match="--otlp-endpoint: .* it takes http://host:port"):
            read(cls, [*argv, f"--otlp-endpoint={url}"], {})


@pytest.mark.parametrize("url", ["http://collector:4318", "https://[::1]:4318/", "http://10.0.0.1/otlp"])
def test_a_collector_may_be_anywhere_on_http(url: str) -> None:
    assert read(WorkerConfig, ["--model=m", f"--otlp-endpoint={url}"], {}).otlp_endpoint == url
