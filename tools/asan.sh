#!/bin/sh
# Runs the Python tests on a module that is built with the address and undefined-behaviour sanitizers. Fails on a
# failed test and on any report, in a subprocess of a test too.
# Usage: tools/asan.sh [ARGUMENT OF PYTEST]...
set -eu

bin=$PWD/.venv/bin
venv=build/asan/venv
report=$PWD/build/asan/report

# An environment of its own, so that the build in .venv stays as it is. From there come all other packages: a .pth
# file adds the folder, but not what the .pth files in it would install.
"$bin/python" -m venv --without-pip "$venv"
packages='import sysconfig; print(sysconfig.get_path("purelib"))'
"$bin/python" -c "$packages" >"$("$venv/bin/python" -c "$packages")/tools.pth"
PATH="$bin:$PATH" "$bin/python" -m pip --disable-pip-version-check --python "$venv/bin/python" install --quiet \
    --no-build-isolation --no-deps --editable . --config-settings cmake.define.HABANA_MP_SANITIZE=ON --config-settings cmake.define.HABANA_MP_WERROR=ON --config-settings build-dir=build/asan/module

# The programs that pages of the documentation call: those in .venv run the module of the build there.
for program in pytest:pytest torchrun:torch.distributed.run; do
    printf '#!/bin/sh\nexec "%s" -m %s "$@"\n' "$PWD/$venv/bin/python" "${program#*:}" >"$venv/bin/${program%:*}"
    chmod +x "$venv/bin/${program%:*}"
done

# libstdc++ beside libasan: python has none, and the sanitizer looks for __cxa_throw when it starts.
compiler=${CXX:-c++}
preload="$("$compiler" -print-file-name=libasan.so) $("$compiler" -print-file-name=libstdc++.so)"
rm -f "$report".*
failed=0
# libubsan of g++ writes to stderr alone, log_path or not, and ends the process: pytest must not hold it back.
# Leaks are not asked for: Python and torch never free what they make once. tests/cast/test_memory.py sees those of a step.
LD_PRELOAD=$preload PYTHONMALLOC=malloc OMP_NUM_THREADS=1 \
    ASAN_OPTIONS="detect_leaks=0:log_path=$report" UBSAN_OPTIONS=print_stacktrace=1 \
    "$venv/bin/python" -m pytest -m "not unsanitized" -p no:cacheprovider --capture=sys --timeout 1200 "$@" || failed=1
for file in "$report".*; do
    [ -e "$file" ] || continue
    cat "$file"
    failed=1
done
exit $failed
