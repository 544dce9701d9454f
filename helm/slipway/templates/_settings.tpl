{{- /* The operator's settings, field by field as slipway_operator.settings declares them. */}}
{{- define "slipway.settings" -}}
namespaces: {{ toJson .Values.namespaces }}
leaseNamespace: {{ .Release.Namespace | quote }}
leaseName: {{ include "slipway.name" . | quote }}
facts:
  cpuImage: {{ include "slipway.image" (list . .Values.runtime.cpu) | quote }}
  cudaImage: {{ include "slipway.image" (list . .Values.runtime.cuda) | quote }}
  cpuArchitecture: {{ .Values.runtime.cpu.architecture | quote }}
  cudaArchitecture: {{ .Values.runtime.cuda.architecture | quote }}
  imagePullSecrets: {{ toJson .Values.runtime.imagePullSecrets }}
  {{- with .Values.trustedCA.configMap }}
  trustedCA: {{ dict "configMap" . "key" $.Values.trustedCA.key | toJson }}
  {{- end }}
  openshift: {{ include "slipway.openshift" . | empty | not }}
  scrapers: {{ toJson .Values.monitoring.from }}
  monitoringLabels: {{ toJson .Values.monitoring.labels }}
policy: {{ include "slipway.policy" . }}
{{- if and .Values.profiles .Values.namespaces }}
profiles: {{ toJson .Values.profiles }}
{{- end }}
logFormat: {{ .Values.logFormat }}
healthPort: 8080
{{- end }}
