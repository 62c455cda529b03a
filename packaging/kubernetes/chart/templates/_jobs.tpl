{{- /* The Jobs that `helm uninstall` makes on each node (image/cluster.py), which names and places them. */ -}}
{{- define "hook.removeJson" -}}
apiVersion: batch/v1
kind: Job
metadata:
  name: {{ include "hook.name" . }}-remove-json
  namespace: {{ .Release.Namespace }}
  labels: &labels
    app.kubernetes.io/name: {{ .Chart.Name }}
    app.kubernetes.io/instance: {{ .Release.Name }}
    app.kubernetes.io/component: remove-json
spec:
  suspend: true # until the DaemonSet is gone
  backoffLimit: 1000
  template:
    metadata:
      labels: *labels
    spec:
      {{- include "hook.pod" . | nindent 6 }}
      restartPolicy: OnFailure
      tolerations: [{operator: Exists}]
      containers:
        - name: remove-json
          {{- include "hook.command" (dict "root" . "verb" "remove-json") | nindent 10 }}
          env:
            - name: REMOVED_AT # image/cluster.py notes the time at which it starts the Job
              valueFrom:
                fieldRef: {fieldPath: "metadata.annotations['resctrl-mon.io/removed-at']"}
          resources: {{- toYaml .Values.resources | nindent 12 }}
          securityContext: {{- include "hook.fileSecurity" . | nindent 12 }}
          volumeMounts:
            {{- include "hook.jsonMount" . | nindent 12 }}
            {{- include "hook.programMount" . | nindent 12 }} # for the owner's file, which names the owner of the JSON
              readOnly: true
      volumes:
        {{- include "hook.jsonVolume" . | nindent 8 }}
        {{- include "hook.programVolume" . | nindent 8 }}
{{- end }}

{{- define "hook.removeProgram" -}}
apiVersion: batch/v1
kind: Job
metadata:
  name: {{ include "hook.name" . }}-remove-program
  namespace: {{ .Release.Namespace }}
  labels: &labels
    app.kubernetes.io/name: {{ .Chart.Name }}
    app.kubernetes.io/instance: {{ .Release.Name }}
    app.kubernetes.io/component: remove-program
spec:
  suspend: true # until the JSON is off every node
  backoffLimit: 1000
  ttlSecondsAfterFinished: 60
  template:
    metadata:
      labels: *labels
    spec:
      {{- include "hook.pod" . | nindent 6 }}
      hostPID: true # to see whether a group on no record has a live task
      restartPolicy: OnFailure
      tolerations: [{operator: Exists}]
      containers:
        - name: remove-program
          {{- include "hook.command" (dict "root" . "verb" "remove-program") | nindent 10 }}
          env:
            {{- include "hook.nodeName" . | nindent 12 }}
            - name: REMOVED_AT # image/cluster.py notes the time at which it starts the Job
              valueFrom:
                fieldRef: {fieldPath: "metadata.annotations['resctrl-mon.io/removed-at']"}
          resources: {{- toYaml .Values.resources | nindent 12 }}
          securityContext: {{- include "hook.reconcileSecurity" "" | nindent 12 }}
          volumeMounts:
            {{- include "hook.programMount" . | nindent 12 }}
            {{- include "hook.jsonMount" . | nindent 12 }} # to see whether the hook was installed again
              readOnly: true
            {{- include "hook.bootMount" . | nindent 12 }}
            {{- include "hook.reconcileMounts" . | nindent 12 }}
      volumes:
        {{- include "hook.programVolume" . | nindent 8 }}
        {{- include "hook.jsonVolume" . | nindent 8 }}
        {{- include "hook.bootVolume" . | nindent 8 }}
        {{- include "hook.reconcileVolumes" . | nindent 8 }}
{{- end }}

{{- /* The pod that `helm test` starts on a node (image/trial.py): it copies memory, and so uses what is counted. */ -}}
{{- define "hook.testedPod" -}}
apiVersion: v1
kind: Pod
metadata:
  name: {{ include "hook.name" . }}-tested
  namespace: {{ .Release.Namespace }}
  labels:
    app.kubernetes.io/name: {{ .Chart.Name }}
    app.kubernetes.io/instance: {{ .Release.Name }}
    app.kubernetes.io/component: tested
  annotations:
    monitor.resctrl-mon.io: "true" # with --monitor=opt-in
spec:
  serviceAccountName: {{ .Values.serviceAccountName | quote }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  restartPolicy: Never
  activeDeadlineSeconds: 900
  terminationGracePeriodSeconds: 0
  {{- with .Values.imagePullSecrets }}
  imagePullSecrets: {{- toYaml . | nindent 4 }}
  {{- end }}
  tolerations: [{operator: Exists}]
  containers:
    - name: load
      image: {{ include "hook.image" . }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      command:
        - python3
        - -c
        - |
          import time
          data = bytearray(32 << 20)
          while True:
              bytes(data)
              time.sleep(0.1)
      resources:
        requests: {cpu: 10m, memory: 96Mi}
        limits: {memory: 192Mi}
      securityContext: {{- include "hook.podSecurity" . | nindent 8 }}
{{- end }}
