{{/*
API versions and fields by what the cluster has: policy/v1 came in 1.21, autoscaling/v2 in 1.23, evicting pods that are not
Ready in 1.27, image volumes and the form of DRA claims that pods have here in 1.31.
*/}}

{{- define "sluice.policyVersion" -}}
{{- if and (.Capabilities.APIVersions.Has "policy/v1") (semverCompare ">=1.21-0" .Capabilities.KubeVersion.Version) -}}policy/v1{{- else -}}policy/v1beta1{{- end -}}
{{- end }}

{{- define "sluice.autoscalingVersion" -}}
{{- if and (.Capabilities.APIVersions.Has "autoscaling/v2") (semverCompare ">=1.23-0" .Capabilities.KubeVersion.Version) -}}autoscaling/v2{{- else -}}autoscaling/v2beta2{{- end -}}
{{- end }}

{{/* A pod that never gets Ready does not keep a node from being drained. */}}
{{- define "sluice.evictionPolicy" -}}
{{- if semverCompare ">=1.27-0" .Capabilities.KubeVersion.Version }}
unhealthyPodEvictionPolicy: AlwaysAllow
{{- end }}
{{- end }}

{{/* An API server drops a field that it does not know, and the pod would start without its model or its NIC. */}}
{{- define "sluice.validateCluster" -}}
{{- if semverCompare "<1.31-0" .Capabilities.KubeVersion.Version -}}
{{- $has := .Capabilities.KubeVersion.Version -}}
{{- if eq .Values.model.source "image" }}{{ fail (printf "model.source: image needs Kubernetes 1.31 or newer with image volumes, and this is %s; take pvc or hostPath" $has) }}{{ end -}}
{{- range splitList " " (include "sluice.roles" .) -}}
{{- if (include "sluice.values" (dict "ctx" $ "component" .) | fromYaml).rdma.claimTemplate }}{{ fail (printf "%s.rdma.claimTemplate: needs Kubernetes 1.31 or newer with dynamic resource allocation, and this is %s; name the device plugin's resource in rdma.resource" . $has) }}{{ end -}}
{{- end -}}
{{- end -}}
{{- end }}
