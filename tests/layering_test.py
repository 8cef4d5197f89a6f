#!/usr/bin/env python3
"""Checks every #include of the product's folders against who may use whom.

Usage: layering_test.py SOURCE_DIR

The table below is the one of docs/architecture.md. tests/ and bench/ may
include anything. Before it judges the tree, the script judges a small tree of
its own in which every kind of violation occurs.
"""

import pathlib
import re
import sys
import tempfile

# Folder: the project's folders it may include, besides itself and base.
MAY_INCLUDE = {
    "base": set(),
    "kernels": set(),
    "model": {"kernels"},
    "scheduler": set(),
    "engine": {"model", "scheduler", "kernels"},
    "server": {"engine", "proto"},
    "tools": {"model", "kernels", "proto"},
}
# Files that may include more.
EXCEPTIONS = [(re.compile(r"tools/(nibble_)?bench"), {"engine"})]

# Folder: the libraries it may include; a folder that is not here: any.
LIBRARIES = {
    "base": {"absl", "spdlog"},
    "kernels": {"absl", "hwy"},
    "model": {"absl", "nlohmann", "pcre2", "utf8proc"},
    "scheduler": {"absl"},
    "engine": {"absl", "nlohmann"},
}
LIBRARY_EXCEPTIONS = [(re.compile(r"kernels/cuda/"), {"cuda"})]

# The scheduler is a pure policy: no clock, no threads.
FORBIDDEN_STANDARD = {
    "scheduler": {"atomic", "chrono", "condition_variable", "mutex", "thread"},
}

GENERATED = ("nibble/v1/", "google/rpc/", "grpc/health/")
SYSTEM_FOLDERS = ("sys/", "netinet/", "arpa/", "net/", "linux/")
SINGLE_HEADER_LIBRARIES = {"pcre2.h": "pcre2", "utf8proc.h": "utf8proc"}
CUDA = re.compile(r"(cuda|cublas|cooperative_groups|mma\.h|nccl|nvtx)")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
SUFFIXES = {".h", ".cc", ".cu", ".cuh", ".inc"}


def classify(quote, target):
    """The kind of an include and its name within that kind."""
    first = target.split("/")[0]
    if target.startswith(GENERATED):
        return "project", "proto"
    if "/" in target and first in MAY_INCLUDE.keys() | {
        "proto",
        "tests",
        "bench",
    }:
        return "project", first
    if target in SINGLE_HEADER_LIBRARIES:
        return "library", SINGLE_HEADER_LIBRARIES[target]
    if CUDA.match(target):
        return "library", "cuda"
    if target.startswith(SYSTEM_FOLDERS):
        return "standard", target
    if "/" in target:
        return "library", first
    return ("standard", target) if quote == "<" else ("relative", target)


def allowed_beyond(exceptions, path):
    return set().union(*(more for at, more in exceptions if at.match(path)))


def complaint(path, quote, target):
    """Why the file may not include it; None if it may."""
    folder = path.split("/")[0]
    kind, name = classify(quote, target)
    if kind == "relative":
        return "includes are relative to the root of the source tree"
    if kind == "project":
        allowed = {folder, "base"} | MAY_INCLUDE[folder]
        allowed |= allowed_beyond(EXCEPTIONS, path)
        if name not in allowed:
            return f"{folder} may not include {name}"
    if kind == "library" and folder in LIBRARIES:
        allowed = LIBRARIES[folder] | allowed_beyond(LIBRARY_EXCEPTIONS, path)
        if name not in allowed:
            return f"{folder} may not use the library {name}"
    if kind == "standard" and name in FORBIDDEN_STANDARD.get(folder, ()):
        return f"{folder} may not use <{name}>"
    return None


def violations(root):
    """The complaints about a tree, and how many includes each folder has."""
    found = []
    includes = dict.fromkeys(MAY_INCLUDE, 0)
    for folder in MAY_INCLUDE:
        for file in sorted((root / folder).rglob("*")):
            if file.suffix not in SUFFIXES:
                continue
            path = file.relative_to(root).as_posix()
            text = file.read_text(encoding="utf-8")
            for number, line in enumerate(text.splitlines(), 1):
                match = INCLUDE.match(line)
                if not match:
                    continue
                includes[folder] += 1
                reason = complaint(path, *match.groups())
                if reason:
                    found.append(f"{path}:{number}: {match[2]}: {reason}")
    return found, includes


GOOD = {
    "base/a.h": ["<vector>", '"absl/status/status.h"', '"spdlog/spdlog.h"'],
    "kernels/a.cc": ['"kernels/a.h"', '"base/check.h"', '"hwy/highway.h"'],
    "kernels/cuda/a.cu": ["<cuda_runtime_api.h>", "<sys/mman.h>"],
    "model/a.cc": ['"kernels/a.h"', "<pcre2.h>", '"nlohmann/json.hpp"'],
    "scheduler/a.cc": ["<vector>", '"scheduler/a.h"', '"base/check.h"'],
    "engine/a.cc": ['"scheduler/a.h"', '"model/a.h"', "<thread>"],
    "server/a.cc": ['"nibble/v1/nibble.pb.h"', '"engine/a.h"'],
    "tools/a.cc": ['"model/a.h"', '"CLI/CLI.hpp"', "<unistd.h>"],
    "tools/nibble_bench.cc": ['"engine/a.h"'],
}
BAD = {
    "base/a.h": ['"kernels/a.h"', '"hwy/highway.h"', '"a.h"'],
    "kernels/a.h": ['"model/a.h"', '"spdlog/spdlog.h"', '"cuda.h"'],
    "kernels/cuda/a.cuh": ['"grpcpp/grpcpp.h"', '"tests/a.h"'],
    "model/a.cc": ['"scheduler/a.h"', '"engine/a.h"', "<grpc/grpc.h>"],
    "scheduler/a.h": ['"model/a.h"', '"kernels/a.h"', "<chrono>", "<thread>"],
    "engine/a.cc": ['"server/a.h"', '"nibble/v1/nibble.pb.h"'],
    "server/a.cc": ['"scheduler/a.h"', '"kernels/a.h"', '"tools/a.h"'],
    "tools/a.cc": ['"engine/a.h"', '"server/a.h"'],
}


def write_tree(root, files):
    for name, targets in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = "".join(f"#include {target}\n" for target in targets)
        path.write_text("// a.h\n" + lines, encoding="utf-8")


def check_itself():
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        write_tree(root / "good", GOOD)
        write_tree(root / "bad", BAD)
        found, _ = violations(root / "good")
        assert not found, f"complains about allowed includes: {found}"
        found, _ = violations(root / "bad")
        for name, targets in BAD.items():
            for number, target in enumerate(targets, 2):
                at = f"{name}:{number}: "
                assert any(line.startswith(at) for line in found), (
                    f"does not see {target} in {name}"
                )
        assert len(found) == sum(map(len, BAD.values())), found


def main():
    check_itself()
    found, includes = violations(pathlib.Path(sys.argv[1]))
    for folder, count in includes.items():
        if count == 0:
            found.append(f"{folder}: no #include found; is this the tree?")
    print("\n".join(found) or f"{sum(includes.values())} includes are in order")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
