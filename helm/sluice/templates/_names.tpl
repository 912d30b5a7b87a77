{{/* Names and labels. Components are pd-master, prefill, decode and mixed; their values stand under pdMaster and so on. */}}

{{- define "sluice.chartName" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{- define "sluice.fullname" -}}
{{- $name := include "sluice.chartName" . -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end }}

{{/* The name of a component's objects: dict ctx component */}}
{{- define "sluice.name" -}}
{{- printf "%s-%s" (include "sluice.fullname" .ctx) .component -}}
{{- end }}

{{/* What selects the pods of a component: dict ctx component */}}
{{- define "sluice.selector" -}}
app.kubernetes.io/name: {{ include "sluice.chartName" .ctx }}
app.kubernetes.io/instance: {{ .ctx.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{/* All labels of an object: dict ctx component */}}
{{- define "sluice.labels" -}}
{{ include "sluice.selector" . }}
app.kubernetes.io/part-of: sluice
app.kubernetes.io/version: {{ .ctx.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .ctx.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .ctx.Chart.Name .ctx.Chart.Version | replace "+" "_" }}
{{- with .ctx.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* The metadata of an object: dict ctx component [name] [labels] [annotations] */}}
{{- define "sluice.metadata" -}}
name: {{ .name | default (include "sluice.name" .) }}
namespace: {{ .ctx.Release.Namespace }}
labels:
  {{- include "sluice.labels" . | nindent 2 }}
  {{- with .labels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with merge (dict) (.annotations | default dict) .ctx.Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* How pd_master finds workers' pods */}}
{{- define "sluice.workerSelector" -}}
app.kubernetes.io/name={{ include "sluice.chartName" . }},app.kubernetes.io/instance={{ .Release.Name }},app.kubernetes.io/component in (prefill,decode,mixed)
{{- end }}

{{/* An image: dict ctx image (gateway or worker) */}}
{{- define "sluice.image" -}}
{{- $image := index .ctx.Values.image .image -}}
{{- $repository := $image.repository -}}
{{- with .ctx.Values.image.registry }}{{ $repository = printf "%s/%s" (trimSuffix "/" .) $repository }}{{ end -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $repository $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $repository ($image.tag | default .ctx.Chart.AppVersion) -}}
{{- end -}}
{{- end }}
