#!/bin/sh
# Makes the environments of the other tools, which benchmarks/peers.py and benchmarks/cost.py measure beside flatout:
# .venv-peers/<tool> each, and .venv-vllm. Usage: sh benchmarks/peers.sh [PYTHON] [TOOL …]   (default: all four)
# A tool that cannot be installed is left out with a word; a second call does only what is missing.
set -eu

python=${1:-python3}
[ $# -gt 0 ] && shift
[ $# -gt 0 ] || set -- aiperf guidellm llama-benchy vllm

cd "$(dirname "$0")/.."

# PyTorch for CPUs, where an index has it (see tests/engines/vllm.sh): GuideLLM then takes 1.5 GB instead of 6.
torch="torch==2.13.0+cpu"

installed() { # ENVIRONMENT REQUIREMENT…
    venv=$1
    shift
    rm -rf "$venv"
    "$python" -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$@"
}

make_one() { # TOOL REQUIREMENT
    venv=.venv-peers/$1
    if [ -f "$venv/.installed" ] && [ "$(cat "$venv/.installed")" = "$2" ]; then
        echo "$venv has $2 already."
        return 0
    fi
    echo "Installing $2 into $venv."
    if [ "$1" = guidellm ] && installed "$venv" "$2" "$torch" 2>/dev/null; then
        :
    elif ! installed "$venv" "$2"; then
        echo "$2 could not be installed here: it is left out." >&2
        rm -rf "$venv"
        return 0
    fi
    echo "$2" >"$venv/.installed"
}

for tool; do
    case $tool in
        aiperf) make_one aiperf "aiperf==0.13.0" ;;
        guidellm) make_one guidellm "guidellm==0.8.1" ;;
        llama-benchy) make_one llama-benchy "llama-benchy==0.4.0" ;;
        vllm) sh tests/engines/vllm.sh "$python" || echo "vLLM is left out." >&2 ;;
        *) echo "No such tool: $tool (aiperf, guidellm, llama-benchy, vllm)." >&2; exit 2 ;;
    esac
done
