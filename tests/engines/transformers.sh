#!/bin/sh
# Makes .venv-transformers: `transformers serve` on a CPU, in an environment of its own.
# Usage: sh tests/engines/transformers.sh [PYTHON]
# A second call does nothing, unless the versions below have changed.
set -eu

python=${1:-python3}
torch="torch==2.13.0"
transformers="transformers[serving]==5.24.0"

cd "$(dirname "$0")/../.."
venv=.venv-transformers
stamp=$venv/.installed

if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$torch $transformers" ]; then
    echo "$venv has $transformers already."
    exit 0
fi

echo "Installing $torch and $transformers into $venv: about a minute and 1.2 GB (more where pip finds a CUDA build)."
rm -rf "$venv"
"$python" -m venv "$venv"
# PyTorch first and alone: where pip knows a build for CPUs, it is taken before anything can ask for another.
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$torch"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$transformers"
(cd / && "$OLDPWD/$venv/bin/python" -c "import torch, transformers; print('transformers', transformers.__version__, 'with PyTorch', torch.__version__)")
echo "$torch $transformers" >"$stamp"
