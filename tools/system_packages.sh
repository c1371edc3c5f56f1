#!/bin/sh
# Makes sure of what comes from the system and not from pip: a C++20 compiler, Python's headers and venv, spdlog, fmt,
# doctest. As root on a Debian or Ubuntu it installs what is missing. Others get spdlog, fmt and doctest, which are headers alone, in
# third_party/, where apt can fetch them; the rest is named in one line.
# Usage: tools/system_packages.sh PYTHON [aarch64|fuzz|test]
# "aarch64" asks for a compiler for that CPU and for QEMU as well, "fuzz" for clang and its libFuzzer, "test" for a browser and for
# Graphviz, which the pictures are made with.
set -eu

python=$1
missing=

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || {
    echo "Python 3.10 or newer is needed; '$python' is $("$python" --version 2>/dev/null || echo not there). Say make PYTHON=/path/to/python3" >&2
    exit 1
}
"$python" -c 'import ensurepip' 2>/dev/null || missing="$missing python3-venv"
"$python" -c 'import os, sysconfig; open(os.path.join(sysconfig.get_path("include"), "Python.h")).close()' 2>/dev/null ||
    missing="$missing python3-dev"

compiler=${CXX:-c++}
version=$("$compiler" -dumpfullversion -dumpversion 2>/dev/null | cut -d. -f1 || true)
[ "${version:-0}" -ge 12 ] || missing="$missing g++"

has_header() {
    echo "#include <$1>" | "$compiler" -E -x c++ -I third_party - >/dev/null 2>&1
}
headers=
has_header spdlog/spdlog.h || headers="$headers libspdlog-dev"
has_header fmt/format.h || headers="$headers libfmt-dev"
has_header doctest/doctest.h || headers="$headers doctest-dev"
if [ -n "$headers" ] && [ "$(id -u)" != 0 ]; then
    rm -rf build/packages
    mkdir -p build/packages third_party
    # shellcheck disable=SC2086 # a list of names
    (cd build/packages && apt-get download -qq $headers >/dev/null 2>&1 && for package in *.deb; do dpkg-deb -x "$package" .; done) &&
        cp -r build/packages/usr/include/* third_party/ && echo "    in third_party:$headers" && headers=
fi
missing="$missing$headers"
if [ "${2:-}" = aarch64 ]; then
    command -v aarch64-linux-gnu-g++ >/dev/null || missing="$missing g++-aarch64-linux-gnu"
    command -v qemu-aarch64 >/dev/null || missing="$missing qemu-user"
elif [ "${2:-}" = fuzz ]; then
    ls "$(clang++ -print-runtime-dir 2>/dev/null)"/libclang_rt.fuzzer* >/dev/null 2>&1 || missing="$missing clang libclang-rt-dev"
elif [ "${2:-}" = test ]; then
    command -v dot >/dev/null || missing="$missing graphviz"
    command -v chromium >/dev/null || missing="$missing chromium"
fi

[ -n "$missing" ] || exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "These system packages are missing:$missing (g++ of version 12 or newer). On Debian or Ubuntu: sudo apt-get install$missing" >&2
    exit 1
fi
echo "    installing system packages:$missing"
apt-get update -qq
# shellcheck disable=SC2086 # a list of names
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
