{{- define "hook.name" -}}
{{- /* 35 of the 63 characters that a label may have: the longest suffix is "-remove-program-" and ten digits */ -}}
{{ .Release.Name | trunc 35 | trimSuffix "-" }}
{{- end }}

{{- define "hook.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "hook.labels" -}}
{{ include "hook.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "hook.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ printf "%s@%s" .repository .digest | quote }}
{{- else -}}
{{ printf "%s:%s" .repository (.tag | default $.Chart.AppVersion) | quote }}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "hook.programDir" -}}
{{ .Values.prefix }}/libexec/oci/hooks.d
{{- end }}

{{- /* Values that cannot work, and what to write instead. */ -}}
{{- define "hook.checkValues" -}}
{{- $seconds := "[0-9]+([.][0-9]+)?" }}
{{- $rules := dict
  "--key" (list "auto|container|sandbox" "auto, container or sandbox")
  "--containers" (list "all|kubernetes|podman" "all, kubernetes or podman")
  "--monitor" (list "all|opt-in|opt-out" "all, opt-in or opt-out")
  "--annotation" (list "[^=]+=.*" "KEY=VALUE")
  "--group-prefix" (list "[A-Za-z0-9][A-Za-z0-9_.+,-]{0,49}" "at most 50 letters, digits and _.+,-, a letter or digit first")
  "--linger" (list "[0-9]+" "whole seconds, at most 86400" 86400)
  "--snapshot-ttl" (list "[0-9]+" "whole seconds, at most 604800" 604800)
  "--lock-timeout" (list $seconds "seconds, at most 60" 60)
  "--rmid-wait" (list $seconds "seconds, at most 60" 60)
}}
{{- range $word := .Values.options }}
{{- $name := regexFind "^--[a-z-]+" $word }}
{{- $value := trimPrefix (printf "%s=" $name) $word }}
{{- with get $rules $name }}
{{- if or (not (regexMatch (printf "^(%s)$" (index . 0)) $value)) (and (eq (len .) 3) (gt (float64 $value) (float64 (last .)))) }}
{{- fail (printf "options: %s: write %s=X, X being %s" $word $name (index . 1)) }}
{{- end }}
{{- end }}
{{- end }}
{{- $name := include "hook.name" . }}
{{- if not (regexMatch "^[a-z0-9]([a-z0-9-]*[a-z0-9])?([.][a-z0-9]([a-z0-9-]*[a-z0-9])?)*$" $name) }}
{{- fail (printf "the release name %s: the names of its objects begin with %s, and Kubernetes takes no dot or dash there at the end: choose another name" .Release.Name $name) }}
{{- end }}
{{- range $what, $text := dict "the release name" .Release.Name "the beginning of the release name" $name "the namespace" .Release.Namespace }}
{{- if not (kindIs "string" (get (fromYaml (printf "text: %s" $text)) "text")) }}
{{- fail (printf "%s %s: to YAML it is no text, but a number, a date or a truth value: choose another one" $what $text) }}
{{- end }}
{{- end }}
{{- include "hook.checkPaths" . }}
{{- if and .Values.history.stdout (has "--history=" .Values.options) }}
{{- fail "history.stdout: true asks for the history, which --history= among the options switches off: write false, or leave the option out" }}
{{- end }}
{{- if not .Values.metrics.enabled }}
{{- range $name, $asks := dict "metrics.created" .Values.metrics.created "metrics.podMonitor.enabled" .Values.metrics.podMonitor.enabled "metrics.prometheusRule.enabled" .Values.metrics.prometheusRule.enabled "test.everyNode" .Values.test.everyNode }}
{{- if $asks }}
{{- fail (printf "%s: true asks for the metrics, which metrics.enabled=false leaves out: write false, or metrics.enabled=true" $name) }}
{{- end }}
{{- end }}
{{- end }}
{{- /* The files stay where they are: `helm template` and `--dry-run` see no cluster, and image/host.py looks again. */ -}}
{{- $now := lookup "apps/v1" "DaemonSet" .Release.Namespace (include "hook.name" .) }}
{{- range $container := dig "spec" "template" "spec" "containers" (list) $now }}
{{- range $name, $option := dict "prefix" "--prefix=" "hooksDir" "--hooks-dir=" }}
{{- range $word := get $container "args" }}
{{- if and (hasPrefix $option $word) (ne $word (printf "%s%s" $option (get $.Values $name))) }}
{{- fail (printf "%s: the nodes have the hook by %s=%s: set that, or helm uninstall first" $name $name (trimPrefix $option $word)) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- /*
Directories that cannot work, by their kind. What depends on a node (a read-only or noexec file system, SELinux) is found
there: the container `install` says so.
*/ -}}
{{- define "hook.checkPaths" -}}
{{- $program := include "hook.programDir" . }}
{{- range $name, $instead := dict "prefix" "/usr/local" "hooksDir" "/etc/containers/oci/hooks.d" }}
{{- $path := get $.Values $name }}
{{- $why := "" }}
{{- if regexMatch "^/(proc|sys)(/|$)" $path }}
{{- $why = "is the kernel's, and takes no files" }}
{{- else if regexMatch "^/(dev|run|tmp|var/(lock|run|tmp))(/|$)" $path }}
{{- $why = "is emptied by a boot or by the node's cleaning, and may be noexec" }}
{{- else if and (eq $name "hooksDir") (hasPrefix (printf "%s/" $program) (printf "%s/" $path)) }}
{{- $why = "is the directory of the program, of which the pods have a mount of its own, or below it" }}
{{- else if regexMatch "[.]d/" (printf "%s/" (ternary (dir $path) $path (and (eq $name "hooksDir") (contains "hook" (base $path))))) }}
{{- $why = "is in a directory that another program reads" }}
{{- else if and (eq $name "hooksDir") (not (contains "hook" (base $path))) }}
{{- $why = "may be a directory that another program reads: that of the hooks has the word hook in its name" }}
{{- else if and (eq $name "prefix") (regexMatch "^/etc(/|$)" $path) }}
{{- $why = "is for configuration, not for programs" }}
{{- end }}
{{- if $why }}
{{- fail (printf "%s: %s %s: write a directory of the node, such as %s" $name $path $why $instead) }}
{{- end }}
{{- end }}
{{- with .Values.testing.resctrlRoot }}
{{- if or (regexMatch "^/(bin|dev|dev/(mqueue|pts|shm)|etc|lib[a-z0-9]*|run|sbin|usr|usr/(bin|lib[a-z0-9]*|local|sbin))$" (dir .)) (regexMatch "^/(adopt|app|host|node|plan|proc|run/resctrl-mon-hook|sys|var/log/resctrl-mon-hook)(/|$)" (dir .)) }}
{{- fail (printf "testing.resctrlRoot: %s: the pods mount %s, over what they have there: write a directory such as /opt/model/resctrl, or nothing for /sys/fs/resctrl" . (dir .)) }}
{{- end }}
{{- end }}
{{- end }}

{{- /* What all command lines have: the options of the hook from their one place. */ -}}
{{- define "hook.words" -}}
{{- include "hook.checkValues" . -}}
- --prefix={{ .Values.prefix }}
- --hooks-dir={{ .Values.hooksDir }}
- --release={{ .Release.Namespace }}/{{ .Release.Name }}
{{- range .Values.options }}
- {{ . | quote }}
{{- end }}
{{- with .Values.testing.resctrlRoot }}
- --resctrl-root={{ . }}
{{- end }}
{{- end }}

{{- /* A container's image and command line: the verb, and the words. */ -}}
{{- define "hook.command" -}}
image: {{ include "hook.image" .root }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
terminationMessagePolicy: FallbackToLogsOnError # `kubectl describe` shows why it refuses
args:
  - {{ .verb }}
  {{- include "hook.words" .root | nindent 2 }}
{{- end }}

{{- /* The node's name, for the lines of the history: image/node.py makes --node= of it. */ -}}
{{- define "hook.nodeName" -}}
- name: NODE_NAME
  valueFrom:
    fieldRef: {fieldPath: spec.nodeName}
{{- end }}

{{- /* Whether a container does its job: image/ready.py. -E -S: it starts in half the time. */ -}}
{{- define "hook.readiness" -}}
exec:
  command:
    - python3
    - -E
    - -S
    - /app/ready.py
    - {{ .name }}
    {{- include "hook.words" .root | nindent 4 }}
periodSeconds: 20
timeoutSeconds: 10
{{- end }}

{{- /*
The host's files are root's, and root writes them without any capability. spc_t: SELinux lets no other type of
container write to the host's directories.
*/ -}}
{{- define "hook.fileSecurity" -}}
runAsUser: 0
runAsGroup: 0
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
seccompProfile:
  type: RuntimeDefault
seLinuxOptions:
  type: spc_t
{{- end }}

{{- /* No rights on the node. */ -}}
{{- define "hook.podSecurity" -}}
runAsUser: 65534
runAsGroup: 65534
runAsNonRoot: true
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- /*
What reconcile takes, and no more, but for what is given. It keeps the first, which is what the systemd unit has without --adopt; the others
are dropped as soon as it is in the host's cgroup namespace, before it does anything else (image/privileges.py):
  DAC_OVERRIDE  resctrl's directories are 0555, also for root
  SYS_ADMIN     setns to the host's cgroup namespace: otherwise the whole container would have to be privileged
  SYS_PTRACE    to open that namespace, by /proc/PID/ns/cgroup of the process that started the container
  SETPCAP       to drop capabilities for good
  NET_ADMIN     of watch alone, which keeps it: to listen to the kernel's process connector
AppArmor's usual profile forbids to write to /sys/fs/resctrl, SELinux the same to all but spc_t.
No allowPrivilegeEscalation: Kubernetes takes it for true with SYS_ADMIN; no_new_privs is set when that is dropped.
*/ -}}
{{- define "hook.reconcileSecurity" -}}
runAsUser: 0
runAsGroup: 0
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
  add: [DAC_OVERRIDE, SETPCAP, SYS_ADMIN, SYS_PTRACE{{ . }}]
seccompProfile:
  type: RuntimeDefault
appArmorProfile:
  type: Unconfined
seLinuxOptions:
  type: spc_t
{{- end }}

{{- /*
At the very paths of the host: records hold full paths, and so do the links of the consumers' view.
resctrl comes with the directory above it. A mount of its own would be a copy: it would outlive an unmount on the host,
keep the next mount from being made, and reconcile would judge groups that the host no longer has. /sys/fs itself is
read-only; what the host has mounted below it is as the host has it.
*/ -}}
{{- define "hook.resctrlMounts" -}}
- name: sysfs
  mountPath: /sys/fs
  mountPropagation: HostToContainer # also when resctrl is mounted, or unmounted, only later
  readOnly: true
{{- include "hook.testingMount" . }}
{{- end }}

{{- define "hook.testingMount" }}
{{- with .Values.testing.resctrlRoot }}
- name: testing
  mountPath: {{ dir . }}
  mountPropagation: HostToContainer
  readOnly: true
{{- end }}
{{- end }}

{{- define "hook.resctrlVolumes" -}}
- name: sysfs
  hostPath: {path: /sys/fs, type: Directory}
{{- with .Values.testing.resctrlRoot }}
- name: testing
  hostPath: {path: {{ dir . }}, type: Directory}
{{- end }}
{{- end }}

{{- /* What the container `check` found, in the pods of the DaemonSet. */ -}}
{{- define "hook.nodeMount" -}}
- name: node
  mountPath: /node
{{- end }}

{{- /* The history. It is there with --history=, too: lines may still wait for it, and metrics keeps its file there. */ -}}
{{- define "hook.historyMount" -}}
- name: history
  mountPath: /var/log/resctrl-mon-hook
{{- end }}

{{- define "hook.reconcileMounts" -}}
{{ include "hook.resctrlMounts" . }}
- name: run
  mountPath: /run/resctrl-mon-hook
{{ include "hook.historyMount" . }}
- name: cgroup # whether a pod's cgroup is still there; else the runtime would mount the container's own view here
  mountPath: /sys/fs/cgroup
  mountPropagation: HostToContainer
  readOnly: true
{{- end }}

{{- define "hook.reconcileVolumes" -}}
{{ include "hook.resctrlVolumes" . }}
- name: run
  hostPath: {path: /run/resctrl-mon-hook, type: DirectoryOrCreate}
- name: history # the pods make it, and nothing removes it: a hook makes no directory
  hostPath: {path: /var/log/resctrl-mon-hook, type: DirectoryOrCreate}
- name: cgroup
  hostPath: {path: /sys/fs/cgroup, type: Directory}
{{- end }}

{{- /*
With adopt: what runc and crun keep of each container (image/runtime.py), but no bundle, which has the container's file
system mounted, and no socket. In the first one are the config.json files that are made of that, and the program that makes them.
*/ -}}
{{- define "hook.adoptMounts" }}
{{- if .Values.adopt }}
- name: adopt
  mountPath: /adopt
{{- range $name, $path := include "hook.adoptPaths" . | fromYaml }}
- name: {{ $name }}
  mountPath: /host{{ $path }}
  readOnly: true
{{- end }}
{{- end }}
{{- end }}

{{- define "hook.adoptVolumes" }}
{{- if .Values.adopt }}
- name: adopt
  emptyDir: {medium: Memory}
{{- range $name, $path := include "hook.adoptPaths" . | fromYaml }}
- name: {{ $name }}
  hostPath: {path: {{ $path }}, type: DirectoryOrCreate}
{{- end }}
{{- end }}
{{- end }}

{{- define "hook.adoptPaths" -}}
runc: /run/runc
crun: /run/crun
containerd-runc: /run/containerd/runc
{{- end }}

{{- /* The host's directories, below /host. */ -}}
{{- define "hook.programVolume" -}}
- name: programs
  hostPath: {path: {{ include "hook.programDir" . }}, type: DirectoryOrCreate}
{{- end }}

{{- define "hook.programMount" -}}
- name: programs
  mountPath: /host{{ include "hook.programDir" . }}
{{- end }}

{{- /* Of the file by which the next boot removes the stub that a removal leaves. */ -}}
{{- define "hook.bootVolume" -}}
- name: tmpfiles
  hostPath: {path: /etc/tmpfiles.d, type: DirectoryOrCreate}
{{- end }}

{{- define "hook.bootMount" -}}
- name: tmpfiles
  mountPath: /host/etc/tmpfiles.d
{{- end }}

{{- define "hook.jsonVolume" -}}
- name: hooks
  hostPath: {path: {{ .Values.hooksDir }}, type: DirectoryOrCreate}
{{- end }}

{{- define "hook.jsonMount" -}}
- name: hooks
  mountPath: /host{{ .Values.hooksDir }}
{{- end }}

{{- /* What all pods have in common. */ -}}
{{- define "hook.pod" -}}
{{- if has .Values.priorityClassName (list "system-node-critical" "system-cluster-critical") }}
{{- if not (get (default dict (get (default dict .Values.resources) "limits")) "memory") }}
{{- fail (printf "resources.limits.memory is not set: with priorityClassName %s the kernel would end the workload before this. Set a limit, or another priorityClassName" .Values.priorityClassName) }}
{{- end }}
{{- end }}
serviceAccountName: {{ .Values.serviceAccountName | quote }}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
terminationGracePeriodSeconds: 5
{{- end }}
