{{/* The Deployment of a role: dict ctx component */}}
{{- define "sluice.workerDeployment" -}}
{{- $values := include "sluice.values" . | fromYaml -}}
{{- $args := merge (dict "values" $values) . -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  {{- include "sluice.metadata" . | nindent 2 }}
spec:
  {{- include "sluice.deploymentHead" $args | trim | nindent 2 }}
  # A model takes minutes to load; the startup budget says when a rollout has failed.
  progressDeadlineSeconds: {{ add (int $values.startupBudgetSeconds) 300 }}
  template:
    metadata:
      {{- include "sluice.podMetadata" (merge (dict "values" (include "sluice.workerPodValues" $values | fromYaml)) .) | nindent 6 }}
    spec:
      {{- include "sluice.podHead" $args | trim | nindent 6 }}
      automountServiceAccountToken: false
      serviceAccountName: {{ include "sluice.fullname" .ctx }}-worker
      {{- with $values.gpu.runtimeClassName }}
      runtimeClassName: {{ . }}
      {{- end }}
      {{- if $values.hostNetwork }}
      hostNetwork: true
      dnsPolicy: ClusterFirstWithHostNet
      {{- end }}
      {{- if $values.hostIPC }}
      hostIPC: true
      {{- end }}
      {{- if and $values.rdma.enabled $values.rdma.claimTemplate }}
      resourceClaims:
        - name: rdma
          resourceClaimTemplateName: {{ $values.rdma.claimTemplate }}
      {{- end }}
      containers:
        - name: sluice
          {{- include "sluice.workerContainer" $args | nindent 10 }}
      volumes:
        {{- include "sluice.workerVolumes" $args | nindent 8 }}
{{- end }}

{{/* The values with the annotations that a pod's other values imply. */}}
{{- define "sluice.workerPodValues" -}}
{{- $annotations := .podAnnotations -}}
{{- with .rdma.networks }}{{ $annotations = merge (dict "k8s.v1.cni.cncf.io/networks" .) $annotations }}{{ end -}}
podLabels: {{ toJson .podLabels }}
podAnnotations: {{ toJson $annotations }}
{{- end }}

{{- define "sluice.workerContainer" -}}
image: {{ include "sluice.image" (dict "ctx" .ctx "image" "worker") | quote }}
imagePullPolicy: {{ .ctx.Values.image.pullPolicy }}
{{- if and .values.rdma.enabled (eq (toString .values.rdma.gidIndex) "auto") }}
# Looks for the RoCE v2 GID of the pod's address, sets UCX_IB_GID_INDEX and becomes the worker.
command: [python, -m, services.cli.rdma_gid, sluice]
{{- end }}
args: [{{ .component }}]
envFrom:
  - configMapRef:
      name: {{ include "sluice.name" . }}
env:
  {{- include "sluice.workerEnv" . | nindent 2 }}
ports:
  {{- include "sluice.workerPorts" . | nindent 2 }}
{{- include "sluice.workerProbes" . }}
{{- include "sluice.lifecycle" .values }}
resources:
  {{- include "sluice.workerResources" .values | nindent 2 }}
securityContext:
  {{- include "sluice.securityContext" . | nindent 2 }}
  {{- if .values.rdma.enabled }}
    add: [IPC_LOCK]
  {{- end }}
volumeMounts:
  {{- include "sluice.workerMounts" . | nindent 2 }}
{{- end }}

{{- define "sluice.workerEnv" -}}
- name: POD_IP
  valueFrom:
    fieldRef: {fieldPath: status.podIP}
- name: SLUICE_ADVERTISE_ADDRESS
  value: $(POD_IP):{{ .ctx.Values.ports.grpc }}
{{- $gid := toString .values.rdma.gidIndex }}
{{- if and .values.rdma.enabled (not (has $gid (list "auto" "none"))) }}
- name: UCX_IB_GID_INDEX
  value: {{ include "sluice.scalar" .values.rdma.gidIndex | quote }}
{{- end }}
{{- if eq .ctx.Values.model.source "hub" }}
- name: HF_HOME
  value: /cache/huggingface
{{- if or .ctx.Values.huggingFace.token .ctx.Values.huggingFace.existingSecret }}
- name: HF_TOKEN
  valueFrom:
    secretKeyRef:
      name: {{ .ctx.Values.huggingFace.existingSecret | default (printf "%s-hugging-face" (include "sluice.fullname" .ctx)) }}
      key: {{ .ctx.Values.huggingFace.key }}
{{- end }}
{{- end }}
{{- with .values.env }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Every port that a worker listens on. */}}
{{- define "sluice.workerPorts" -}}
- {name: http, containerPort: {{ .ctx.Values.ports.http }}, protocol: TCP}
- {name: grpc, containerPort: {{ .ctx.Values.ports.grpc }}, protocol: TCP}
{{- range $rank := until (ternary 0 (int .values.tp) (eq .component "mixed")) }}
- {name: kv-{{ $rank }}, containerPort: {{ add (int $.ctx.Values.ports.kv) $rank }}, protocol: TCP}
{{- end }}
{{- end }}

{{/* Startup waits for the model; then readiness follows the engine, and liveness only ends what does not recover. */}}
{{- define "sluice.workerProbes" }}
startupProbe:
  httpGet: {path: /readiness, port: http}
  periodSeconds: 2
  timeoutSeconds: 2
  failureThreshold: {{ div (add (int .values.startupBudgetSeconds) 1) 2 }}
readinessProbe:
  httpGet: {path: /readiness, port: http}
  # The worker says so 5 s after its engine fell silent; masters and endpoints should know within 10 s, on a busy node too.
  periodSeconds: 1
  timeoutSeconds: 2
  failureThreshold: 2
livenessProbe:
  httpGet: {path: /liveness, port: http}
  periodSeconds: 5
  timeoutSeconds: 3
  failureThreshold: {{ max 2 (div (sub (int .values.livenessBudgetSeconds) (mul 3 (int (ceil .values.engineStallS)))) 5) }}
{{- end }}

{{- define "sluice.workerResources" -}}
{{- $extra := dict -}}
{{- if int .gpu.count }}{{ $_ := set $extra .gpu.resource (int .gpu.count | toString) }}{{ end -}}
{{- if and .rdma.enabled .rdma.resource }}{{ $_ := set $extra .rdma.resource (int .rdma.count | toString) }}{{ end -}}
requests:
  {{- toYaml (merge (deepCopy $extra) (.resources.requests | default dict)) | nindent 2 }}
limits:
  {{- toYaml (merge (deepCopy $extra) (.resources.limits | default dict)) | nindent 2 }}
{{- if and .rdma.enabled .rdma.claimTemplate }}
claims:
  - name: rdma
{{- end }}
{{- end }}

{{- define "sluice.workerMounts" -}}
- {name: tmp, mountPath: /tmp}
- {name: cache, mountPath: /cache}
- {name: shm, mountPath: /dev/shm}
{{- include "sluice.podTlsMount" .ctx }}
{{- if eq .ctx.Values.model.source "hub" }}
- {name: hub, mountPath: /cache/huggingface}
{{- else }}
- {name: model, mountPath: {{ include "sluice.modelMount" .ctx }}, readOnly: true}
{{- end }}
{{- end }}

{{/* A folder of the node is mounted under its own name, the others as a whole. */}}
{{- define "sluice.modelMount" -}}
{{- if eq .Values.model.source "hostPath" }}{{ include "sluice.modelPath" . }}{{ else }}/models{{ end -}}
{{- end }}

{{- define "sluice.workerVolumes" -}}
{{- $model := .ctx.Values.model -}}
- {name: tmp, emptyDir: {}}
# Triton's compiled kernels.
- {name: cache, emptyDir: {}}
- {name: shm, emptyDir: {medium: Memory, sizeLimit: {{ .values.shmSize }}}}
{{- include "sluice.podTlsVolume" .ctx }}
{{- if eq $model.source "pvc" }}
- {name: model, persistentVolumeClaim: {claimName: {{ $model.pvc.claimName }}, readOnly: true}}
{{- else if eq $model.source "hostPath" }}
- {name: model, hostPath: {path: {{ $model.hostPath.path }}, type: Directory}}
{{- else if eq $model.source "image" }}
- {name: model, image: {reference: {{ $model.image.reference | quote }}, pullPolicy: {{ $model.image.pullPolicy }}}}
{{- else if eq $model.hub.cache "pvc" }}
- {name: hub, persistentVolumeClaim: {claimName: {{ $model.hub.claimName }}}}
{{- else if eq $model.hub.cache "hostPath" }}
- {name: hub, hostPath: {path: {{ $model.hub.hostPath }}, type: DirectoryOrCreate}}
{{- else }}
- {name: hub, emptyDir: {sizeLimit: {{ $model.hub.cacheSize }}}}
{{- end }}
{{- end }}
