#!/bin/bash
# A first look at a machine with a GPU, in about three minutes: what CUDA allows, whether scripts train right on it, how fast.
#
#     bash bench/gpu/first.sh ./paceline OUT-FOLDER
#
# Every part has a time limit of its own, and the next one follows whatever came of it. A table comes last.
# OUT-FOLDER gets probe.jsonl, results.jsonl (a line per part), logs.txt, explain.txt, run.jsonl.
cd "$(dirname "$0")/../.." || exit 1
program=$(realpath "$1") out=$(realpath "$2")
python=${PACELINE_PYTHON:-python3}
limit=$((SECONDS + ${FIRST_LIMIT:-200}))
work=$(mktemp -d)
export XDG_CACHE_HOME=$work/cache XDG_DATA_HOME=$work/data PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=4
results=$out/results.jsonl logs=$out/logs.txt
: > "$results"; : > "$logs"
# The package of this tree instead of the one that the program carries.
printf '#!/bin/sh\nPYTHONPATH=%s exec %s "$@"\n' "$PWD/python" "$python" > "$work/tree"
chmod +x "$work/tree"
device=$([ -n "$FIRST_DEVICE" ] && echo "--device $FIRST_DEVICE")
gpus=$([ -z "$FIRST_DEVICE" ] && echo "--gpus 0")

# part NAME SECONDS COMMAND...: its last line of output that is JSON is kept in results.jsonl with the name.
part() {
  local name=$1 seconds=$2 begun=$SECONDS; shift 2
  if [ $((SECONDS + 8)) -gt $limit ]; then echo "$name: no time left" | tee -a "$logs"; return; fi
  [ $((limit - SECONDS)) -lt "$seconds" ] && seconds=$((limit - SECONDS))
  timeout -k 5 "$seconds" "$@" > "$work/$name.out" 2> "$work/$name.err"
  local code=$?
  { echo "== $name: ended with $code after $((SECONDS - begun)) s: $*"; tail -c 2500 "$work/$name.err"; } >> "$logs"
  printf '%s\n' "$name ($code, $((SECONDS - begun)) s)"
  "$python" - "$name" "$code" "$work/$name.out" >> "$results" << 'END'
import json, sys
name, code, file = sys.argv[1:]
found, reported = None, None
for line in open(file, errors="replace"):
    try:
        value = json.loads(line)
    except ValueError:
        continue
    if not isinstance(value, dict):
        continue
    if value.get("type") == "reported":
        reported = value.get("values")
    if value.get("type") != "progress":
        found = value
print(json.dumps({"name": name, "code": int(code), "reported": reported, "result": found}))
END
}
sides=bench/peers/torch_gpu.py
plain() { local name=$1 seconds=$2; shift 2; part "$name" "$seconds" "$python" $sides --side plain $device "$@"; }
ddp() { local name=$1 seconds=$2; shift 2; part "$name" "$seconds" "$python" $sides --side ddp $device "$@"; }
# ours NAME SECONDS "FLAGS OF TRAIN" WORDS...
ours() {
  local name=$1 seconds=$2 flags=$3; shift 3
  part "$name" "$seconds" "$program" train --quiet --json --store "$work/store" --python "${script_python:-$work/tree}" $gpus ${transport---transport shm} $flags \
    --script $sides -- --side paceline $device "$@"
}

{
  echo "== machine"
  nvidia-smi 2>&1 | head -20
  nvidia-smi --query-gpu=compute_mode,driver_version,pcie.link.gen.current,pcie.link.width.current --format=csv 2>&1
  command -v nvidia-cuda-mps-control nvidia-cuda-mps-server; ldconfig -p | grep -E 'nvidia-ml|libcuda\.'; nproc; id -u; ulimit -l; df -h /dev/shm | tail -1; lscpu | grep -E 'Model name|Thread|NUMA node\(s\)'; free -g | head -2
} >> "$logs" 2>&1
part probe 60 "$python" bench/gpu/probe.py
cp "$work/probe.out" "$out/probe.jsonl" 2> /dev/null
part doctor 20 "$program" doctor --json

small="--steps 20 --warmup 5" long="--steps 30 --warmup 8"
plain plain 45 --case resnet50:128 --case resnet50:64 --case lenet:512 --case gpt:16 $long
ddp nccl-one 40 --backend nccl --case resnet50:128:25 --case lenet:512:25 $long
ours one-resnet 30 "--workers 1" --case resnet50:128 $long
ours two-resnet-turns 40 "--workers 2 --mps off" --case resnet50:64 $small
ours two-resnet-mps 40 "--workers 2 --trace" --case resnet50:64 $long
ours two-lenet-mps 30 "--workers 2" --case lenet:512 --steps 200 --warmup 20
# The package that the program carries, which may be older than this tree.
script_python=$python ours carried-resnet-mps 40 "--workers 2" --case resnet50:64 $small
ddp gloo-turns 40 --workers 2 --case resnet50:64:25 --case lenet:512:25 $small

# The service for those that are not ours.
export CUDA_MPS_PIPE_DIRECTORY=$work/pipe CUDA_MPS_LOG_DIRECTORY=$work/log
mkdir -p "$work/pipe" "$work/log"
nvidia-cuda-mps-control -f > "$work/mps.txt" 2>&1 &
mps=$!
for _ in $(seq 50); do [ -e "$work/pipe/control" ] && break; sleep 0.1; done
ddp gloo-mps 40 --workers 2 --case resnet50:64:25 --case resnet50:64:100 --case lenet:512:25 --case lenet:512:1 $small
same="--case lenet:512 --deterministic --steps 50 --warmup 0"
ddp same-gloo 25 --workers 2 --case lenet:512:25 --deterministic --steps 50 --warmup 0 --keep "$work/theirs"
ours same-ours 25 "--workers 2" $same --keep "$work/ours"
transport= ours delegated-gloo 25 "--workers 2 --strategy ddp-gloo" --case lenet:512 $small
transport= ours delegated-nccl 25 "--workers 1 --strategy ddp-nccl" --case lenet:512 $small
kill $mps 2> /dev/null
{ echo "== MPS"; cat "$work/mps.txt"; tail -n 15 "$work"/log/* 2> /dev/null; } >> "$logs" 2>&1

"$program" explain --store "$work/store" > "$out/explain.txt" 2>&1
cat "$work/two-resnet-mps.out" > "$out/run.jsonl" 2> /dev/null
"$python" - "$results" "$work" << 'END'
import array, json, math, sys
results, work = sys.argv[1:]
print(f"{'part':20} {'case':18} {'step, ms':>9} {'samples/s':>10}")
for line in open(results):
    told = json.loads(line)
    cases = (told["result"] or {}).get("cases")
    if told["reported"]:
        cases = [{"case": "", **told["reported"]}]
    for case in cases or []:
        if "step_s" in case:
            print(f"{told['name']:20} {case['case']:18} {1e3 * case['step_s']:9.2f} {case['samples_per_s']:10.0f}")
    if not cases:
        print(f"{told['name']:20} code {told['code']}")
def numbers(name):
    found = array.array("f")
    found.frombytes(open(f"{work}/{name}", "rb").read())
    return found
try:
    one, two, theirs = numbers("ours.lenet.0"), numbers("ours.lenet.1"), numbers("theirs.lenet.0")
    apart = math.sqrt(sum((a - b) ** 2 for a, b in zip(one, theirs)) / sum(b * b for b in theirs))
    print("parameters of both workers are", "identical" if one == two else "DIFFERENT", f"and {apart:.3g} from DDP's, relative")
except OSError as error:
    print("parameters:", error)
END
rm -rf "$work"
