{{/* Begin of a definition, up to its version. */}}
{{- define "podwire-crds.definition" -}}
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: {{ .plural }}.{{ .group }}
  annotations:
    # The records would go with their definition.
    helm.sh/resource-policy: keep
spec:
  group: {{ .group }}
  scope: Cluster
  names:
    kind: {{ .kind }}
    listKind: {{ .kind }}List
    plural: {{ .plural }}
    singular: {{ lower .kind }}
  versions:
    - name: {{ .version }}
      served: true
      storage: true
{{- end -}}
