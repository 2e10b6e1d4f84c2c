{{/* Environment of podwire-node. */}}
{{- define "podwire.nodeEnv" -}}
# By default V8 keeps up to 32 MiB for new objects, even in an idle process.
- name: NODE_OPTIONS
  value: --max-semi-space-size=4
# Threads for requests to the kernel. Many pods at once wait for one lock there, and rules of policies must not wait behind them.
- name: UV_THREADPOOL_SIZE
  value: '32'
- name: PODWIRE_NODE_NAME
  valueFrom:
    fieldRef:
      fieldPath: spec.nodeName
- name: PODWIRE_NODE_IPAM_ADDRESS
  value: {{ include "podwire.ipamAddress" . | quote }}
- name: PODWIRE_NODE_IPAM_TLS_CA_FILE
  value: /etc/podwire/authority/ca.crt
- name: PODWIRE_NODE_IPAM_TOKEN_FILE
  value: /var/run/secrets/podwire/token
# For `podwirectl node ready`.
- { name: CNI_BIN_DIR, value: {{ .Values.cni.binDirectory }} }
- { name: CNI_NET_DIR, value: {{ .Values.cni.configDirectory }} }
- { name: CNI_CONF_NAME, value: {{ .Values.cni.configName }} }
{{- if .Values.metrics.enabled }}
{{ include "podwire.nodeIp" . }}
{{ include "podwire.metricsEnv" .Values.metrics.nodePort }}
{{- end }}
{{- end -}}
