{{- /* The pod of a shard: of the StatefulSet that keeps nodes, or of the Job of a test. */ -}}
{{- define "fleet.pod" -}}
{{- $hasDocuments := false }}
{{- $configMaps := list }}
{{- range .Values.profiles }}
{{- if .document }}{{ $hasDocuments = true }}{{ end }}
{{- with .configMap }}{{ $configMaps = append $configMaps .name }}{{ end }}
{{- end }}
{{- $isTest := eq (include "fleet.isTest" .) "true" }}
{{- $run := .Values.run }}
{{- range list $run.scenario $run.slo }}
{{- with .configMap }}{{ $configMaps = append $configMaps .name }}{{ end }}
{{- end }}
{{- $configMaps = $configMaps | uniq }}
metadata:
  labels: {{- include "fleet.labels" . | nindent 4 }}
    app.kubernetes.io/component: fleet
{{- with .Values.podLabels }}{{ toYaml . | nindent 4 }}{{ end }}
  annotations:
    checksum/profiles: {{ toJson .Values.profiles | sha256sum }}
{{- with .Values.podAnnotations }}{{ toYaml . | nindent 4 }}{{ end }}
spec:
  serviceAccountName: {{ include "fleet.serviceAccountName" . }}
  terminationGracePeriodSeconds: {{ include "fleet.grace" . }}
  enableServiceLinks: false
  securityContext: {{- include "fleet.podSecurityContext" . | nindent 4 }}
  {{- include "fleet.scheduling" . | nindent 2 }}
{{- if kindIs "slice" .Values.topologySpreadConstraints }}
  topologySpreadConstraints: {{- toYaml .Values.topologySpreadConstraints | nindent 4 }}
{{- else }}
  topologySpreadConstraints:
    - maxSkew: 1
      topologyKey: kubernetes.io/hostname
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels: {{- include "fleet.selector" . | nindent 10 }}
          app.kubernetes.io/component: fleet
{{- end }}
{{- if $isTest }}
  restartPolicy: Never
{{- end }}
  containers:
    - name: fleet
      image: {{ include "fleet.image" . }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      command: [fleet]
      args:
{{- if $run.scenario }}
        - run
        - {{ include "fleet.runFile" (list "scenario" $run.scenario) }}
{{- else }}
        - spawn
{{- with $run.duration }}
        - --duration={{ . }}
{{- end }}
{{- end }}
{{- with $run.slo }}
        - --slo={{ include "fleet.runFile" (list "slo" .) }}
{{- end }}
        {{- include "fleet.targetArgs" . | nindent 8 }}
        - --confirm-cluster={{ .Values.confirmCluster }}
        - --nodes={{ include "fleet.nodesPerPod" . }}
        - --nodes-total={{ .Values.nodes }}
        - --processes={{ .Values.processesPerPod }}
        - --name-prefix={{ include "fleet.namePrefix" . }}
        - --run-id={{ include "fleet.runId" . }}
        - --shard=$(POD_INDEX)
        - --holder=$(POD_UID)
{{- if $isTest }}
        - --no-report
        - --record={{ $run.report | ternary "cluster" "files" }}
{{- else }}
        - --statefulset={{ .Release.Namespace }}/{{ include "fleet.fullname" . }}
{{- end }}
        - --fidelity={{ .Values.fidelity }}
        - --identity={{ include "fleet.identity" . }}
{{- if not $run.scenario }}
        - --start={{ .Values.start }}
        - --seed={{ .Values.seed }}
{{- end }}
        - --metrics-host=0.0.0.0
        - --metrics-port={{ .Values.metrics.port }}
{{- if and .Values.rate (not .Values.locust.enabled) }}
        - --rate={{ divf .Values.rate (include "fleet.replicas" .) }}
{{- end }}
{{- range $at, $profile := .Values.profiles }}
{{- $weight := hasKey $profile "weight" | ternary (printf "=%v" $profile.weight) "" }}
{{- if $profile.source }}
        - --profile={{ $profile.source }}{{ $weight }}
{{- else if $profile.configMap }}
        - --profile=/etc/fleet/configmaps/{{ $profile.configMap.name }}/{{ $profile.configMap.key }}{{ $weight }}
{{- else }}
        - --profile=/etc/fleet/profiles/{{ printf "%02d" $at }}.yaml{{ $weight }}
{{- end }}
{{- end }}
{{- if .Values.noTaint }}
        - --no-taint
{{- end }}
{{- if .Values.zoneLabels }}
        - --zone-labels
{{- end }}
{{- if eq (include "fleet.identity" .) "csr" }}
        - --cert-dir=/var/lib/fleet/pki
{{- if .Values.csr.approve }}
        - --approve-csrs
{{- end }}
{{- end }}
{{- if .Values.noAgents }}
        - --no-agents
{{- end }}
{{- if .Values.simulateCSI }}
        - --simulate-csi
{{- end }}
{{- if .Values.serve.enabled }}
        - --serve=ports
        - --serve-at=$(POD_IP):{{ .Values.serve.port }}
{{- end }}
{{- if .Values.locust.enabled }}
        - --locust-master={{ include "fleet.fullname" . }}-locust:5557
        - --on-master-quit=hold
{{- end }}
{{- with .Values.extraArgs }}{{ toYaml . | nindent 8 }}{{ end }}
      env:
        - name: POD_INDEX
          valueFrom: {fieldRef: {fieldPath: "metadata.labels['{{ $isTest | ternary "batch.kubernetes.io/job-completion-index" "apps.kubernetes.io/pod-index" }}']"}}
        - name: POD_UID
          valueFrom: {fieldRef: {fieldPath: metadata.uid}}
{{- if .Values.serve.enabled }}
        - name: POD_IP
          valueFrom: {fieldRef: {fieldPath: status.podIP}}
{{- end }}
{{- if eq (include "fleet.identity" .) "csr" }}
        - name: FLEET_BOOTSTRAP_TOKEN
          valueFrom: {secretKeyRef: {name: {{ .Values.csr.tokenSecret }}, key: {{ .Values.csr.key }}}}
{{- end }}
        {{- include "fleet.runEnv" . | nindent 8 }}
      workingDir: /var/lib/fleet
      ports:
{{- range $number := until (int .Values.processesPerPod) }}
        - name: metrics-{{ $number }}
          containerPort: {{ add $.Values.metrics.port $number }}
{{- end }}
      # The port opens once the checks have passed and the shard is ours: a pod that follows one
      # which died waits for its Lease.
      startupProbe:
        httpGet: {path: /healthz, port: metrics-0}
        periodSeconds: 2
        failureThreshold: 150
      livenessProbe:
        httpGet: {path: /healthz, port: metrics-0}
        periodSeconds: 10
        timeoutSeconds: 10
        failureThreshold: 6
      readinessProbe:
        httpGet: {path: /readyz, port: metrics-0}
        periodSeconds: 5
        timeoutSeconds: 5
      resources: {{- include "fleet.resources" . | nindent 8 }}
      securityContext: {{- include "fleet.securityContext" . | nindent 8 }}
      volumeMounts:
        - {name: run, mountPath: /var/lib/fleet}
        {{- include "fleet.targetMount" . | nindent 8 }}
{{- if $hasDocuments }}
        - {name: profiles, mountPath: /etc/fleet/profiles, readOnly: true}
{{- end }}
{{- if include "fleet.runFiles" . | fromYaml }}
        - {name: test, mountPath: /etc/fleet/run, readOnly: true}
{{- end }}
{{- range $at, $name := $configMaps }}
        - {name: configmap-{{ $at }}, mountPath: /etc/fleet/configmaps/{{ $name }}, readOnly: true}
{{- end }}
  volumes:
    - name: run
      emptyDir: {}
    {{- include "fleet.targetVolume" . | nindent 4 }}
{{- if $hasDocuments }}
    - name: profiles
      configMap: {name: {{ include "fleet.fullname" . }}-profiles}
{{- end }}
{{- if include "fleet.runFiles" . | fromYaml }}
    - name: test
      configMap: {name: {{ include "fleet.fullname" . }}-run}
{{- end }}
{{- range $at, $name := $configMaps }}
    - name: configmap-{{ $at }}
      configMap: {name: {{ $name }}}
{{- end }}
{{- end -}}
