{{/* From values to the options of processes. */}}

{{/* The values of one component as YAML: those of `worker` with what the role has of its own above them. dict ctx component */}}
{{- define "sluice.values" -}}
{{- if eq .component "pd-master" -}}
{{- toYaml .ctx.Values.pdMaster -}}
{{- else -}}
{{- $out := deepCopy .ctx.Values.worker -}}
{{- range $key, $value := index .ctx.Values .component -}}
{{- if has $key (list "gpu" "rdma" "rollout" "resources" "podDisruptionBudget" "autoscaling" "keda") -}}
{{- $value = include "sluice.overlay" (dict "below" (get $out $key) "above" $value) | fromYaml -}}
{{- end -}}
{{- $_ := set $out $key $value -}}
{{- end -}}
{{- toYaml $out -}}
{{- end -}}
{{- end }}

{{/* Two maps as one, key by key, as YAML: dict below above */}}
{{- define "sluice.overlay" -}}
{{- $out := deepCopy .below -}}
{{- range $key, $value := .above -}}
{{- if and (kindIs "map" $value) (kindIs "map" (get $out $key)) -}}
{{- $value = include "sluice.overlay" (dict "below" (get $out $key) "above" $value) | fromYaml -}}
{{- end -}}
{{- $_ := set $out $key $value -}}
{{- end -}}
{{- toYaml $out -}}
{{- end }}

{{/* A scalar as a process reads it: whole numbers without exponent. */}}
{{- define "sluice.scalar" -}}
{{- if and (kindIs "float64" .) (eq (floor .) .) -}}{{ int64 . }}{{- else -}}{{ . }}{{- end -}}
{{- end }}

{{/* The values that are options, by their names here. A test holds this list to services/common/config.py. */}}
{{- define "sluice.optionKeys" -}}
{{- if eq . "pd-master" -}}
logLevel logFormat processes maxQueue maxBodyBytes maxChoices localPrefillTokens maxAttempts queueBudgetS deadlineS clientBufferBytes clientStallS workerTimeoutS drainS otlpEndpoint
{{- else -}}
logLevel logFormat otlpEndpoint backend threads seed tp maxRunningRequests kvPoolTokens kvMemoryFraction hostCacheGib chunkTokens prefixCache maxQueue priorOutputTokens pendingKvShare transferPageBytes transferPages transferDepth transferDeadlineS ucxTls ucxNetDevices requireLane verifyKv reservationLeaseS masterTimeoutS engineStallS drainS
{{- end -}}
{{- end }}

{{/* The environment of a process, as a ConfigMap's data: dict ctx component */}}
{{- define "sluice.options" -}}
{{- $values := include "sluice.values" . | fromYaml -}}
{{- range $key := splitList " " (include "sluice.optionKeys" .component) }}
{{- $text := include "sluice.scalar" (index $values $key) }}
{{- if ne $text "" }}
SLUICE_{{ snakecase $key | upper }}: {{ $text | quote }}
{{- end }}
{{- end }}
{{- include "sluice.podTlsOptions" .ctx }}
{{- if eq .component "pd-master" }}
{{- include "sluice.gatewayOptions" .ctx }}
{{- else }}
{{- include "sluice.workerOptions" .ctx }}
{{- end }}
{{- end }}

{{- define "sluice.podTlsOptions" }}
{{- with .Values.podTls }}
{{- if .secretName }}
SLUICE_POD_TLS_CERT_FILE: /etc/sluice/pod-tls/{{ .certKey }}
SLUICE_POD_TLS_KEY_FILE: /etc/sluice/pod-tls/{{ .keyKey }}
SLUICE_POD_TLS_CA_FILE: /etc/sluice/pod-tls/{{ .caKey }}
SLUICE_POD_TLS_NAME: {{ .name | quote }}
{{- end }}
{{- end }}
{{- end }}

{{- define "sluice.gatewayOptions" }}
SLUICE_HTTP_PORT: "8000"
SLUICE_GRPC_PORT: "8001"
SLUICE_DISCOVERY: kubernetes
{{- if include "sluice.apiKeysSecret" . }}
SLUICE_API_KEYS_FILE: /etc/sluice/api-keys/keys
{{- end }}
{{- with .Values.pdMaster.tls }}
{{- if .secretName }}
SLUICE_TLS_CERT_FILE: /etc/sluice/tls/{{ .certKey }}
SLUICE_TLS_KEY_FILE: /etc/sluice/tls/{{ .keyKey }}
{{- with .grpcClientCaKey }}
SLUICE_GRPC_CLIENT_CA_FILE: /etc/sluice/tls/{{ . }}
{{- end }}
{{- end }}
{{- end }}
SLUICE_NAMESPACE: {{ .Release.Namespace | quote }}
SLUICE_WORKER_SELECTOR: {{ include "sluice.workerSelector" . | quote }}
{{- end }}

{{/* The Secret with the API keys; empty when there are none. */}}
{{- define "sluice.apiKeysSecret" -}}
{{- $keys := .Values.pdMaster.apiKeys -}}
{{- if $keys.existingSecret -}}{{ $keys.existingSecret }}
{{- else if $keys.values -}}{{ include "sluice.fullname" . }}-api-keys
{{- end -}}
{{- end }}

{{- define "sluice.workerOptions" }}
{{- $model := .Values.model }}
SLUICE_MODEL: {{ include "sluice.modelPath" . | quote }}
{{- with $model.servedName }}
SLUICE_SERVED_MODEL_NAME: {{ . | quote }}
{{- end }}
SLUICE_DTYPE: {{ $model.dtype | quote }}
SLUICE_LOAD_FORMAT: {{ $model.loadFormat | quote }}
SLUICE_MAX_CONTEXT_TOKENS: {{ include "sluice.scalar" $model.maxContextTokens | quote }}
SLUICE_HTTP_PORT: {{ .Values.ports.http | quote }}
SLUICE_GRPC_PORT: {{ .Values.ports.grpc | quote }}
SLUICE_TRANSFER_PORT: {{ .Values.ports.kv | quote }}
UCX_TCP_PORT_RANGE: {{ printf "%v-%v" .Values.ports.kvData.first .Values.ports.kvData.last | quote }}
{{- end }}

{{/* Where the engine finds the model. */}}
{{- define "sluice.modelPath" -}}
{{- $model := .Values.model -}}
{{- if eq $model.source "hub" -}}{{ $model.hub.id }}
{{- else if eq $model.source "hostPath" -}}{{ printf "/models/%s" (base $model.hostPath.path) }}
{{- else -}}{{ printf "/models/%s" (trimAll "/" (index $model $model.source).path) | trimSuffix "/" }}
{{- end -}}
{{- end }}
