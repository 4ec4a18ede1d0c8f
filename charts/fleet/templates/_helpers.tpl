{{- define "fleet.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* Of objects that belong to no namespace, and of Roles in namespaces of others. */ -}}
{{- define "fleet.globalName" -}}
{{- printf "%s-%s" .Release.Namespace (include "fleet.fullname" .) -}}
{{- end -}}

{{- define "fleet.serviceAccountName" -}}
{{- default (ternary (include "fleet.fullname" .) "default" .Values.serviceAccount.create) .Values.serviceAccount.name -}}
{{- end -}}

{{- define "fleet.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | trunc 63 }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "fleet.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{ include "fleet.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "fleet.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end -}}

{{- /* Where the dashboard begins: the path of the Ingress without its last slash. */ -}}
{{- define "fleet.dashboardPath" -}}
{{- with .Values.locust.ingress -}}
{{- if .enabled -}}{{- trimSuffix "/" .path -}}{{- end -}}
{{- end -}}
{{- end -}}

{{- /* By which names browsers and pods know the dashboard, as JSON. */ -}}
{{- define "fleet.dashboardHosts" -}}
{{- $service := printf "%s-locust" (include "fleet.fullname" .) -}}
{{- $inside := printf "%s.%s" $service .Release.Namespace -}}
{{- $hosts := list $service $inside (printf "%s.svc" $inside) (printf "%s.svc.cluster.local" $inside) -}}
{{- with .Values.locust.ingress -}}
{{- if and .enabled .host (not (hasPrefix "*" .host)) -}}
{{- $hosts = append $hosts .host -}}
{{- end -}}
{{- end -}}
{{- concat $hosts .Values.locust.hosts | uniq | toJson -}}
{{- end -}}

{{- define "fleet.namePrefix" -}}
{{- default (include "fleet.fullname" .) .Values.namePrefix -}}
{{- end -}}

{{- /* The run that all pods are of, over restarts and upgrades; each test is a run of its own. */ -}}
{{- define "fleet.runId" -}}
{{- $id := printf "%s.%s" .Release.Namespace .Release.Name -}}
{{- if eq (include "fleet.isTest" .) "true" -}}
{{- $id = printf "%s-%d" $id .Release.Revision -}}
{{- end -}}
{{- if gt (len $id) 63 -}}
{{- $id = printf "%s-%s" ($id | trunc 54 | trimSuffix "-" | trimSuffix ".") ($id | sha256sum | trunc 8) -}}
{{- end -}}
{{- $id -}}
{{- end -}}

{{- /* Of API users; fleet/load_credentials.py calls it the same. */ -}}
{{- define "fleet.loadNamespace" -}}
{{- printf "fleet-load-%s" (include "fleet.runId" . | sha256sum | trunc 12) -}}
{{- end -}}

{{- define "fleet.nodesPerPod" -}}
{{- min (int .Values.nodes) (int .Values.nodesPerPod) -}}
{{- end -}}

{{- define "fleet.replicas" -}}
{{- $perPod := include "fleet.nodesPerPod" . | int -}}
{{- div (add (int .Values.nodes) $perPod -1) $perPod -}}
{{- end -}}

{{- /* Whether the pods run a test that ends, in a Job; otherwise they keep nodes. */ -}}
{{- define "fleet.isTest" -}}
{{- or (not (empty .Values.run.duration)) (not (empty .Values.run.scenario)) -}}
{{- end -}}

{{- /* Files of a test that the values hold, by name. */ -}}
{{- define "fleet.runFiles" -}}
{{- $files := dict -}}
{{- range $name, $given := pick .Values.run "scenario" "slo" -}}
{{- with $given.document -}}
{{- $_ := set $files (printf "%s.yaml" $name) (kindIs "string" . | ternary . (toYaml .)) -}}
{{- end -}}
{{- end -}}
{{- toYaml $files -}}
{{- end -}}

{{- /* Where a pod has such a file: of the name and what is given. */ -}}
{{- define "fleet.runFile" -}}
{{- with index . 1 -}}
{{- if .source -}}{{- .source -}}
{{- else if .configMap -}}/etc/fleet/configmaps/{{- .configMap.name -}}/{{- .configMap.key -}}
{{- else -}}/etc/fleet/run/{{- index $ 0 -}}.yaml
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "fleet.identity" -}}
{{- kindIs "string" .Values.identity | ternary .Values.identity (get (kindIs "map" .Values.identity | ternary .Values.identity dict) "mode") -}}
{{- end -}}

{{- /* Whether who is impersonated is so by the grant that servers before 1.36 know. */ -}}
{{- define "fleet.isOldGrant" -}}
{{- $legacy := .Values.rbac.legacyImpersonation -}}
{{- $isOld := semverCompare "<1.36.0-0" .Capabilities.KubeVersion.Version -}}
{{- or (eq $legacy "always") (and (eq $legacy "auto") $isOld) -}}
{{- end -}}

{{- /* Whether nodes are. */ -}}
{{- define "fleet.isLegacy" -}}
{{- and (eq (include "fleet.identity" .) "impersonate") (eq (include "fleet.isOldGrant" .) "true") -}}
{{- end -}}

{{- define "fleet.allowsBroad" -}}
{{- kindIs "map" .Values.identity | ternary (get (kindIs "map" .Values.identity | ternary .Values.identity dict) "allowBroadImpersonation") false | default false -}}
{{- end -}}

{{- /* Nodes with certificates are themselves, but kube-proxy is impersonated: a grant to consent to. */ -}}
{{- define "fleet.lacksConsent" -}}
{{- and (eq (include "fleet.identity" .) "csr") (eq (include "fleet.isOldGrant" .) "true") (ne (include "fleet.allowsBroad" .) "true") -}}
{{- end -}}

{{- /* Whether nodes may run the kube-proxy of the shipped profiles, which fidelity light leaves out. */ -}}
{{- define "fleet.grantsKubeProxy" -}}
{{- $isWanted := and (eq .Values.fidelity "kubelet") (not .Values.noAgents) (ne (include "fleet.lacksConsent" .) "true") -}}
{{- or (eq .Values.rbac.kubeProxy "always") (and (eq .Values.rbac.kubeProxy "auto") $isWanted) -}}
{{- end -}}

{{- /*
Shards and slots of each that rights name, as long as there is `rbac.nodeNames`: of the values. A
dashboard may put up to 2,000 nodes, or what a shard has, on each (fleet/settings.py, SHARD_ROOM).
*/ -}}
{{- define "fleet.named" -}}
{{- $processes := int .Values.processesPerPod -}}
{{- $perPod := include "fleet.nodesPerPod" . | int -}}
{{- $pods := max (include "fleet.replicas" . | int) (div (add (int .Values.maxNodes) $perPod -1) $perPod) -}}
{{- $slots := div (add $perPod $processes -1) $processes -}}
{{- dict "shards" (mul $pods $processes) "slots" (.Values.locust.enabled | ternary (max $slots 2000) $slots) | toJson -}}
{{- end -}}

{{- /*
Names of nodes, for rights, in lists of 1,000: `append` copies its list. Those of the release as it
was stay until the next upgrade, since its pods remove the nodes that go.
*/ -}}
{{- define "fleet.nodeNames" -}}
{{- $parts := list -}}
{{- if .Values.rbac.nodeNames -}}
{{- $new := include "fleet.named" . | fromJson -}}
{{- $role := lookup "rbac.authorization.k8s.io/v1" "ClusterRole" "" (include "fleet.globalName" .) -}}
{{- $old := dig "metadata" "annotations" dict $role -}}
{{- $shards := max (int $new.shards) (int (get $old "fleet.emulator/shards")) -}}
{{- $slots := max (int $new.slots) (int (get $old "fleet.emulator/slots")) -}}
{{- if gt (mul $shards $slots) 20000 -}}
{{- fail (printf "rbac.nodeNames: rights for %d nodes by name are more than an object of Helm's should hold (20,000); rbac.nodeNames=false gives them for any node" (mul $shards $slots)) -}}
{{- end -}}
{{- $prefix := include "fleet.namePrefix" . -}}
{{- range $indices := until (int (mul $shards $slots)) | chunk 1000 -}}
{{- $names := list -}}
{{- range $indices -}}
{{- $names = append $names (printf "%s-%04d-%05d" $prefix (div . $slots) (mod . $slots)) -}}
{{- end -}}
{{- $parts = append $parts $names -}}
{{- end -}}
{{- end -}}
{{- toJson (default (list list) $parts) -}}
{{- end -}}

{{- /* Options that name the cluster to load. */ -}}
{{- define "fleet.targetArgs" -}}
{{- with .Values.target -}}
{{- if .kubeconfigSecret }}
- --kubeconfig=/etc/fleet/target/{{ .key }}
{{- if .context }}
- --context={{ .context }}
{{- end }}
{{- else }}
- --in-cluster
{{- end }}
{{- end -}}
{{- end -}}

{{- define "fleet.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "fleet.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- /* One directory is writable; temporary files go there too. */ -}}
{{- define "fleet.runEnv" -}}
- {name: HOME, value: /var/lib/fleet}
- {name: TMPDIR, value: /var/lib/fleet}
{{- end -}}

{{- define "fleet.targetVolume" -}}
{{- if .Values.target.kubeconfigSecret }}
- name: target
  secret: {secretName: {{ .Values.target.kubeconfigSecret }}}
{{- end }}
{{- end -}}

{{- define "fleet.targetMount" -}}
{{- if .Values.target.kubeconfigSecret }}
- {name: target, mountPath: /etc/fleet/target, readOnly: true}
{{- end }}
{{- end -}}

{{- /* Keep fleet's own pods off fake nodes, whatever else they tolerate. */ -}}
{{- define "fleet.scheduling" -}}
affinity:
{{- if .Values.affinity }}
{{ toYaml .Values.affinity | indent 2 }}
{{- else }}
  nodeAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      nodeSelectorTerms:
        - matchExpressions: [{key: fleet.emulator/run, operator: DoesNotExist}]
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- /*
Memory: what a process takes and what its nodes take, from fleet/machine.py, and as much again for
pods and bursts as the limit. CPU: 0.1 core a process and 0.05 a thousand nodes; no limit, since an
instrument that is throttled lags.
*/ -}}
{{- define "fleet.resources" -}}
{{- if .Values.resources -}}
{{- toYaml .Values.resources -}}
{{- else -}}
{{- $nodes := include "fleet.nodesPerPod" . | int -}}
{{- $processes := int .Values.processesPerPod -}}
{{- $kib := ternary 64 12 (eq .Values.fidelity "kubelet") -}}
{{- if eq (include "fleet.grantsKubeProxy" .) "true" -}}
{{- $kib = add $kib 24 -}}
{{- end -}}
{{- $mib := add (mul 120 $processes) (div (add (mul $nodes $kib) 1023) 1024) -}}
requests:
  cpu: {{ add (mul 100 $processes) (div $nodes 20) }}m
  memory: {{ $mib }}Mi
limits:
  memory: {{ mul 2 $mib }}Mi
{{- end -}}
{{- end -}}

{{- /* Removing 5,000 nodes takes 25 s; a busy API server gets four times as long, and a minute. */ -}}
{{- define "fleet.grace" -}}
{{- if .Values.terminationGracePeriodSeconds -}}
{{- .Values.terminationGracePeriodSeconds -}}
{{- else -}}
{{- add 60 (div (include "fleet.nodesPerPod" . | int) 50) -}}
{{- end -}}
{{- end -}}

{{- /*
How long the hook of `helm uninstall` may take: a minute for its own pod, the pods' end, and the same
time again to remove what they left.
*/ -}}
{{- define "fleet.cleanupSeconds" -}}
{{- max (int .Values.cleanup.deadlineSeconds) (add 60 (include "fleet.grace" . | int) (div (int .Values.nodes) 50) | int) -}}
{{- end -}}

{{- /* How long all nodes may take to be Ready: a quarter of what 2 cores manage, or the rate. */ -}}
{{- define "fleet.readySeconds" -}}
{{- $seconds := div (int .Values.nodes) 10 -}}
{{- if .Values.rate -}}
{{- $seconds = max $seconds (divf .Values.nodes .Values.rate | ceil | int) -}}
{{- end -}}
{{- add 120 $seconds -}}
{{- end -}}

{{- /* What cannot go together, and a cluster that was not meant; before anything is created. */ -}}
{{- define "fleet.check" -}}
{{- if not .Values.confirmCluster -}}
{{- fail "confirmCluster: name the cluster to load by the UID of its namespace kube-system: kubectl get namespace kube-system -o jsonpath={.metadata.uid}" -}}
{{- end -}}
{{- if not .Values.target.kubeconfigSecret -}}
{{- $system := lookup "v1" "Namespace" "" "kube-system" -}}
{{- if $system -}}
{{- if ne $system.metadata.uid .Values.confirmCluster -}}
{{- fail (printf "confirmCluster is %s, but this cluster is %s: is it the one you mean to load?" .Values.confirmCluster $system.metadata.uid) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and (eq (include "fleet.identity" .) "csr") (not .Values.csr.tokenSecret) -}}
{{- fail "csr.tokenSecret: nodes need a bootstrap token to ask for their certificates" -}}
{{- end -}}
{{- $grants := and .Values.rbac.create (not .Values.target.kubeconfigSecret) -}}
{{- if and $grants (eq (include "fleet.isLegacy" .) "true") -}}
{{- if ne (include "fleet.allowsBroad" .) "true" -}}
{{- fail (printf "identity.allowBroadImpersonation: servers before 1.36 (this one: %s) know only the grant `impersonate`, which lets the pods do whatever the nodes may that it names; set it to true, or take identity.mode csr" .Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- if not .Values.rbac.nodeNames -}}
{{- fail "rbac.nodeNames: false would be the right to impersonate any user on a server before 1.36" -}}
{{- end -}}
{{- end -}}
{{- if and $grants (eq .Values.rbac.kubeProxy "always") (eq (include "fleet.lacksConsent" .) "true") -}}
{{- fail (printf "identity.allowBroadImpersonation: on servers before 1.36 (this one: %s) rbac.kubeProxy=always is the right to be kube-system/kube-proxy in whatever it may" .Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- if eq (include "fleet.isTest" .) "true" -}}
{{- if .Values.locust.enabled -}}
{{- fail "locust.enabled: a dashboard says when its run ends; leave run.duration and run.scenario out" -}}
{{- end -}}
{{- if and .Values.run.scenario (or .Values.run.duration .Values.run.slo) -}}
{{- fail "run.scenario: it has its own duration and expectations; leave run.duration and run.slo out" -}}
{{- end -}}
{{- else if or .Values.run.slo .Values.run.rules -}}
{{- fail "run.slo and run.rules are for a test: set run.duration or run.scenario" -}}
{{- end -}}
{{- if lt (include "fleet.nodesPerPod" . | int) (int .Values.processesPerPod) -}}
{{- fail (printf "processesPerPod: %d processes for the %d nodes of a pod" (int .Values.processesPerPod) (include "fleet.nodesPerPod" . | int)) -}}
{{- end -}}
{{- if gt (len (include "fleet.namePrefix" .)) 52 -}}
{{- fail "namePrefix: over 52 characters; a node's name has 11 more, and 63 are allowed" -}}
{{- end -}}
{{- end -}}
