{{- define "podwire.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{- define "podwire.labels" -}}
app.kubernetes.io/name: {{ .name }}
app.kubernetes.io/part-of: podwire
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
{{- end -}}

{{/* Name, namespace and labels of an object; `part`: the process that it belongs to, unless it has its name. */}}
{{- define "podwire.metadata" -}}
name: {{ .name }}
namespace: {{ .root.Release.Namespace }}
labels:
  {{- include "podwire.labels" (dict "root" .root "name" (.part | default .name)) | nindent 2 }}
{{- end -}}

{{- define "podwire.selector" -}}
app.kubernetes.io/name: {{ . }}
app.kubernetes.io/part-of: podwire
{{- end -}}

{{/* Image and pull policy of a container. */}}
{{- define "podwire.containerImage" -}}
image: {{ include "podwire.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- end -}}

{{- define "podwire.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- end -}}

{{/*
Host at which nodes reach podwire-ipam. The kubelet sets PODWIRE_IPAM_SERVICE_HOST for the Service podwire-ipam.
*/}}
{{- define "podwire.ipamHost" -}}
{{- if .Values.ipam.address -}}
{{ regexReplaceAll "(^\\[.*\\]|^[^:]*)(:[0-9]+)?$" .Values.ipam.address "${1}" }}
{{- else if eq .Values.ipam.serviceFamily "IPv6" -}}
[$(PODWIRE_IPAM_SERVICE_HOST)]
{{- else -}}
$(PODWIRE_IPAM_SERVICE_HOST)
{{- end -}}
{{- end -}}

{{- define "podwire.ipamAddress" -}}
{{- if regexMatch "^(\\[.*\\]|[^:]+):[0-9]+$" .Values.ipam.address -}}
{{ .Values.ipam.address }}
{{- else -}}
{{ include "podwire.ipamHost" . }}:{{ .Values.ipam.port }}
{{- end -}}
{{- end -}}

{{/* Whether pods get addresses of a family: "true" or "false". */}}
{{- define "podwire.hasFamily" -}}
{{- $families := .root.Values.families -}}
{{- if eq $families "auto" -}}
{{- $found := dict "ipv4" (eq (len .root.Values.pools) 0) "ipv6" false -}}
{{- range .root.Values.pools -}}
{{- $_ := set $found (ternary "ipv6" "ipv4" (contains ":" .cidr)) true -}}
{{- end -}}
{{ get $found .family }}
{{- else -}}
{{ or (eq $families "dual") (eq $families .family) }}
{{- end -}}
{{- end -}}

{{/* Restrictions of a container; its user, and capabilities to add. */}}
{{- define "podwire.securityContext" -}}
runAsUser: {{ .user }}
runAsGroup: {{ .user }}
runAsNonRoot: {{ ne (int .user) 0 }}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- with .add }}
  add: [{{ join ", " . }}]
{{- end }}
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{/* Probes of a process by its unix sockets. A restart repairs nothing that readiness tells of, so liveness does not follow it. */}}
{{- define "podwire.probes" -}}
{{- $sockets := join ", " (without . "--live") -}}
startupProbe:
  exec:
    command: [podwire-probe, --live, {{ $sockets }}]
  periodSeconds: 2
  timeoutSeconds: 5
  failureThreshold: 60
livenessProbe:
  exec:
    command: [podwire-probe, --live, {{ $sockets }}]
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  exec:
    command: [podwire-probe, {{ join ", " . }}]
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: 2
{{- end -}}

{{/* Labels and annotations of pods; the operator's do not replace the chart's. */}}
{{- define "podwire.podMetadata" -}}
labels:
  {{- include "podwire.labels" . | nindent 2 }}
  {{- with .values.podLabels }}{{ toYaml . | nindent 2 }}{{ end }}
annotations:
  podwire.dev/settings-checksum: {{ include (print .root.Template.BasePath "/settings.yaml") .root | sha256sum }}
  {{- if .root.Values.metrics.enabled }}
  prometheus.io/scrape: 'true'
  prometheus.io/port: {{ .metricsPort | quote }}
  {{- end }}
  {{- with .values.podAnnotations }}{{ toYaml . | nindent 2 }}{{ end }}
{{- end -}}

{{/* Environment of a Prometheus endpoint. NODE_IP must be set before. */}}
{{- define "podwire.metricsEnv" -}}
- name: OTEL_EXPORTER_PROMETHEUS_HOST
  value: $(NODE_IP)
- name: OTEL_EXPORTER_PROMETHEUS_PORT
  value: {{ . | quote }}
{{- end -}}

{{/* The token of the metrics, as a volume and its mount. */}}
{{- define "podwire.metricsVolume" -}}
{{- if and .Values.metrics.enabled .Values.metrics.tokenSecretName }}
- name: metrics
  secret:
    secretName: {{ .Values.metrics.tokenSecretName }}
    defaultMode: 0440
    items: [{ key: token, path: token }]
{{- end }}
{{- end -}}

{{- define "podwire.metricsMount" -}}
{{- if and .Values.metrics.enabled .Values.metrics.tokenSecretName }}
- { name: metrics, mountPath: /etc/podwire/metrics, readOnly: true }
{{- end }}
{{- end -}}

{{/* Variables of OpenTelemetry, in a ConfigMap of settings. */}}
{{- define "podwire.telemetrySettings" -}}
{{- if not .Values.metrics.enabled }}
OTEL_METRICS_EXPORTER: {{ ternary "otlp" "none" (ne .Values.telemetry.endpoint "") }}
{{- end }}
{{- if .Values.telemetry.endpoint }}
OTEL_EXPORTER_OTLP_ENDPOINT: {{ .Values.telemetry.endpoint | quote }}
OTEL_TRACES_SAMPLER: parentbased_traceidratio
OTEL_TRACES_SAMPLER_ARG: {{ .Values.telemetry.samplingRatio | toString | quote }}
{{- end }}
{{- end -}}

{{- define "podwire.nodeIp" -}}
- name: NODE_IP
  valueFrom:
    fieldRef:
      fieldPath: status.hostIP
{{- end -}}

{{- define "podwire.validate" -}}
{{- $ipam := .Values.ipam -}}
{{- if ne $ipam.store "embedded" -}}
{{- if not $ipam.authoritySecretName }}{{ fail (printf "ipam.authoritySecretName: is empty; with ipam.store=%s all replicas share one certificate authority, so create its Secret" $ipam.store) }}{{ end -}}
{{- end -}}
{{- if eq $ipam.store "etcd" -}}
{{- if not $ipam.etcd.endpoints }}{{ fail "ipam.etcd.endpoints: is empty; name the members of etcd, or set ipam.store to embedded" }}{{ end -}}
{{- if and $ipam.etcd.username (not $ipam.etcd.passwordSecretName) }}{{ fail "ipam.etcd.passwordSecretName: is empty; name the Secret with the password of ipam.etcd.username" }}{{ end -}}
{{- else if and (eq $ipam.store "embedded") (not $ipam.nodeName) (not $ipam.storage.persistentVolumeClaim.enabled) -}}
{{- $matching := 0 -}}
{{- range (lookup "v1" "Node" "" "").items -}}
{{- $labels := .metadata.labels -}}
{{- $isMatch := true -}}
{{- range $key, $value := $ipam.nodeSelector -}}
{{- if or (not (hasKey $labels $key)) (ne (get $labels $key) $value) }}{{ $isMatch = false }}{{ end -}}
{{- end -}}
{{- if $isMatch }}{{ $matching = add1 $matching }}{{ end -}}
{{- end -}}
{{- if gt (int $matching) 1 }}{{ fail (printf "ipam.nodeName: is empty, and %d nodes match ipam.nodeSelector; name the node that keeps the embedded datastore" (int $matching)) }}{{ end -}}
{{- end -}}
{{- end -}}
