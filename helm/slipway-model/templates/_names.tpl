{{- define "slipway-model.name" -}}
{{ .Values.name | default .Release.Name }}
{{- end }}

{{- define "slipway-model.labels" -}}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}
