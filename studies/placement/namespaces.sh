#!/bin/sh
# One run of `paceline train` on two machines that are network namespaces, their link shaped by the kernel:
#   namespaces.sh RATE FLAGS-OF-TRAIN…       (root; PACELINE is the program)
# The last line of its output is the run's result. Nothing is left behind.
set -eu
rate=$1
shift
program=${PACELINE:-target/release/paceline}
one=paceline-s$$-0 two=paceline-s$$-1
place=$(mktemp -d)
clean() {
    ip netns del "$one" 2>/dev/null || true
    ip netns del "$two" 2>/dev/null || true
    rm -rf "$place"
}
trap clean EXIT
trap 'exit 130' INT TERM
ip netns add "$one"
ip netns add "$two"
ip -n "$one" link add eth0 type veth peer name eth0 netns "$two"
host=1
for name in "$one" "$two"; do
    ip -n "$name" addr add 10.79.0.$host/24 dev eth0
    ip -n "$name" link set eth0 up
    ip -n "$name" link set lo up
    if [ "$rate" != none ]; then
        ip netns exec "$name" tc qdisc add dev eth0 root tbf rate "$rate" burst 32kb latency 400ms
    fi
    host=$((host + 1))
done
ip netns exec "$one" "$program" train --json --quiet --no-record --listen 10.79.0.1:7700 --hosts 2 \
    --key-file "$place/key" "$@" >"$place/result" 2>"$place/errors" &
leader=$!
tries=0
while [ ! -s "$place/key" ] && [ $tries -lt 200 ]; do
    sleep 0.05
    tries=$((tries + 1))
done
ip netns exec "$two" "$program" join 10.79.0.1:7700 --quiet --join-timeout 20 --key-file "$place/key" \
    >/dev/null 2>"$place/joined" || cat "$place/joined" >&2
if wait $leader; then
    tail -n 1 "$place/result"
else
    cat "$place/errors" >&2
    exit 1
fi
