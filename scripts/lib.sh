# Shared by the scripts beside it: paths and small helpers. Sourced, not run.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
preset=${NIBBLE_PRESET:-release}
build="$root/build/$preset"
bin="$build/bin"
venv="$root/.venv"
cache="$root/.cache"
model_name=SmolLM2-135M-Instruct
model="$root/models/$model_name.Q4_1.gguf"

say() { printf '\033[1m==> %s\033[0m\n' "$*" >&2; }
die() {
  printf '%s: %s\n' "$(basename "$0")" "$*" >&2
  exit 1
}

# Runs a command as root, by sudo if need be.
as_root() {
  if [ "$(id -u)" = 0 ]; then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo "$@"
  else
    die "needs root (or sudo) to run: $*"
  fi
}

# Configures the preset and builds the targets named (all without arguments).
build_targets() {
  local jobs
  jobs=$(nproc)
  cd "$root"
  cmake --preset "$preset" >"$root/build/configure-$preset.log" 2>&1 || {
    cat "$root/build/configure-$preset.log" >&2
    die "configuring the $preset preset failed"
  }
  if [ $# -eq 0 ]; then
    cmake --build --preset "$preset" -j "$jobs" >&2
  else
    cmake --build --preset "$preset" -j "$jobs" --target "$@" >&2
  fi
}
