"""The chart's values.schema.json, made from the processes' own options and what Kubernetes adds to them.

Option keys come from services/common/config.py with their types, bounds and choices, so that a chart can refuse what a
process would refuse at start. Unknown keys are refused everywhere. JSON schema draft 7, which every Helm 3 and 4 reads.
"""

import json
import re
from collections.abc import Iterable
from typing import Any

from services.common.config import GatewayConfig, WorkerConfig
from services.common.options import Options, Spec, specs

Schema = dict[str, Any]

OF_THE_CHART = frozenset(
    {"role", "host", "grpc_port", "http_port", "advertise_address", "transfer_port", "workers", "discovery",
     "worker_selector", "namespace", "api_keys_file", "model", "served_model_name", "dtype", "load_format",
     "max_context_tokens", "tls_cert_file", "tls_key_file", "grpc_client_ca_file",
     "pod_tls_cert_file", "pod_tls_key_file", "pod_tls_ca_file", "pod_tls_name"}
)  # fmt: skip
"""Options that the chart sets by itself or from other keys than the option's own."""

STRING: Schema = {"type": "string"}
BOOLEAN: Schema = {"type": "boolean"}
MAP: Schema = {"type": "object"}
STRINGS: Schema = {"type": "object", "additionalProperties": {"type": "string"}}
API_KEYS: Schema = {
    "type": "object",
    "propertyNames": {"pattern": "^[^#\\s]\\S*$"},
    "additionalProperties": {"type": "string", "minLength": 16, "pattern": r"^\S+$"},
    "description": "names without spaces, keys of 16 characters or more",
}
FILLED: Schema = {"type": "string", "minLength": 1}
ENTRY: Schema = {"type": "string", "pattern": "^[-._a-zA-Z0-9]+$", "description": "an entry of a Secret"}
NUMERAL: Schema = {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?$", "description": "a number, in quotes"}
OBJECTS: Schema = {"type": "array", "items": {"type": "object"}}
PORT: Schema = {"type": "integer", "minimum": 1, "maximum": 65535}
PATH: Schema = {"type": "string", "pattern": "^(/.*)?$", "description": "an absolute path, or empty"}
QUANTITY: Schema = {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|Ki|Mi|Gi|Ti)?$"}
PODS: Schema = {
    "anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": "^[0-9]{1,3}%$"}],
    "description": "a number of pods or a percentage",
}


def whole(minimum: int, maximum: int | None = None) -> Schema:
    """A whole number from `minimum`, to `maximum` where there is one."""
    return {"type": "integer", "minimum": minimum} | ({} if maximum is None else {"maximum": maximum})


def one_of(*choices: str) -> Schema:
    """One of a few words."""
    return {"enum": list(choices)}


def keys(**properties: Schema) -> Schema:
    """An object of exactly these keys, each of which may be left out."""
    return {"type": "object", "additionalProperties": False, "properties": properties}


def camel(name: str) -> str:
    """`max_running_requests` as `maxRunningRequests`."""
    return re.sub(r"_(\w)", lambda match: match[1].upper(), name)


def option_keys(config: type[Options]) -> dict[str, Schema]:
    """The options of a process that are values of the chart, by their names there."""
    return {camel(spec.name): _option(spec) for spec in specs(config) if spec.name not in OF_THE_CHART}


def _option(spec: Spec) -> Schema:
    schema: Schema = {"description": spec.help}
    if spec.choices:
        return schema | {"enum": list(spec.choices)}
    schema["type"] = {int: "integer", float: "number", bool: "boolean"}.get(spec.type, "string")
    bounds = {"minimum": spec.minimum, "maximum": spec.maximum}
    return schema | {key: bound for key, bound in bounds.items() if bound is not None}


def _pod() -> dict[str, Schema]:
    return {
        "replicas": whole(0),
        "preStopSeconds": whole(0, 600),
        "terminationGracePeriodSeconds": whole(0),
        "rollout": keys(maxSurge=PODS, maxUnavailable=PODS),
        "resources": keys(requests=MAP, limits=MAP),
        "startupBudgetSeconds": whole(2),
        "podDisruptionBudget": keys(enabled=BOOLEAN, maxUnavailable=PODS),
        "nodeSelector": STRINGS,
        "tolerations": OBJECTS,
        "affinity": MAP,
        "topologySpreadConstraints": OBJECTS,
        "priorityClassName": STRING,
        "podLabels": STRINGS,
        "podAnnotations": STRINGS,
        "env": {"type": "array", "items": {"type": "object", "required": ["name"]}},
    }


def _autoscaling(**target: Schema) -> Schema:
    return keys(enabled=BOOLEAN, minReplicas=whole(1), maxReplicas=whole(1), metrics=OBJECTS, behavior=MAP, **target)


def _worker(**of_role: Schema) -> Schema:
    gid: Schema = {"anyOf": [one_of("auto", "none"), whole(0, 255)], "description": "auto, none or a number to 255"}
    return keys(
        **of_role,
        **option_keys(WorkerConfig),
        **_pod(),
        gpu=keys(count=whole(0, 16), resource=STRING, runtimeClassName=STRING),
        rdma=keys(
            enabled=BOOLEAN, resource=STRING, count=whole(1), claimTemplate=STRING, gidIndex=gid, networks=STRING
        ),
        hostNetwork=BOOLEAN,
        hostIPC=BOOLEAN,
        shmSize=QUANTITY,
        livenessBudgetSeconds=whole(12),
        autoscaling=_autoscaling(targetDemandRatio=QUANTITY),
        keda=keys(enabled=BOOLEAN, minReplicas=whole(1), maxReplicas=whole(1), serverAddress=STRING, threshold=NUMERAL),
    )


def _gateway() -> Schema:
    return keys(
        **option_keys(GatewayConfig),
        **_pod(),
        service=keys(
            type=one_of("ClusterIP", "NodePort", "LoadBalancer"),
            annotations=STRINGS,
            httpPort=PORT,
            grpcPort=PORT,
            externalTrafficPolicy=one_of("", "Local", "Cluster"),
        ),
        tls=keys(secretName=STRING, certKey=ENTRY, keyKey=ENTRY, grpcClientCaKey=STRING),
        apiKeys=keys(values=API_KEYS, existingSecret=STRING, key=FILLED),
        autoscaling=_autoscaling(targetCpuPercent=whole(1, 100)),
        serviceAccountAnnotations=STRINGS,
    )


def _image() -> Schema:
    tag: Schema = {"type": "string", "not": {"const": "latest"}, "description": "a fixed tag; latest is refused"}
    digest: Schema = {"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"}
    image = keys(repository=FILLED, tag=tag, digest=digest)
    policy = one_of("Always", "IfNotPresent", "Never")
    return keys(registry=STRING, pullPolicy=policy, pullSecrets=OBJECTS, gateway=image, worker=image)


def _model() -> Schema:
    options = {spec.name: _option(spec) for spec in specs(WorkerConfig)}
    hub_id: Schema = {"type": "string", "pattern": "^([^/ ]+/[^/ ]+)?$", "description": "owner/name"}
    return keys(
        servedName=STRING,
        source=one_of("hub", "pvc", "hostPath", "image"),
        hub=keys(
            id=hub_id,
            cache=one_of("emptyDir", "pvc", "hostPath"),
            cacheSize=QUANTITY,
            claimName=STRING,
            hostPath=PATH,
        ),
        pvc=keys(claimName=STRING, path=STRING),
        hostPath=keys(path=PATH),
        image=keys(reference=STRING, path=STRING, pullPolicy=one_of("Always", "IfNotPresent", "Never")),
        dtype=options["dtype"],
        loadFormat=options["load_format"],
        maxContextTokens=options["max_context_tokens"],
    )


def _observability() -> dict[str, Schema]:
    interval: Schema = {"type": "string", "pattern": "^[0-9]+(ms|s|m)$"}
    return {
        "podMonitor": keys(enabled=BOOLEAN, interval=interval, labels=STRINGS),
        "prometheusRule": keys(enabled=BOOLEAN, labels=STRINGS, runbookUrl=STRING),
        "dashboards": keys(enabled=BOOLEAN, labels=STRINGS, annotations=STRINGS),
        "test": keys(prompt=FILLED, maxTokens=whole(1), timeoutSeconds=whole(1)),
    }


def values_schema() -> Schema:
    """The schema of values.yaml. Rules between keys are in templates/_validate.tpl."""
    top = keys(
        nameOverride=STRING,
        fullnameOverride=STRING,
        commonLabels=STRINGS,
        commonAnnotations=STRINGS,
        image=_image(),
        model=_model(),
        huggingFace=keys(token=STRING, existingSecret=STRING, key=FILLED),
        pdMaster=_gateway(),
        worker={"$ref": "#/definitions/worker"},
        **{role: {"$ref": "#/definitions/role"} for role in ("prefill", "decode", "mixed")},
        podTls=keys(secretName=STRING, certKey=ENTRY, keyKey=ENTRY, caKey=ENTRY, name=FILLED),
        ports=keys(http=PORT, grpc=PORT, kv=PORT, kvData=keys(first=PORT, last=PORT)),
        priorityClass=keys(create=BOOLEAN, name=STRING, value=whole(-(2**31), 10**9)),
        networkPolicy=keys(
            enabled=BOOLEAN,
            clients=OBJECTS,
            prometheus=OBJECTS,
            egress=BOOLEAN,
            apiServerPorts={"type": "array", "items": PORT},
        ),
        **_observability(),
    )
    top["properties"]["global"] = MAP
    head = {"$schema": "http://json-schema.org/draft-07/schema#", "title": "Values of the Sluice chart"}
    return head | top | {"definitions": {"worker": _worker(), "role": _worker(enabled=BOOLEAN)}}


def missing_keys(defaults: dict[str, Any]) -> Iterable[str]:
    """Options that values.yaml does not document."""
    for section, config in (("pdMaster", GatewayConfig), ("worker", WorkerConfig)):
        yield from (f"{section}.{key}" for key in option_keys(config) if key not in defaults[section])


def render_schema() -> str:
    """The file's text."""
    return json.dumps(values_schema(), indent=1) + "\n"
