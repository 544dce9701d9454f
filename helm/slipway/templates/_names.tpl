{{- /* Of what the release makes in its namespaces; what is cluster-wide has one fixed name. */}}
{{- define "slipway.name" -}}
{{ .Values.fullnameOverride | default (printf "%s-%s" .Release.Name (.Values.nameOverride | default "operator") | trunc 63 | trimSuffix "-") }}
{{- end }}

{{- define "slipway.account" -}}
{{ .Values.serviceAccount.name | default (include "slipway.name" .) }}
{{- end }}

{{- define "slipway.selector" -}}
app.kubernetes.io/name: slipway-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "slipway.labels" -}}
{{ include "slipway.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: slipway
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- /* An image by name and digest, else tag: a list of the root context and the image's values. */}}
{{- define "slipway.image" -}}
{{- $root := first . }}
{{- $image := last . }}
{{- include "slipway.repository" . }}
{{- if $image.digest }}@{{ $image.digest }}{{ else }}:{{ $image.tag | default $root.Chart.AppVersion }}{{ end }}
{{- end }}

{{- /* The same without tag and digest. */}}
{{- define "slipway.repository" -}}
{{- with (first .).Values.registry }}{{ . }}/{{ end }}
{{- (last .).repository }}
{{- end }}

{{- /* What resources may ask for, as JSON without empty values. The chart's own images are always admitted. */}}
{{- define "slipway.policy" -}}
{{- $own := list (include "slipway.repository" (list . .Values.runtime.cpu)) (include "slipway.repository" (list . .Values.runtime.cuda)) }}
{{- $policy := dict }}
{{- range $key, $value := omit .Values.policy "admission" }}
{{- if $value }}{{ $policy = set $policy $key $value }}{{ end }}
{{- end }}
{{- with $policy.images }}{{ $policy = set $policy "images" (concat $own .) }}{{ end }}
{{- toJson $policy }}
{{- end }}

{{- /* Where the operator can run: its image's architecture, which a selector of the user's own goes before. */}}
{{- define "slipway.nodes" -}}
{{- $known := dict }}
{{- with .Values.image.architecture }}{{ $known = dict "kubernetes.io/arch" . }}{{ end }}
{{- with merge (dict) .Values.nodeSelector $known }}{{ toYaml . }}{{ end }}
{{- end }}

{{- /* Whether the platform gives each namespace a range of user IDs: as it is told, or as the cluster shows. */}}
{{- define "slipway.openshift" -}}
{{ ternary (.Capabilities.APIVersions.Has "security.openshift.io/v1") .Values.openshift (eq (toString .Values.openshift) "auto") | ternary "yes" "" }}
{{- end }}

{{- /* What of this release is cluster-wide has one fixed name, so that a second one cannot be made unseen. */}}
{{- define "slipway.cluster" -}}
{{ empty .Values.namespaces | ternary "yes" "" }}
{{- end }}
