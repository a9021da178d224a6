# SPDX-License-Identifier: GPL-2.0-or-later
# A Slurm of one node in a temporary folder, as the present user, without the product: for the scripts beside this file
# that ask Slurm. Sourced. Needs Debian 12 (for its packages of Slurm 22.05.8), and no Slurm that is installed.
#
# SLURM_CONF, PATH and LD_LIBRARY_PATH are set; all of it ends with the script.

set -euo pipefail

VERSION=22.05.8-4+deb12u3
PACKAGES=(slurmctld=$VERSION slurmd=$VERSION slurm-client=$VERSION slurm-wlm-basic-plugins=$VERSION libhwloc15)

here=$(mktemp -d)
daemons=()
end() {
    if [ ${#daemons[@]} != 0 ]; then
        scancel --user="$(id -un)" 2>/dev/null || :
        for _ in $(seq 100); do
            [ -z "$(squeue -h 2>/dev/null)" ] && break
            sleep 0.2
        done
        kill "${daemons[@]}" 2>/dev/null || :
    fi
    wait
    rm -rf -- "$here"
}
trap end EXIT

# eventually SECONDS COMMAND...: until it succeeds.
eventually() {
    local until=$((SECONDS + $1))
    shift
    until "$@" >"$here/eventually" 2>&1; do
        if [ $SECONDS -ge $until ]; then
            echo "not within the time: $*"
            cat "$here/eventually"
            exit 2
        fi
        sleep 0.2
    done
}

# said JOB FIELD: what `scontrol show job` says.
said() { scontrol -o show job "$1" | tr ' ' '\n' | sed -n "s/^$2=//p"; }
is() { [ "$(said "$1" "$2")" = "$3" ]; }

# expect WORDS GUESS FOUND TRUE
expect() {
    printf '%-60s guess: %-24s found: %s\n' "$1" "$2" "$3"
    [ "$3" = "$4" ] || { echo "this has changed: $4 was expected"; exit 1; }
}

# with_slurm LINE...: start it, with these lines more in slurm.conf.
with_slurm() {
    (cd "$here" && apt-get -qq download "${PACKAGES[@]}" 2>/dev/null && for file in *.deb; do dpkg -x "$file" root; done)
    local lib=$here/root/usr/lib/x86_64-linux-gnu name
    export PATH=$here/root/usr/bin:$here/root/usr/sbin:$PATH LD_LIBRARY_PATH=$lib/slurm-wlm:$lib
    export SLURM_CONF=$here/slurm.conf
    name=$(hostname -s)
    mkdir "$here/state" "$here/spool"
    printf '%s\n' ClusterName=one "SlurmctldHost=$name(127.0.0.1)" "SlurmUser=$(id -un)" "SlurmdUser=$(id -un)" \
        AuthType=auth/none CredType=cred/none "PluginDir=$lib/slurm-wlm" "SlurmctldPort=${SLURM_PORT:-27817}" \
        "SlurmdPort=$((${SLURM_PORT:-27817} + 1))" "StateSaveLocation=$here/state" "SlurmdSpoolDir=$here/spool" \
        "SlurmctldPidFile=$here/slurmctld.pid" "SlurmdPidFile=$here/slurmd.pid" ProctrackType=proctrack/linuxproc \
        TaskPlugin=task/none MpiDefault=none SwitchType=switch/none SelectType=select/cons_tres \
        SelectTypeParameters=CR_Core ReturnToService=2 FirstJobId=700001 SlurmdParameters=config_overrides \
        "NodeName=$name NodeAddr=127.0.0.1 CPUs=4 State=UNKNOWN" \
        "PartitionName=all Nodes=$name Default=YES MaxTime=INFINITE" "$@" >"$SLURM_CONF"
    slurmctld-wlm -D >"$here/slurmctld.log" 2>&1 &
    daemons+=($!)
    slurmd-wlm -D -d "$here/root/usr/sbin/slurmstepd-wlm" >"$here/slurmd.log" 2>&1 &
    daemons+=($!)
    eventually 60 eval '[ "$(sinfo -h -o %t)" = idle ]'
    echo "Slurm $(sinfo --version | cut -d" " -f2), one node"
}

# submit ARGUMENT...: a job that runs; its id.
submit() {
    local job
    job=$(sbatch --parsable -o /dev/null "$@")
    eventually 60 is "$job" JobState RUNNING
    echo "$job"
}
