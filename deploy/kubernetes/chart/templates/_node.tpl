{{/* Command of enrolment as a YAML list. */}}
{{- define "podwire.enrolCommand" -}}
- podwirectl
- certificates
- enrol
- --address
- {{ printf "%s:%d" (include "podwire.ipamHost" .) (int .Values.ipam.enrolmentPort) | quote }}
- --ca-file
- /etc/podwire/authority/ca.crt
- --token-file
- /var/run/secrets/podwire/token
- --directory
- /run/podwire/tls
{{- end -}}

{{- define "podwire.enrolMounts" -}}
- { name: run, mountPath: /run/podwire }
- { name: authority, mountPath: /etc/podwire/authority, readOnly: true }
- { name: token, mountPath: /var/run/secrets/podwire, readOnly: true }
{{- end -}}

{{/* Environment of the dataplane and the plugin. */}}
{{- define "podwire.nodeEnv" -}}
# By default V8 keeps up to 32 MiB for new objects, even in an idle process: 60 MiB more for each node.
- name: NODE_OPTIONS
  value: --max-semi-space-size=4
- name: {{ .prefix }}NODE_NAME
  valueFrom:
    fieldRef:
      fieldPath: spec.nodeName
- name: {{ .prefix }}IPAM_ADDRESS
  value: {{ include "podwire.ipamAddress" .root | quote }}
- name: {{ .prefix }}IPAM_TLS_CA_FILE
  value: /run/podwire/tls/ca.crt
- name: {{ .prefix }}IPAM_TLS_CERT_FILE
  value: /run/podwire/tls/tls.crt
- name: {{ .prefix }}IPAM_TLS_KEY_FILE
  value: /run/podwire/tls/tls.key
{{- if .root.Values.metrics.enabled }}
{{ include "podwire.nodeIp" . }}
{{ include "podwire.metricsEnv" .metricsPort }}
{{- end }}
{{- end -}}
