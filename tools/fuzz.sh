#!/bin/sh
# fuzz.sh PYTHON DRIVER SECONDS: libFuzzer at the readers of graphs, schedules and requests, where there is a clang; elsewhere the
# driver that make test-cpp builds (tests/cpp/fuzz). What libFuzzer finds stays in build/fuzz/corpus and is where the next run begins; a
# crash leaves its input in build/fuzz and ends the run.
set -eu
python=$1
driver=$2
seconds=$3

if ! command -v clang++ > /dev/null; then
  printf '==> no clang++: the driver of its own\n'
  exec "$driver" "$seconds"
fi
mkdir -p build/fuzz/corpus build/fuzz/seeds
cmake -S . -B build/fuzz/build -G Ninja -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++ \
  -DPython_EXECUTABLE="$python" -DPOET_BUILD_TORCH=OFF -DPOET_BUILD_TESTS=ON -DPOET_WARNINGS_AS_ERRORS=OFF \
  '-DPOET_SANITIZE=fuzzer-no-link,address,undefined' > build/fuzz/build.log
cmake --build build/fuzz/build --target fuzz_readers >> build/fuzz/build.log
"$driver" --seeds build/fuzz/seeds
cd build/fuzz
exec build/tests/cpp/fuzz/fuzz_readers -max_total_time="$seconds" -max_len=20000 -timeout=20 -rss_limit_mb=4096 -verbosity=0 \
  -print_final_stats=1 corpus seeds
