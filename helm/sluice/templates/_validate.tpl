{{/* Rules between values, which a schema cannot say. Each message names the key, what it is, and what it has to be. */}}

{{- define "sluice.validate" -}}
{{- include "sluice.validateModel" . -}}
{{- include "sluice.validatePorts" . -}}
{{- include "sluice.validateRoles" . -}}
{{- include "sluice.validateCluster" . -}}
{{- range prepend (splitList " " (include "sluice.roles" .)) "pd-master" -}}
{{- $args := dict "ctx" $ "component" . "key" (. | replace "pd-master" "pdMaster") "values" (include "sluice.values" (dict "ctx" $ "component" .) | fromYaml) -}}
{{- include "sluice.validatePod" $args -}}
{{- if ne . "pd-master" }}{{ include "sluice.validateWorker" $args }}{{ end -}}
{{- end -}}
{{- end }}

{{- define "sluice.validateRoles" -}}
{{- $roles := splitList " " (include "sluice.roles" .) -}}
{{- if ne (has "prefill" $roles) (has "decode" $roles) }}{{ fail (printf "decode.enabled: %v does not go with prefill.enabled %v; a prompt computed by one needs the other (mixed workers need neither)" (has "decode" $roles) (has "prefill" $roles)) }}{{ end -}}
{{- if not (include "sluice.roles" .) }}{{ fail "mixed.enabled: must be true when prefill.enabled and decode.enabled are false; somebody has to do the work" }}{{ end -}}
{{- end }}

{{- define "sluice.validateModel" -}}
{{- $model := .Values.model -}}
{{- if and (eq $model.source "hub") (not $model.hub.id) }}{{ fail "model.hub.id: must be owner/name of a model when model.source is hub" }}{{ end -}}
{{- if and (eq $model.source "pvc") (not $model.pvc.claimName) }}{{ fail "model.pvc.claimName: must name a claim when model.source is pvc" }}{{ end -}}
{{- if and (eq $model.source "hostPath") (not $model.hostPath.path) }}{{ fail "model.hostPath.path: must be a folder of the node when model.source is hostPath" }}{{ end -}}
{{- if and (eq $model.source "image") (not $model.image.reference) }}{{ fail "model.image.reference: must name an image when model.source is image" }}{{ end -}}
{{- if eq $model.source "hub" -}}
{{- if and (eq $model.hub.cache "pvc") (not $model.hub.claimName) }}{{ fail "model.hub.claimName: must name a claim when model.hub.cache is pvc" }}{{ end -}}
{{- if and (eq $model.hub.cache "hostPath") (not $model.hub.hostPath) }}{{ fail "model.hub.hostPath: must be a folder of the node when model.hub.cache is hostPath" }}{{ end -}}
{{- end -}}
{{- if and .Values.huggingFace.token .Values.huggingFace.existingSecret }}{{ fail "huggingFace: give token or existingSecret, not both" }}{{ end -}}
{{- if and .Values.pdMaster.apiKeys.values .Values.pdMaster.apiKeys.existingSecret }}{{ fail "pdMaster.apiKeys: give values or existingSecret, not both" }}{{ end -}}
{{- if and (.Values.pdMaster.tls).grpcClientCaKey (not (.Values.pdMaster.tls).secretName) }}{{ fail "pdMaster.tls.secretName: must name a Secret when pdMaster.tls.grpcClientCaKey is given" }}{{ end -}}
{{- if and .Values.pdMaster.service.externalTrafficPolicy (eq .Values.pdMaster.service.type "ClusterIP") }}{{ fail (printf "pdMaster.service.externalTrafficPolicy: %s needs a service.type of NodePort or LoadBalancer" .Values.pdMaster.service.externalTrafficPolicy) }}{{ end -}}
{{- if and .Values.priorityClass.create (not .Values.priorityClass.name) }}{{ fail "priorityClass.name: must be given when priorityClass.create is true" }}{{ end -}}
{{- end }}

{{- define "sluice.validatePorts" -}}
{{- $ports := .Values.ports -}}
{{- if gt (int $ports.kvData.first) (int $ports.kvData.last) }}{{ fail (printf "ports.kvData.first: %v is more than ports.kvData.last %v" $ports.kvData.first $ports.kvData.last) }}{{ end -}}
{{- if gt (sub (int $ports.kvData.last) (int $ports.kvData.first)) 255 }}{{ fail "ports.kvData: at most 256 ports" }}{{ end -}}
{{- if eq (int $ports.http) (int $ports.grpc) }}{{ fail (printf "ports.http: %v is ports.grpc too; each needs a port of its own" $ports.http) }}{{ end -}}
{{- range $name := list "http" "grpc" "kv" -}}
{{- $port := int (index $ports $name) -}}
{{- if and (ge $port (int $ports.kvData.first)) (le $port (int $ports.kvData.last)) }}{{ fail (printf "ports.%s: %d lies within ports.kvData %v to %v" $name $port $ports.kvData.first $ports.kvData.last) }}{{ end -}}
{{- end -}}
{{- end }}

{{- define "sluice.validatePod" -}}
{{- $needed := add (int .values.preStopSeconds) (int (ceil .values.drainS)) -}}
{{- $grace := int .values.terminationGracePeriodSeconds -}}
{{- if and $grace (le $grace $needed) }}{{ fail (printf "%s.terminationGracePeriodSeconds: %d is too short; it must be more than preStopSeconds %v + drainS %v = %d (or 0 to choose it)" .key $grace .values.preStopSeconds .values.drainS $needed) }}{{ end -}}
{{- if and (eq (.values.rollout.maxSurge | toString) "0") (eq (.values.rollout.maxUnavailable | toString) "0") }}{{ fail (printf "%s.rollout: maxSurge and maxUnavailable are both 0, so a rollout could never replace a pod" .key) }}{{ end -}}
{{- $scaling := .values.autoscaling -}}
{{- if and $scaling.enabled (gt (int $scaling.minReplicas) (int $scaling.maxReplicas)) }}{{ fail (printf "%s.autoscaling.minReplicas: %v is more than maxReplicas %v" .key $scaling.minReplicas $scaling.maxReplicas) }}{{ end -}}
{{- end }}

{{- define "sluice.validateWorker" -}}
{{- $v := .values -}}
{{- $ports := .ctx.Values.ports -}}
{{- range $name := list "http" "grpc" -}}
{{- $port := int (index $ports $name) -}}
{{- if and (ge $port (int $ports.kv)) (lt $port (int (add (int $ports.kv) (int $v.tp)))) }}{{ fail (printf "ports.%s: %d is a port of the KV transfer too, which takes ports.kv %v and the next %v - 1 (%s.tp)" $name $port $ports.kv $v.tp $.key) }}{{ end -}}
{{- end -}}
{{- $gpus := int $v.gpu.count -}}
{{- if and $gpus (ne 0 (mod $gpus (int $v.tp))) }}{{ fail (printf "%s.tp: %v does not divide gpu.count %d" .key $v.tp $gpus) }}{{ end -}}
{{- if and (eq $v.backend "cuda") (not $gpus) }}{{ fail (printf "%s.backend: cuda needs a card, but gpu.count is 0" .key) }}{{ end -}}
{{- if and $gpus (not $v.gpu.resource) }}{{ fail (printf "%s.gpu.resource: must name the device plugin's resource when gpu.count is %d" .key $gpus) }}{{ end -}}
{{- if and $v.rdma.enabled (not $v.rdma.resource) (not $v.rdma.claimTemplate) }}{{ fail (printf "%s.rdma.resource: must name the device plugin's resource (such as rdma/hca_shared_devices_a), or rdma.claimTemplate a DRA template, when rdma.enabled is true" .key) }}{{ end -}}
{{- if and $v.rdma.resource $v.rdma.claimTemplate }}{{ fail (printf "%s.rdma: give resource or claimTemplate, not both" .key) }}{{ end -}}
{{- if and (eq $v.requireLane "rdma") (not $v.rdma.enabled) (not $v.hostNetwork) }}{{ fail (printf "%s.requireLane: rdma can never be met while rdma.enabled is false" .key) }}{{ end -}}
{{- include "sluice.validateLane" . -}}
{{- if and $v.hostNetwork .ctx.Values.networkPolicy.egress }}{{ fail (printf "%s.hostNetwork: does not go with networkPolicy.egress; no policy's selector finds pods on the node's network, so gateways could not reach them" .key) }}{{ end -}}
{{- if gt (int $v.transferDepth) (int $v.transferPages) }}{{ fail (printf "%s.transferDepth: %v is more than transferPages %v; a message in flight needs a page" .key $v.transferDepth $v.transferPages) }}{{ end -}}
{{- $dead := mul 3 (int (ceil $v.engineStallS)) -}}
{{- if le (int $v.livenessBudgetSeconds) (add 10 $dead) }}{{ fail (printf "%s.livenessBudgetSeconds: %v must be more than 3 x engineStallS %v + 10 = %d" .key $v.livenessBudgetSeconds $v.engineStallS (add 10 $dead)) }}{{ end -}}
{{- if and $v.keda.enabled $v.autoscaling.enabled }}{{ fail (printf "%s: keda and autoscaling are both enabled; one of them may set the replicas" .key) }}{{ end -}}
{{- if and $v.keda.enabled (not $v.keda.serverAddress) }}{{ fail (printf "%s.keda.serverAddress: must be Prometheus' address when keda.enabled is true" .key) }}{{ end -}}
{{- if and $v.keda.enabled (gt (int $v.keda.minReplicas) (int $v.keda.maxReplicas)) }}{{ fail (printf "%s.keda.minReplicas: %v is more than maxReplicas %v" .key $v.keda.minReplicas $v.keda.maxReplicas) }}{{ end -}}
{{- end }}

{{/* Whether ucxTls, where it lists what UCX may use, leaves the lane in that requireLane asks for: dict key values */}}
{{- define "sluice.validateLane" -}}
{{- $v := .values -}}
{{- $words := dict "rdma" "all|ib|rc|ud|dc|gga" "cuda_ipc" "all|cuda_ipc|cuda\\s*(,|$)" "sm" "all|sm|shm|mm|posix|sysv|cma|knem|xpmem" "tcp" "all|tcp" -}}
{{- if and $v.ucxTls (ne $v.requireLane "any") (not (hasPrefix "^" $v.ucxTls)) -}}
{{- if not (regexMatch (printf "(^|,)\\s*\\\\?(%s)" (index $words $v.requireLane)) $v.ucxTls) }}{{ fail (printf "%s.ucxTls: %s leaves out what requireLane %s needs" .key $v.ucxTls $v.requireLane) }}{{ end -}}
{{- end -}}
{{- end }}
