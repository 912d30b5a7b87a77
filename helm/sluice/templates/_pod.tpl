{{/* What all pods share. Arguments: dict ctx component values. */}}

{{/* Ahead of the containers: who runs, where, with whom. */}}
{{- define "sluice.podHead" -}}
{{- with .ctx.Values.image.pullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
# Service variables would begin with SLUICE_, where an unknown name is fatal.
enableServiceLinks: false
terminationGracePeriodSeconds: {{ include "sluice.gracePeriod" .values }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- with .values.priorityClassName | default .ctx.Values.priorityClass.name }}
priorityClassName: {{ . }}
{{- end }}
{{- with .values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
affinity:
  {{- if .values.affinity }}
  {{- toYaml .values.affinity | nindent 2 }}
  {{- else }}
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels:
              {{- include "sluice.selector" . | nindent 14 }}
  {{- end }}
topologySpreadConstraints:
  {{- if .values.topologySpreadConstraints }}
  {{- toYaml .values.topologySpreadConstraints | nindent 2 }}
  {{- else }}
  {{- range list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
  - maxSkew: 1
    topologyKey: {{ . }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "sluice.selector" $ | nindent 8 }}
  {{- end }}
  {{- end }}
{{- end }}

{{- define "sluice.gracePeriod" -}}
{{- if int .terminationGracePeriodSeconds -}}
{{- int .terminationGracePeriodSeconds -}}
{{- else -}}
{{- add (int .preStopSeconds) (int (ceil .drainS)) 15 -}}
{{- end -}}
{{- end }}

{{/* Labels and annotations of a pod; a changed option or secret replaces pods. */}}
{{- define "sluice.podMetadata" -}}
labels:
  {{- include "sluice.labels" . | nindent 2 }}
  {{- with .values.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
annotations:
  checksum/config: {{ include "sluice.options" . | sha256sum }}
  checksum/secret: {{ list .ctx.Values.huggingFace.token (ternary .ctx.Values.pdMaster.apiKeys.values "" (eq .component "pd-master")) | toJson | sha256sum | trunc 16 }}
  kubectl.kubernetes.io/default-container: sluice
  {{- with merge (dict) .values.podAnnotations .ctx.Values.commonAnnotations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{- define "sluice.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* Before SIGTERM: dict values */}}
{{- define "sluice.lifecycle" -}}
{{- if int .preStopSeconds }}
lifecycle:
  preStop:
    exec:
      command: [sleep, {{ int .preStopSeconds | quote }}]
{{- end }}
{{- end }}

{{- define "sluice.deploymentHead" -}}
{{- if not (or .values.autoscaling.enabled (dig "keda" "enabled" false .values)) }}
replicas: {{ int .values.replicas }}
{{- end }}
revisionHistoryLimit: 3
strategy:
  type: RollingUpdate
  rollingUpdate:
    maxSurge: {{ .values.rollout.maxSurge }}
    maxUnavailable: {{ .values.rollout.maxUnavailable }}
selector:
  matchLabels:
    {{- include "sluice.selector" . | nindent 4 }}
{{- end }}
