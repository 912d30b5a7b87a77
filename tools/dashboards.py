"""The chart's Grafana dashboards, made from a short description of each panel.

Rates come from counters and quantiles from summed buckets, so nothing averages averages. `python -m tools.check_chart
--update` writes the files.
"""

import json
from dataclasses import dataclass
from typing import Any

HERE = '{namespace="$namespace",release="$release"}'
_WIDTH, _HEIGHT = 8, 8


@dataclass(frozen=True, slots=True)
class Panel:
    """One graph: what is drawn, in which unit, and what a reader should take from it."""

    title: str
    unit: str
    queries: dict[str, str]
    """Expression by legend."""
    about: str = ""


def rate(metric: str, *by: str, **match: str) -> str:
    """The rate of a counter, summed over everything but `by`."""
    return f"sum{_by(by)} (rate({metric}{_where(match)}[$__rate_interval]))"


def quantile(q: float, metric: str, *by: str, **match: str) -> str:
    """A quantile over all pods, from the sum of their buckets."""
    return f"histogram_quantile({q}, {rate(metric + '_bucket', 'le', *by, **match)})"


def total(metric: str, *by: str, **match: str) -> str:
    """A gauge, summed over everything but `by`."""
    return f"sum{_by(by)} ({metric}{_where(match)})"


def each(metric: str, **match: str) -> str:
    """A gauge of each pod."""
    return metric + _where(match)


def _by(labels: tuple[str, ...]) -> str:
    return f" by ({', '.join(labels)})" if labels else ""


def _where(match: dict[str, str]) -> str:
    return HERE[:-1] + "".join(f',{key}=~"{value}"' for key, value in match.items()) + "}"


def latency(title: str, metric: str, *by: str, about: str = "", **match: str) -> Panel:
    """Median, 90th and 99th percentile of a histogram of seconds."""
    legend = "".join(f" {{{{{label}}}}}" for label in by)
    queries = {f"p{round(q * 100)}{legend}": quantile(q, metric, *by, **match) for q in (0.5, 0.9, 0.99)}
    return Panel(title, "s", queries, about)


WITHIN_SLO = (
    f'sum (rate(sluice_gateway_time_to_first_token_seconds_bucket{HERE[:-1]},le="2.0"}}[$__rate_interval])) / '
    f"{rate('sluice_gateway_time_to_first_token_seconds_count')}"
)
_BY_US = "overloaded|no_worker|shutting_down|deadline_exceeded|worker_failed|internal.*"
FAILED = rate("sluice_gateway_requests_total", outcome=_BY_US) + " / " + rate("sluice_gateway_requests_total")
CACHE_HITS = f"{rate('sluice_prompt_cached_tokens_total')} / {rate('sluice_prompt_tokens_total')}"
STEP_SHARE = f"{rate('sluice_engine_step_seconds_sum', 'pod')}"
BATCH = f"{rate('sluice_engine_decode_rows_sum', 'pod')} / {rate('sluice_engine_decode_rows_count', 'pod')}"
CPU_PER_TOKEN = f"{rate('process_cpu_seconds_total', role='pd-master')} / {rate('sluice_gateway_output_tokens_total')}"

DASHBOARDS: dict[str, tuple[str, list[Panel]]] = {
    "overview": (
        "Sluice / Overview",
        [
            Panel(
                "First tokens within 2 s",
                "percentunit",
                {"share": WITHIN_SLO},
                "The service level that SluiceSlowFirstToken watches.",
            ),
            Panel("Failed requests", "percentunit", {"share": FAILED}, "Client errors and aborts are not counted."),
            Panel("Requests", "reqps", {"{{outcome}}": rate("sluice_gateway_requests_total", "outcome")}),
            Panel(
                "Tokens",
                "short",
                {
                    "prompt tokens/s": rate("sluice_gateway_prompt_tokens_total"),
                    "output tokens/s": rate("sluice_gateway_output_tokens_total"),
                },
            ),
            latency("Time to first token", "sluice_gateway_time_to_first_token_seconds"),
            latency("Between tokens", "sluice_gateway_inter_token_seconds"),
            Panel(
                "Life of a request by stage (p90)",
                "s",
                {
                    "before dispatch": quantile(0.9, "sluice_gateway_prepare_seconds"),
                    "{{stage}}": quantile(0.9, "sluice_gateway_stage_seconds", "stage"),
                    "to first token": quantile(0.9, "sluice_gateway_time_to_first_token_seconds"),
                },
                "Which stage a slow first token is spent in.",
            ),
            latency("Whole request", "sluice_gateway_request_seconds"),
            Panel(
                "Workers",
                "short",
                {"{{worker_role}} {{state}} ({{pod}})": each("sluice_gateway_workers")},
                "As each gateway sees them; open ones get new work.",
            ),
            Panel(
                "Demand on the pools",
                "percentunit",
                {"{{role}} {{pod}}": each("sluice_router_demand_ratio")},
                "Above 1: more is asked for than the pool will hold at its peak.",
            ),
        ],
    ),
    "workers": (
        "Sluice / Prefill and decode workers",
        [
            Panel("Sequences decoded in a step", "short", {"{{pod}}": BATCH}),
            latency("Step time", "sluice_engine_step_seconds", "role"),
            Panel("Share of time in steps", "percentunit", {"{{pod}}": STEP_SHARE}, "1 is an engine that never idles."),
            Panel("Slots by state", "short", {"{{pod}} {{state}}": each("sluice_engine_slots")}),
            Panel(
                "Predicted peak of the pool",
                "percentunit",
                {"admitted {{pod}}": each("sluice_router_admitted_peak_ratio")},
                "Admission keeps it at or below 1; long above 0.95 the pool is what limits.",
            ),
            Panel(
                "Requests",
                "short",
                {
                    "running {{pod}}": each("sluice_router_running_requests"),
                    "waiting {{pod}}": each("sluice_router_waiting_requests"),
                },
            ),
            latency("Wait for admission", "sluice_queue_seconds", "role"),
            Panel("Predicted wait", "s", {"{{pod}}": each("sluice_router_predicted_wait_seconds")}),
            Panel(
                "Preemptions and deferrals",
                "ops",
                {
                    "preempted {{pod}}": rate("sluice_engine_preemptions_total", "pod"),
                    "deferred {{pod}}": rate("sluice_engine_deferrals_total", "pod"),
                    "to the host cache {{pod}}": rate("sluice_engine_kept_sequences_total", "pod"),
                    "host cache full {{pod}}": rate("sluice_engine_host_cache_full_total", "pod"),
                },
            ),
            Panel("Prompt tokens from the prefix cache", "percentunit", {"share": CACHE_HITS}),
            latency("Prefill", "sluice_prefill_seconds"),
            Panel("Age of the engine's last step", "s", {"{{pod}}": each("sluice_engine_last_step_age_seconds")}),
        ],
    ),
    "transfer": (
        "Sluice / KV transfer",
        [
            Panel("KV pushed", "Bps", {"{{pod}}": rate("sluice_transfer_bytes_total", "pod")}),
            latency("Time of a push", "sluice_transfer_seconds"),
            latency(
                "Exposed: after prefill ended",
                "sluice_transfer_exposed_seconds",
                about="What the transfer adds to the time of the second token.",
            ),
            Panel(
                "Speed of each pair's proof (GB/s)",
                "short",
                {"{{pod}} to {{peer}} over {{lane}}": each("sluice_transfer_pair_gigabytes_per_second")},
            ),
            Panel("Failures", "ops", {"{{kind}} {{pod}}": rate("sluice_transfer_failures_total", "kind", "pod")}),
            Panel("Reservations", "ops", {"{{outcome}}": rate("sluice_reservations_total", "outcome")}),
            Panel(
                "Leases expired and reservations revoked",
                "ops",
                {
                    "expired {{pod}}": rate("sluice_leases_expired_total", "pod"),
                    "revoked {{pod}}": rate("sluice_reservations_revoked_total", "pod"),
                },
            ),
            latency("Reservation: call to grant", "sluice_reservation_wait_seconds"),
            latency("First token to joined", "sluice_hand_over_seconds"),
            Panel("Transfer pages by state", "short", {"{{pod}} {{state}}": each("sluice_engine_transfer_pages")}),
        ],
    ),
    "gateway": (
        "Sluice / Gateway",
        [
            Panel(
                "HTTP answers",
                "reqps",
                {"{{path}} {{status}}": rate("sluice_gateway_http_requests_total", "path", "status")},
            ),
            Panel(
                "gRPC answers",
                "reqps",
                {"{{method}} {{status}}": rate("sluice_gateway_rpcs_total", "method", "status")},
            ),
            Panel("Streams", "short", {"{{pod}}": each("sluice_gateway_active_requests")}),
            latency("Before dispatch", "sluice_gateway_prepare_seconds", about="Validation, template, tokenizing."),
            Panel("CPU per output token", "s", {"seconds": CPU_PER_TOKEN}),
            Panel("CPU", "percentunit", {"{{pod}}": rate("process_cpu_seconds_total", "pod", role="pd-master")}),
            Panel("Memory", "bytes", {"{{pod}}": each("process_resident_memory_bytes", role="pd-master")}),
            Panel(
                "HTTP errors",
                "ops",
                {"{{path}} {{status}}": rate("sluice_gateway_http_requests_total", "path", "status", status="5..")},
            ),
            Panel(
                "Discovery",
                "short",
                {"stale {{pod}}": each("sluice_discovery_stale"), "{{state}} {{pod}}": each("sluice_discovery_pods")},
                "Stale: the API server cannot be watched, the last known pods are used.",
            ),
            Panel("Failures of discovery", "ops", {"{{reason}}": rate("sluice_discovery_failures_total", "reason")}),
        ],
    ),
}


def dashboard(name: str) -> dict[str, Any]:
    """Grafana's JSON model of one dashboard."""
    title, panels = DASHBOARDS[name]
    return {
        "uid": f"sluice-{name}",
        "title": title,
        "tags": ["sluice"],
        "schemaVersion": 39,
        "version": 1,
        "editable": False,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": _variables()},
        "panels": [_panel(index, panel) for index, panel in enumerate(panels)],
    }


def _variables() -> list[dict[str, Any]]:
    source = {"type": "prometheus", "uid": "${datasource}"}
    of_namespace = "label_values(sluice_gateway_active_requests, namespace)"
    of_release = 'label_values(sluice_gateway_active_requests{namespace="$namespace"}, release)'
    return [
        {"name": "datasource", "type": "datasource", "query": "prometheus"},
        {"name": "namespace", "type": "query", "datasource": source, "query": of_namespace, "refresh": 2},
        {"name": "release", "type": "query", "datasource": source, "query": of_release, "refresh": 2},
    ]


def _panel(index: int, panel: Panel) -> dict[str, Any]:
    row, column = divmod(index, 24 // _WIDTH)
    targets = [
        {"refId": chr(ord("A") + place), "expr": expression, "legendFormat": legend}
        for place, (legend, expression) in enumerate(panel.queries.items())
    ]
    return {
        "id": index + 1,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.about,
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "gridPos": {"x": column * _WIDTH, "y": row * _HEIGHT, "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": targets,
    }


def render_dashboard(name: str) -> str:
    """The file's text."""
    return json.dumps(dashboard(name), indent=1) + "\n"
