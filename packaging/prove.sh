# SPDX-License-Identifier: Apache-2.0
# Runtimes start what the hooks.d files name, and fail the container if that cannot run. So before these files are there
# a program runs in its place: that of before, or a stub, which does until the new one has run, too.
HOOKS=/usr/libexec/oci/hooks.d
PROGRAM=$HOOKS/resctrl-mon-hook.pyz

prove() {
    case $("$PROGRAM" --version 2>/dev/null) in
    "resctrl-mon-hook "*) return ;;
    esac
    [ -e "$PROGRAM" ] || absent=yes
    cause=$({
        mkdir -p "$HOOKS" && printf '#!/bin/true\n' >"$PROGRAM.new" && chmod 755 "$PROGRAM.new" &&
            "$PROGRAM.new" && mv -fT "$PROGRAM.new" "$PROGRAM" && "$PROGRAM"
    } 2>&1) && return
    rm -f "$PROGRAM.new" ${absent:+"$PROGRAM"}
    case "$cause,$(findmnt -n -o OPTIONS -T "$HOOKS" 2>/dev/null)," in
    *denied*,noexec,*)
        mount=$(findmnt -n -o TARGET -T "$HOOKS")
        remedy="$mount is mounted noexec: mount -o remount,exec $mount"
        ;;
    *denied* | *permitted*) remedy="see whether SELinux (ausearch -m avc) or fapolicyd forbids it" ;;
    *) remedy="let root write and run files in $HOOKS" ;;
    esac
    echo "resctrl-mon-hook: no program runs as $PROGRAM: ${cause##*: }: containers would fail, so nothing is installed" >&2
    echo "resctrl-mon-hook: remedy: $remedy; then install the package again" >&2
    exit 1
}
prove
