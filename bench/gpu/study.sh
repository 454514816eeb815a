#!/bin/bash
# The runs of studies/gpu on a machine with a GPU, in about five minutes:
#
#     bash bench/gpu/study.sh ./paceline OUT-FOLDER
#
# OUT-FOLDER gets store.tar.gz and study.txt. Then, with the checkout: tar -xzf store.tar.gz && cargo xtask study gpu --from store
cd "$(dirname "$0")/../.." || exit 1
program=$(realpath "$1") out=$(realpath "$2")
work=$(mktemp -d)
export XDG_CACHE_HOME=$work/cache XDG_DATA_HOME=$work/data PYTHONDONTWRITEBYTECODE=1
export PACELINE_PYTHON=${PACELINE_PYTHON:-python3}
begun=$SECONDS
for part in resnet50 gpt; do
  # An interrupted study can be resumed; what it has is kept.
  left=$((${STUDY_LIMIT:-330} - SECONDS + begun))
  timeout -s INT -k 20 $left "$program" explore studies/gpu/$part.toml --store "$work/store" 2>&1
  echo "$part: ended with $? after $((SECONDS - begun)) s"
done > "$out/study.txt"
"$program" doctor --json > "$work/store/doctor.json" 2> /dev/null
tar -C "$work" -czf "$out/store.tar.gz" store
cat "$out/study.txt"
rm -rf "$work"
