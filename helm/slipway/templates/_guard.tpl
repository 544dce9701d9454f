{{- /*
Ends the installation with what to set where another release serves what this one would serve, or where another
release or a person owns what this one would make for the whole cluster: Helm's own words ("invalid ownership
metadata") say what is wrong, not what to set. `lookup` finds nothing where Helm has no cluster at hand, as in
`helm template`.
*/}}
{{- define "slipway.guard" -}}
{{- range .Values.namespaces | default (list "") }}
{{- include "slipway.guard.namespace" (list $ .) }}
{{- end }}
{{- if include "slipway.cluster" . }}
{{- $mine := printf "%s in namespace %s" .Release.Name .Release.Namespace }}
{{- $role := lookup "rbac.authorization.k8s.io/v1" "ClusterRole" "" "slipway-operator" }}
{{- $holder := include "slipway.holder" $role }}
{{- if and $role (ne $holder $mine) }}
{{- fail (printf "Release %s serves every namespace of this cluster already: upgrade that one, or set namespaces={%s} here and the namespaces of its own there, so that no two operators serve one resource." $holder .Release.Namespace) }}
{{- end }}
{{- if .Values.crds.install }}
{{- $names := list }}
{{- $held := list }}
{{- range $path, $spec := .Files.Glob "files/crds/*.yaml" }}
{{- $name := base $path | trimSuffix ".yaml" }}
{{- $crd := lookup "apiextensions.k8s.io/v1" "CustomResourceDefinition" "" $name }}
{{- $holder := include "slipway.holder" $crd }}
{{- if and $crd (ne $holder $mine) }}
{{- $names = append $names $name }}
{{- $held = append $held (printf "%s (owned by release %s)" $name $holder) }}
{{- end }}
{{- end }}
{{- if $names }}
{{- $all := join " " $names }}
{{- fail (printf "CRDs are there already: %s. Set crds.install=false, or give them to this release: kubectl annotate --overwrite crd %s meta.helm.sh/release-name=%s meta.helm.sh/release-namespace=%s && kubectl label --overwrite crd %s app.kubernetes.io/managed-by=Helm" (join ", " $held) $all .Release.Name .Release.Namespace $all) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- /*
Looks for the Role by which another release serves some namespaces, whatever it is called: a list of the root
context and a namespace, empty for all of them. The Role of the Lease says nothing of our kinds.
*/}}
{{- define "slipway.guard.namespace" -}}
{{- $root := first . }}
{{- $mine := printf "%s in namespace %s" $root.Release.Name $root.Release.Namespace }}
{{- range (lookup "rbac.authorization.k8s.io/v1" "Role" (last .) "").items }}
{{- $labels := .metadata.labels | default dict }}
{{- $holder := include "slipway.holder" . }}
{{- if and (eq (get $labels "app.kubernetes.io/name") "slipway-operator") (contains "slipway.dev" (toJson .rules)) (ne $holder $mine) }}
{{- fail (printf "Release %s serves namespace %s already: uninstall that one, or set `namespaces` here to others than its own, so that no two operators serve one resource." $holder .metadata.namespace) }}
{{- end }}
{{- end }}
{{- end }}

{{- /* The release that owns a live object, or "none". */}}
{{- define "slipway.holder" -}}
{{- $notes := dig "metadata" "annotations" dict . }}
{{- with index $notes "meta.helm.sh/release-name" -}}
{{ . }} in namespace {{ index $notes "meta.helm.sh/release-namespace" }}
{{- else -}}
none
{{- end }}
{{- end }}
