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

{{/* Environment of podwire-node. */}}
{{- define "podwire.nodeEnv" -}}
# By default V8 keeps up to 32 MiB for new objects, even in an idle process.
- name: NODE_OPTIONS
  value: --max-semi-space-size=4
- name: PODWIRE_NODE_NAME
  valueFrom:
    fieldRef:
      fieldPath: spec.nodeName
- name: PODWIRE_NODE_IPAM_ADDRESS
  value: {{ include "podwire.ipamAddress" . | quote }}
- name: PODWIRE_NODE_IPAM_TLS_CA_FILE
  value: /run/podwire/tls/ca.crt
- name: PODWIRE_NODE_IPAM_TLS_CERT_FILE
  value: /run/podwire/tls/tls.crt
- name: PODWIRE_NODE_IPAM_TLS_KEY_FILE
  value: /run/podwire/tls/tls.key
{{- if .Values.metrics.enabled }}
{{ include "podwire.nodeIp" . }}
{{ include "podwire.metricsEnv" .Values.metrics.nodePort }}
{{- end }}
{{- end -}}
