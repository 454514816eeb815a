#!/bin/sh
# Three nodes on one machine, as Docker would make them, without Docker: network namespaces on a switch, links shaped by
# tc, control groups (version 1 or 2) that limit CPU time and memory. One `paceline train` per node, found by each other
# through torchrun's variables. At the end, a line of JSON per node with what the kernel counted for it.
#
# usage: three-nodes.sh PROGRAM STORE [FLAG...]         e.g. three-nodes.sh paceline /tmp/store --epochs 20
#   CORES=0.5  MEMORY_MB=512  RATE=200mbit  DISK_MB_S=1000   limits of each node
#   WRITE_MB=0                                               what each node writes to STORE's disk first
#   NAME=paceline-trio-PID                                   what namespaces and groups are called
#
# Needs root, ip and tc (iproute2), nsenter (util-linux). Leaves nothing behind.
set -eu

if [ $# -lt 2 ]; then
    sed -n '2,12s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi
program=$1 store=$2
shift 2
cores=${CORES:-0.5} memory_mb=${MEMORY_MB:-512} rate=${RATE:-200mbit}
disk_mb_s=${DISK_MB_S:-1000} write_mb=${WRITE_MB:-0}
name=${NAME:-paceline-trio-$$}
work=$(mktemp -d)
mkdir -p "$store"

# The folder of a controller's groups: version 1 has one hierarchy each, version 2 one for all.
hierarchy() {
    if [ -d "/sys/fs/cgroup/$1" ] && [ -e "/sys/fs/cgroup/$1/cgroup.procs" ]; then
        echo "/sys/fs/cgroup/$1"
    else
        echo /sys/fs/cgroup
    fi
}
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
    version=2
    echo "+cpu +memory +io" > /sys/fs/cgroup/cgroup.subtree_control 2> /dev/null || true
    hierarchies=/sys/fs/cgroup
else
    version=1
    hierarchies="$(hierarchy cpu) $(hierarchy cpuacct) $(hierarchy memory) $(hierarchy blkio)"
fi

clean() {
    for node in 0 1 2; do
        for hierarchy in $hierarchies; do
            group=$hierarchy/$name-$node
            [ -d "$group" ] || continue
            # Only what was started here is in these groups.
            while read -r pid; do kill -KILL "$pid" 2> /dev/null || true; done < "$group/cgroup.procs"
            tries=0
            until rmdir "$group" 2> /dev/null || [ $tries -ge 100 ]; do
                tries=$((tries + 1))
                sleep 0.05
            done
        done
        ip netns del "$name-$node" 2> /dev/null || true
    done
    ip netns del "$name-switch" 2> /dev/null || true
    rm -rf "$work"
}
trap clean EXIT
trap 'exit 130' INT TERM

ip netns add "$name-switch"
ip -n "$name-switch" link add bridge type bridge
ip -n "$name-switch" link set bridge up
# The whole disk that STORE is on: its limit is also what makes version 1 count.
disk=$(stat -c '%Hd:%Ld' "$store")
if [ -e "/sys/dev/block/$disk/partition" ]; then disk=$(cat "/sys/dev/block/$disk/../dev"); fi
bytes_s=$((disk_mb_s * 1000000))
quota=$(awk "BEGIN { printf \"%d\", $cores * 100000 }")
for node in 0 1 2; do
    ip netns add "$name-$node"
    ip -n "$name-switch" link add "port$node" type veth peer name eth0 netns "$name-$node"
    ip -n "$name-switch" link set "port$node" master bridge up
    ip -n "$name-$node" addr add "10.78.0.$((node + 1))/24" dev eth0
    ip -n "$name-$node" link set eth0 up
    ip -n "$name-$node" link set lo up
    # Both directions of the node's link.
    tc -n "$name-$node" qdisc add dev eth0 root tbf rate "$rate" burst 256kb latency 100ms
    tc -n "$name-switch" qdisc add dev "port$node" root tbf rate "$rate" burst 256kb latency 100ms
    for hierarchy in $hierarchies; do mkdir -p "$hierarchy/$name-$node"; done
    if [ $version = 2 ]; then
        echo "$quota 100000" > "/sys/fs/cgroup/$name-$node/cpu.max"
        echo $((memory_mb << 20)) > "/sys/fs/cgroup/$name-$node/memory.max"
        echo "$disk rbps=$bytes_s wbps=$bytes_s" > "/sys/fs/cgroup/$name-$node/io.max" 2> /dev/null ||
            echo "the disk of $store cannot be limited, nor perhaps counted" >&2
    else
        echo "$quota" > "$(hierarchy cpu)/$name-$node/cpu.cfs_quota_us"
        echo $((memory_mb << 20)) > "$(hierarchy memory)/$name-$node/memory.limit_in_bytes"
        for way in read write; do
            echo "$disk $bytes_s" > "$(hierarchy blkio)/$name-$node/blkio.throttle.${way}_bps_device" 2> /dev/null ||
                echo "the disk of $store cannot be limited, nor counted" >&2
        done
    fi
done

# Starts a command on a node. `nsenter`, since `ip netns exec` would hide the control groups from it.
on() {
    node=$1
    shift
    # shellcheck disable=SC2016
    nsenter --net="/run/netns/$name-$node" sh -c '
        for group in $1; do echo $$ > "$group/$2/cgroup.procs"; done
        shift 2
        exec "$@"' sh "$hierarchies" "$name-$node" "$@"
}

if [ "$write_mb" -gt 0 ]; then
    for node in 0 1 2; do
        on $node dd if=/dev/zero of="$store/written-$node" bs=1M count="$write_mb" oflag=direct 2> /dev/null ||
            echo "nothing can be written to $store past the cache" >&2
        rm -f "$store/written-$node"
    done
fi

for node in 2 1 0; do
    on $node env RANK=$node WORLD_SIZE=3 LOCAL_WORLD_SIZE=1 MASTER_ADDR=10.78.0.1 MASTER_PORT=7700 \
        "$program" train --store "$store" "$@" > "$work/out-$node" &
    echo $! > "$work/pid-$node"
done

memory_file() {
    if [ $version = 2 ]; then echo "/sys/fs/cgroup/$name-$1/memory.current"
    else echo "$(hierarchy memory)/$name-$1/memory.usage_in_bytes"; fi
}
# What each node's memory is, from outside, until the leader ends.
while kill -0 "$(cat "$work/pid-0")" 2> /dev/null; do
    for node in 0 1 2; do cat "$(memory_file $node)" >> "$work/memory-$node"; done
    sleep 0.1
done
status=0
for node in 0 1 2; do
    wait "$(cat "$work/pid-$node")" || status=$?
done
cat "$work/out-0"

for node in 0 1 2; do
    if [ $version = 2 ]; then
        group=/sys/fs/cgroup/$name-$node
        cpu_s=$(awk '$1 == "usage_usec" { printf "%.6f", $2 / 1e6 }' "$group/cpu.stat")
        written=$(tr ' ' '\n' < "$group/io.stat" | awk -F= '$1 == "wbytes" { sum += $2 } END { printf "%d", sum }')
    else
        cpu_s=$(awk '{ printf "%.6f", $1 / 1e9 }' "$(hierarchy cpuacct)/$name-$node/cpuacct.usage")
        written=$(awk '$2 == "Write" { sum += $3 } END { printf "%d", sum }' \
            "$(hierarchy blkio)/$name-$node/blkio.throttle.io_service_bytes")
    fi
    memory=$(sort -n "$work/memory-$node" | awk '{ all[NR] = $1 } END { print all[int((NR + 1) / 2)] }')
    network=$(ip netns exec "$name-$node" cat /proc/net/dev | tr ':' ' ' |
        awk '$1 == "eth0" { printf "\"received_bytes\": %d, \"sent_bytes\": %d", $2, $10 }')
    echo "{\"node\": $node, \"address\": \"10.78.0.$((node + 1))\", \"cgroup_version\": $version," \
        "\"cpu_s\": $cpu_s, \"memory_median_bytes\": $memory, $network, \"disk_write_bytes\": $written}"
done
exit $status
