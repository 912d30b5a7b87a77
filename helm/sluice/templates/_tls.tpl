{{/* Certificates from Secrets. Whole folders are mounted, so that the kubelet replaces what a Secret's owner renews. */}}

{{- define "sluice.podTlsMount" -}}
{{- if (.Values.podTls).secretName }}
- {name: pod-tls, mountPath: /etc/sluice/pod-tls, readOnly: true}
{{- end }}
{{- end }}

{{- define "sluice.podTlsVolume" -}}
{{- with (.Values.podTls).secretName }}
- {name: pod-tls, secret: {secretName: {{ . }}, defaultMode: 0440}}
{{- end }}
{{- end }}

{{/* How pd_master's HTTP is spoken to: HTTP or HTTPS. */}}
{{- define "sluice.gatewayScheme" -}}
{{- if (.Values.pdMaster.tls).secretName }}HTTPS{{ else }}HTTP{{ end -}}
{{- end }}
