# cluster.sh - a Slurm of one node in a folder of its own, for tests.  Source it.
#
# cluster_start FOLDER: munged, slurmctld and slurmd on ports of their own; exports
# SLURM_CONF.  cluster_stop ends them.  Needs Debian's slurmctld, slurmd,
# slurm-client and munge, and root, as slurmd does.

cluster_start() { # cluster_start FOLDER
    cluster=$1
    cluster_port=$((20000 + $$ % 20000))
    mkdir -p "$cluster/state" "$cluster/spool"
    chmod 755 "$cluster"
    head -c 1024 /dev/urandom >"$cluster/munge.key"
    chmod 600 "$cluster/munge.key"
    cat >"$cluster/slurm.conf" <<END
ClusterName=test
SlurmctldHost=$(hostname -s)(127.0.0.1)
SlurmUser=root
SlurmctldPort=$cluster_port
SlurmdPort=$((cluster_port + 1))
AuthInfo=socket=$cluster/munge.socket
StateSaveLocation=$cluster/state
SlurmdSpoolDir=$cluster/spool
SlurmctldPidFile=$cluster/slurmctld.pid
SlurmdPidFile=$cluster/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=2,bf_interval=2
ReturnToService=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
KillWait=5
NodeName=$(hostname -s) NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=low Nodes=ALL Default=YES PriorityTier=1 GraceTime=60
PartitionName=high Nodes=ALL PriorityTier=9 PreemptMode=OFF
END
    SLURM_CONF=$cluster/slurm.conf
    export SLURM_CONF
    munged --force --key-file="$cluster/munge.key" \
        --socket="$cluster/munge.socket" --pid-file="$cluster/munged.pid" \
        --log-file="$cluster/munged.log" --seed-file="$cluster/munged.seed" &&
        slurmctld -L "$cluster/slurmctld.log" &&
        slurmd -L "$cluster/slurmd.log" || return 1
    cluster_until 30 node_is_idle
}

node_is_idle() {
    [ "$(scontrol show node 2>/dev/null | grep -c 'State=IDLE')" = 1 ]
}

cluster_until() { # cluster_until SECONDS COMMAND...: until it succeeds
    cluster_limit=$(($(date +%s) + $1))
    shift
    until "$@"; do
        [ "$(date +%s)" -lt $cluster_limit ] || return 1
        sleep 0.1
    done
}

cluster_stop() {
    for cluster_daemon in slurmd slurmctld munged; do
        cluster_pid=$(cat "$cluster/$cluster_daemon.pid" 2>/dev/null) &&
            kill "$cluster_pid" 2>/dev/null &&
            cluster_until 10 sh -c "! kill -0 $cluster_pid 2>/dev/null"
    done
    return 0
}
