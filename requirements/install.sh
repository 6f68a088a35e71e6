#!/bin/sh
# Makes .venv, installs the locked dependencies and the project into it. Called by make as: install.sh PYTHON
#
# Needs Python 3.11 or newer and the package registry that pip or uv is configured for; none is named here. uv, pinned
# like everything else, does the installing: measured cold, 12 s where pip takes 67 s. What pip is told of the registry
# is handed on to it, as far as uv has the same setting; where that does not suffice, pip does the work itself.
set -eu

python=$1
cd "$(dirname "$0")/.."

say() { echo "install: $*"; }
stop() { echo "install: $*" >&2; exit 1; }

describe='import sys; print("%d.%d.%d" % sys.version_info[:3])'
recent='import sys; sys.exit(sys.version_info < (3, 11))'
version=$("$python" -c "$describe" 2>/dev/null) ||
    stop "reshard needs Python 3.11 or newer, and '$python' cannot be run: install one, or name it: make PYTHON=/path/to/python3.12 …"
"$python" -c "$recent" ||
    stop "reshard needs Python 3.11 or newer, '$python' is $version: install a newer one, or name it: make PYTHON=/path/to/python3.12 …"

venv=.venv/bin/python
if [ "$("$venv" -c "import pip; $describe" 2>/dev/null)" != "$version" ]; then
    say "making .venv with Python $version"
    "$python" -m venv --clear .venv ||
        stop "'$python' could not make a virtual environment; on Debian and Ubuntu the package python3-venv is missing then"
fi

# told to pip by its files or PIP_INDEX_URL; uv reads neither
index=${PIP_INDEX_URL:-$("$venv" -m pip config get global.index-url 2>/dev/null || true)}
if [ -n "$index" ] && [ -z "${UV_DEFAULT_INDEX:-}${UV_INDEX_URL:-}" ]; then
    export UV_DEFAULT_INDEX="$index"
fi
certificates=${PIP_CERT:-$("$venv" -m pip config get global.cert 2>/dev/null || true)}
if [ -n "$certificates" ] && [ -z "${SSL_CERT_FILE:-}" ]; then
    export SSL_CERT_FILE="$certificates"
fi

pip_install() { "$venv" -m pip install --quiet --disable-pip-version-check --no-deps "$@"; }

say "installing the locked dependencies"
# bytecode is compiled now: it halves the first start of Prefect
{ pip_install --require-hashes --requirement requirements/installer.lock &&
    "$venv" -m uv pip sync --quiet --python "$venv" --require-hashes --compile-bytecode requirements/dev.lock; } || {
    say "uv could not install them; trying with pip, which takes longer"
    pip_install --require-hashes --requirement requirements/dev.lock
}

say "installing reshard"
pip_install --no-build-isolation --editable .
