{{/* Objects that several components have, each: dict ctx component */}}

{{/* An object of a role of workers, if there are such: dict ctx component object */}}
{{- define "sluice.forRole" -}}
{{- if include "sluice.hasRole" . }}{{ include .object . }}{{ end -}}
{{- end }}

{{/* Whether there are workers of a role: dict ctx component. `--reuse-values` brings values of a chart without the key. */}}
{{- define "sluice.hasRole" -}}
{{- $role := index .ctx.Values .component | default dict -}}
{{- if ternary $role.enabled (ne .component "mixed") (hasKey $role "enabled") }}true{{ end -}}
{{- end }}

{{/* The roles there are, as words */}}
{{- define "sluice.roles" -}}
{{- $roles := list -}}
{{- range list "prefill" "decode" "mixed" }}{{ if include "sluice.hasRole" (dict "ctx" $ "component" .) }}{{ $roles = append $roles . }}{{ end }}{{ end -}}
{{- join " " $roles -}}
{{- end }}

{{- define "sluice.configMap" -}}
apiVersion: v1
kind: ConfigMap
metadata:
  {{- include "sluice.metadata" . | nindent 2 }}
data:
  {{- include "sluice.options" . | trim | nindent 2 }}
{{- end }}

{{/* Headless, for people and service meshes: masters find workers through the API, not through DNS. */}}
{{- define "sluice.workerService" -}}
apiVersion: v1
kind: Service
metadata:
  {{- include "sluice.metadata" . | nindent 2 }}
spec:
  clusterIP: None
  publishNotReadyAddresses: true
  selector:
    {{- include "sluice.selector" . | nindent 4 }}
  ports:
    - {name: grpc, port: {{ .ctx.Values.ports.grpc }}, targetPort: grpc, protocol: TCP}
    - {name: http, port: {{ .ctx.Values.ports.http }}, targetPort: http, protocol: TCP}
{{- end }}

{{- define "sluice.pdb" -}}
{{- $values := include "sluice.values" . | fromYaml -}}
{{- if $values.podDisruptionBudget.enabled -}}
apiVersion: {{ include "sluice.policyVersion" .ctx }}
kind: PodDisruptionBudget
metadata:
  {{- include "sluice.metadata" . | nindent 2 }}
spec:
  maxUnavailable: {{ $values.podDisruptionBudget.maxUnavailable }}
  {{- include "sluice.evictionPolicy" .ctx | trim | nindent 2 }}
  selector:
    matchLabels:
      {{- include "sluice.selector" . | nindent 6 }}
{{- end }}
{{- end }}

{{- define "sluice.hpa" -}}
{{- $scaling := (include "sluice.values" . | fromYaml).autoscaling -}}
{{- if $scaling.enabled -}}
apiVersion: {{ include "sluice.autoscalingVersion" .ctx }}
kind: HorizontalPodAutoscaler
metadata:
  {{- include "sluice.metadata" . | nindent 2 }}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: {{ include "sluice.name" . }}}
  minReplicas: {{ $scaling.minReplicas }}
  maxReplicas: {{ $scaling.maxReplicas }}
  metrics:
    {{- if $scaling.metrics }}
    {{- toYaml $scaling.metrics | nindent 4 }}
    {{- else if eq .component "pd-master" }}
    - type: Resource
      resource:
        name: cpu
        target: {type: Utilization, averageUtilization: {{ $scaling.targetCpuPercent }}}
    {{- else }}
    - type: Pods
      pods:
        metric: {name: sluice_router_demand_ratio}
        target: {type: AverageValue, averageValue: {{ $scaling.targetDemandRatio }}}
    {{- end }}
  behavior:
    {{- if $scaling.behavior }}
    {{- toYaml $scaling.behavior | nindent 4 }}
    {{- else }}
    # Up at once, down slowly: a worker that goes takes its prefix cache with it.
    scaleDown:
      stabilizationWindowSeconds: 300
      policies: [{type: Pods, value: 1, periodSeconds: 120}]
    {{- end }}
{{- end }}
{{- end }}

{{- define "sluice.scaledObject" -}}
{{- $keda := (include "sluice.values" . | fromYaml).keda -}}
{{- if $keda.enabled -}}
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata:
  {{- include "sluice.metadata" . | nindent 2 }}
spec:
  scaleTargetRef: {name: {{ include "sluice.name" . }}}
  minReplicaCount: {{ $keda.minReplicas }}
  maxReplicaCount: {{ $keda.maxReplicas }}
  cooldownPeriod: 300
  triggers:
    - type: prometheus
      metricType: AverageValue
      metadata:
        serverAddress: {{ $keda.serverAddress | quote }}
        threshold: {{ $keda.threshold | quote }}
        query: >-
          sum(sluice_router_demand_ratio{namespace="{{ .ctx.Release.Namespace }}",release="{{ .ctx.Release.Name }}",role="{{ .component }}"})
{{- end }}
{{- end }}
