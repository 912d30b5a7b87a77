{{/* Who may reach whom: clients -> pd_master -> workers, prefill -> decode, Prometheus -> /metrics. Nothing else. */}}

{{/* Peers that are pods of a component: dict ctx component */}}
{{- define "sluice.podPeer" -}}
- podSelector:
    matchLabels:
      {{- include "sluice.selector" . | nindent 6 }}
{{- end }}

{{- define "sluice.tcpPorts" -}}
{{- range . }}
- {port: {{ . }}, protocol: TCP}
{{- end }}
{{- end }}

{{/* Ports of the KV transfer, one by one, since ranges came with Kubernetes 1.25: dict ctx values */}}
{{- define "sluice.transferPorts" -}}
{{- $ports := .ctx.Values.ports -}}
{{- range $rank := until (int .values.tp) }}
- {port: {{ add (int $ports.kv) $rank }}, protocol: TCP}
{{- end }}
{{- range $port := untilStep (int $ports.kvData.first) (int (add (int $ports.kvData.last) 1)) 1 }}
- {port: {{ $port }}, protocol: TCP}
{{- end }}
{{- end }}

{{- define "sluice.fromPrometheus" -}}
{{- with .from }}
- from:
    {{- toYaml . | nindent 4 }}
  ports:
    {{- include "sluice.tcpPorts" (list $.port) | trim | nindent 4 }}
{{- end }}
{{- end }}

{{- define "sluice.workerNetworkPolicy" -}}
{{- if .ctx.Values.networkPolicy.enabled -}}
{{- $values := include "sluice.values" . | fromYaml -}}
{{- $ports := .ctx.Values.ports -}}
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  {{- include "sluice.metadata" . | nindent 2 }}
spec:
  podSelector:
    matchLabels:
      {{- include "sluice.selector" . | nindent 6 }}
  policyTypes: [Ingress{{ if .ctx.Values.networkPolicy.egress }}, Egress{{ end }}]
  ingress:
    - from:
        {{- include "sluice.podPeer" (dict "ctx" .ctx "component" "pd-master") | nindent 8 }}
      ports:
        {{- include "sluice.tcpPorts" (list $ports.grpc) | trim | nindent 8 }}
    {{- if eq .component "decode" }}
    - from:
        {{- include "sluice.podPeer" (dict "ctx" .ctx "component" "prefill") | nindent 8 }}
      ports:
        {{- include "sluice.tcpPorts" (list $ports.grpc) | trim | nindent 8 }}
        {{- include "sluice.transferPorts" (dict "ctx" .ctx "values" $values) | trim | nindent 8 }}
    {{- end }}
    {{- include "sluice.fromPrometheus" (dict "from" .ctx.Values.networkPolicy.prometheus "port" $ports.http) | trim | nindent 4 }}
  {{- if .ctx.Values.networkPolicy.egress }}
  egress:
    {{- include "sluice.dnsRule" . | nindent 4 }}
    {{- include "sluice.traceRule" $values | trim | nindent 4 }}
    {{- if eq .component "prefill" }}
    - to:
        {{- include "sluice.podPeer" (dict "ctx" .ctx "component" "decode") | nindent 8 }}
      ports:
        {{- include "sluice.tcpPorts" (list $ports.grpc) | trim | nindent 8 }}
        {{- include "sluice.transferPorts" (dict "ctx" .ctx "values" (include "sluice.values" (dict "ctx" .ctx "component" "decode") | fromYaml)) | trim | nindent 8 }}
    {{- end }}
    {{- if eq .ctx.Values.model.source "hub" }}
    - ports:
        {{- include "sluice.tcpPorts" (list 443) | trim | nindent 8 }}
    {{- end }}
  {{- end }}
{{- end }}
{{- end }}

{{/* The collector of traces, wherever it is: the values of a component */}}
{{- define "sluice.traceRule" -}}
{{- with .otlpEndpoint }}
{{- $url := urlParse . -}}
{{- $port := regexFind "[0-9]+$" (regexFind ":[0-9]+$" $url.host) | default (ternary "443" "80" (eq $url.scheme "https")) }}
- ports:
    {{- include "sluice.tcpPorts" (list $port) | trim | nindent 4 }}
{{- end }}
{{- end }}

{{- define "sluice.dnsRule" -}}
- ports:
    - {port: 53, protocol: UDP}
    - {port: 53, protocol: TCP}
{{- end }}
