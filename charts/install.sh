#!/bin/sh
# Install fleet into a virtual environment, as the image has it. Nothing is compiled, and nothing is
# taken that charts/requirements.txt does not name by its hash. A test takes the same step.
#
#   install.sh DIST TARGET     DIST has one wheel and requirements.txt, as `make dist` leaves them
set -eu
dist=$1
target=$2

python3 -m venv "$target"
"$target/bin/python" -m pip install --no-cache-dir --only-binary :all: --require-hashes \
    --requirement "$dist/requirements.txt"
"$target/bin/python" -m pip install --no-cache-dir --no-index --no-deps "$dist"/fleet_emulator-*.whl
"$target/bin/python" -m pip check
"$target/bin/python" -m pip uninstall --quiet --yes pip
