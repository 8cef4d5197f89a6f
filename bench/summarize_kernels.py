#!/usr/bin/env python3
"""Reads bench_kernels' CSV files: times by M, crossovers, and the bars.

Times are those with a cold L2, microseconds. Of rows that occur more than once
the last counts, but rows with a sustained run add only that to others: their
cold times had other turns. Rows whose result was wrong are left out. Files
should be of one run: a ratio of numbers of two runs says little.
"""

import argparse
import collections
import csv
import dataclasses
import math
import sys

# What one row is about.
Key = collections.namedtuple("Key", "path format n k m")

LARGE = range(1024, 1 << 30)  # M where a GPU is limited by arithmetic
ANY_M = range(1, 1 << 30)
SUSTAINED = ("us_sustained", "mhz_sustained", "watts_sustained")


def read_rows(files):
    """{Key: the row's columns}."""
    rows = {}
    for name in files:
        with open(name, newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                numbers = (int(row[column]) for column in ("n", "k", "m"))
                key = Key(row["path"], row["format"], *numbers)
                if row["us_cold"] != "error":
                    rows[key] = merged(rows.get(key), row)
    return rows


def merged(old, new):
    """One row of two: the sustained run of either, the cold times of the other.

    Without an old row, or with sustained runs in none, the new one.
    """
    if old is None:
        return new
    cold, sustained = (old, new) if number(new, "us_sustained") else (new, old)
    return {**cold, **{column: sustained.get(column) for column in SUSTAINED}}


def number(row, column):
    """The row's number, or None where the run or the file has none."""
    text = row.get(column)
    return float(text) if text else None


@dataclasses.dataclass(frozen=True)
class Bar:
    """A goal for one path's rows: each of their ratios, and their mean."""

    text: str
    path: str
    # What the ratio is: PEER's time over the path's ("over"), the path's time
    # over PEER's ("of"), its time in read floors ("floors") or its percent of
    # the device's peak ("percent").
    kind: str
    peer: str = ""
    column: str = "us_cold"
    format: str = ""  # empty: any
    peer_format: str = ""  # empty: the fastest of all
    m: range = ANY_M
    shapes: tuple = ()  # (n, k); empty: any
    each: float = 0  # 0: only reported
    geomean: float = 0

    def at_most(self):
        return self.kind in ("of", "floors")


def bars_of_quantization(path, name, least):
    """What quantizing costs a path, and what is left of its gain over BF16."""
    return [
        Bar(
            f"{name} with norm and fused quantization over BF16 with norm",
            f"{path}_quant",
            "over",
            "cublas_bf16_norm",
            m=LARGE,
            each=least,
        ),
        Bar(
            f"{name} with norm and fused quantization over BF16 alone",
            f"{path}_quant",
            "over",
            "cublas_bf16",
            m=LARGE,
        ),
        Bar(
            f"{name}: fused quantization adds to norm + GEMM",
            f"{path}_quant",
            "of",
            f"{path}_norm",
            m=range(512, 1 << 30),
            each=1.03,
        ),
        Bar(
            f"{name}: quantization by a kernel of its own adds",
            f"{path}_unfused",
            "of",
            f"{path}_norm",
            m=range(512, 1 << 30),
        ),
    ]


def sustained(name, path, peer, least):
    return Bar(
        f"Sustained, {name} over {peer}",
        path,
        "over",
        peer,
        column="us_sustained",
        each=least,
    )


def over_llama_cpp(path, least):
    """Both as nodes of a graph; llama.cpp's time has its own quantization."""
    return Bar(
        f"{path} over llama.cpp on Q4_K",
        path,
        "over",
        "llama_cpp",
        column="us_graph",
        peer_format="q4_k",
        m=range(512, 1 << 30),
        each=least,
    )


def bars_of_w4a8(path, fmt):
    layer = ((14336, 4096),)
    name = f"{path} {fmt}"
    return [
        Bar(
            f"{name}, read floors",
            path,
            "floors",
            format=fmt,
            m=range(16, 17),
            shapes=layer,
            each=1.35,
        ),
        Bar(
            f"{name}, read floors",
            path,
            "floors",
            format=fmt,
            m=range(32, 65),
            shapes=layer,
            each=1.6,
        ),
        Bar(
            f"{name} over BF16",
            path,
            "over",
            "cublas_bf16",
            format=fmt,
            m=LARGE,
            shapes=layer,
            each=1.5,
        ),
    ]


def copying(path, k):
    return Bar(
        f"{path}, percent of the copying bandwidth",
        path,
        "percent",
        m=range(4096, 4097),
        shapes=((0, k),),
        each=75,
    )


BARS = [
    Bar(
        "INT8 over torch._int_mm",
        "w8a8_int8_row",
        "over",
        "torch_int_mm",
        m=LARGE,
        each=1.65,
        geomean=1.8,
    ),
    Bar(
        "FP8 promoted over cuBLASLt per tensor",
        "w8a8_fp8_row",
        "over",
        "cublas_fp8_tensor",
        m=LARGE,
        each=0.99,
        geomean=1.02,
    ),
    Bar(
        "FP8 plain over cuBLASLt per tensor, fast",
        "w8a8_fp8_row_fast",
        "over",
        "cublas_fp8_tensor_fast",
        m=LARGE,
        each=0.95,
        geomean=1.0,
    ),
    Bar(
        "FP8 promoted over torch._scaled_mm per tensor",
        "w8a8_fp8_row",
        "over",
        "torch_fp8_tensor",
        m=LARGE,
        each=0.99,
        geomean=1.02,
    ),
    Bar(
        "FP8 plain over torch._scaled_mm per tensor, fast",
        "w8a8_fp8_row_fast",
        "over",
        "torch_fp8_tensor_fast",
        m=LARGE,
        each=0.95,
        geomean=1.0,
    ),
    Bar(
        "FP8 promoted over torch._scaled_mm per row, few rows",
        "w8a8_fp8_row",
        "over",
        "torch_fp8_row",
        m=range(1, 65),
        each=1.25,
    ),
    Bar(
        "FP8 promoted over cuBLASLt per row, few rows",
        "w8a8_fp8_row",
        "over",
        "cublas_fp8_row",
        m=range(1, 65),
        each=1.25,
    ),
    Bar(
        "FP8 in blocks over cuBLASLt in blocks",
        "w8a8_fp8_block",
        "over",
        "cublas_fp8_block",
        m=range(512, 1 << 30),
        each=1.08,
    ),
    *bars_of_quantization("w8a8_int8_row", "INT8", 1.75),
    *bars_of_quantization("w8a8_fp8_row", "FP8 promoted", 1.65),
    *bars_of_quantization("w8a8_fp8_row_fast", "FP8 plain", 1.65),
    *bars_of_quantization("w8a8_fp8_block", "FP8 in blocks", 0),
    sustained("INT8", "w8a8_int8_row", "torch_int_mm", 1.5),
    sustained("FP8 promoted", "w8a8_fp8_row", "cublas_fp8_tensor", 1.0),
    sustained("FP8 promoted", "w8a8_fp8_row", "cublas_fp8_row", 1.0),
    sustained("FP8 promoted", "w8a8_fp8_row", "torch_fp8_tensor", 1.0),
    sustained("FP8 plain", "w8a8_fp8_row_fast", "cublas_fp8_tensor_fast", 1.0),
    sustained("FP8 plain", "w8a8_fp8_row_fast", "cublas_fp8_row_fast", 1.0),
    sustained("FP8 plain", "w8a8_fp8_row_fast", "torch_fp8_tensor_fast", 1.0),
    sustained("FP8 in blocks", "w8a8_fp8_block", "cublas_fp8_block", 1.0),
    over_llama_cpp("q4k_int8_with_sums", 3),
    over_llama_cpp("q4k_int8_quant", 3),
    over_llama_cpp("q4k_int8_rerounded", 5),
    over_llama_cpp("q4k_int8_rerounded_quant", 5),
    *bars_of_w4a8("w4a8_int8", "int4-g128"),
    *bars_of_w4a8("w4a8_int8", "int4s-g128"),
    *bars_of_w4a8("w4a8_int8_rerounded", "int4-g128"),
    copying("quant_norm", 4096),
    copying("quant_silu_mul", 14336),
]


def time_of_peer(bar, rows, key):
    """The peer's least time at the n, k and m of `key`.

    That of BF16 is the one that took turns with the row, if one did.
    """
    if bar.peer == "cublas_bf16" and bar.column == "us_cold":
        in_turns = number(rows[key], "bf16_us")
        if in_turns is not None:
            return in_turns
    times = [
        number(row, bar.column)
        for other, row in rows.items()
        if other.path == bar.peer
        and (other.n, other.k, other.m) == (key.n, key.k, key.m)
        and bar.peer_format in ("", other.format)
    ]
    return min((time for time in times if time is not None), default=None)


def ratios(bar, rows):
    """{Key: ratio} of the rows that the bar is about."""
    found = {}
    for key, row in sorted(rows.items()):
        if (
            key.path != bar.path
            or (bar.format and key.format != bar.format)
            or key.m not in bar.m
            or (bar.shapes and (key.n, key.k) not in bar.shapes)
        ):
            continue
        own = number(row, bar.column)
        if bar.kind == "percent":
            own, other = 1, number(row, "pct_peak")
        elif bar.kind == "floors":
            own, other = number(row, "floor_us"), own
        else:
            other = time_of_peer(bar, rows, key)
            if bar.kind == "of":
                own, other = other, own
        if own and other:
            found[key] = other / own
    return found


def geometric_mean(values):
    return math.exp(sum(math.log(value) for value in values) / len(values))


def verdict(bar, values):
    """met, MISSED, or nothing where there is no goal."""
    goals = []
    if bar.each:
        goals += [
            value <= bar.each if bar.at_most() else value >= bar.each
            for value in values
        ]
    if bar.geomean:
        goals.append(geometric_mean(values) >= bar.geomean)
    if not goals:
        return ""
    return "met" if all(goals) else "MISSED"


def print_bar(bar, rows):
    found = ratios(bar, rows)
    goal = []
    if bar.each:
        goal.append(f"each {'<=' if bar.at_most() else '>='} {bar.each:g}")
    if bar.geomean:
        goal.append(f"mean >= {bar.geomean:g}")
    print(f"{bar.text} ({', '.join(goal) or 'no goal'})")
    if not found:
        print("    no rows")
        return
    lines = collections.defaultdict(list)
    for key, value in found.items():
        lines[f"{key.n}x{key.k} {key.format}"].append((key.m, value))
    for name, points in lines.items():
        text = "  ".join(f"{m}: {value:.3g}" for m, value in sorted(points))
        print(f"    {name:<22} {text}")
    values = list(found.values())
    print(
        f"    geometric mean {geometric_mean(values):.3f}, least "
        f"{min(values):.3f}, greatest {max(values):.3f}  {verdict(bar, values)}"
    )


def times_by_path(rows, shape):
    """{path format: {m: us}} of a shape."""
    times = collections.defaultdict(dict)
    for key, row in rows.items():
        us = number(row, "us_cold")
        if (key.n, key.k) == shape and us is not None:
            times[f"{key.path} {key.format}"][key.m] = us
    return times


def shapes_of(rows):
    """Of matrices, as they come in the files."""
    return list(dict.fromkeys((key.n, key.k) for key in rows if key.n > 0))


def print_table(rows, shape):
    times = times_by_path(rows, shape)
    if not times:
        return
    ms = sorted({m for line in times.values() for m in line})
    print(f"\n{shape[0]} x {shape[1]}, microseconds with a cold L2, by M")
    print(f"{'':<36}" + "".join(f"{m:>9}" for m in ms))
    for name, line in sorted(times.items()):
        cells = (f"{line[m]:>9.2f}" if m in line else f"{'-':>9}" for m in ms)
        print(f"{name:<36}" + "".join(cells))


def contenders(rows, shape):
    """{name: {m: us}}: what a layer takes from its hidden state on.

    Paths with 8-bit activations with the quantization that comes first
    (_quant), others with the norm alone (_norm). The kernels of W4A16 are one
    contender, as a plan takes the fastest of them.
    """
    found = collections.defaultdict(dict)
    quantized = {key.path for key in rows if key.path.endswith("_quant")}
    for key, row in rows.items():
        us = number(row, "us_cold")
        if (key.n, key.k) != shape or us is None:
            continue
        path, _, variant = key.path.rpartition("_")
        takes_16_bits = variant == "norm" and f"{path}_quant" not in quantized
        if variant == "quant" or takes_16_bits:
            name = "w4a16" if path.startswith("w4a16") else path
            line = found[f"{name} {key.format}"]
            line[key.m] = min(us, line.get(key.m, math.inf))
    return dict(found)


def crossover(narrow, wide):
    """(M, ratio before, ratio there): from M on `wide` is always faster.

    Both are {m: us}; M is the least such of those that both have. The ratios
    are of narrow's time to wide's, at the M before (None: there is none) and
    at M. None where the last M is not wide's.
    """
    ms = sorted(narrow.keys() & wide.keys())
    faster = [narrow[m] > wide[m] for m in ms]
    if not faster or not faster[-1]:
        return None
    first = len(ms)
    while first > 0 and faster[first - 1]:
        first -= 1
    before = ms[first - 1] if first > 0 else None
    return (
        ms[first],
        narrow[before] / wide[before] if first > 0 else None,
        narrow[ms[first]] / wide[ms[first]],
    )


def fastest_by_m(lines):
    """[(first M, last M, name)]: who is fastest, of those measured at each M."""
    runs = []
    for m in sorted({m for line in lines.values() for m in line}):
        name = min((line[m], name) for name, line in lines.items() if m in line)
        if runs and runs[-1][2] == name[1]:
            runs[-1] = (runs[-1][0], m, name[1])
        else:
            runs.append((m, m, name[1]))
    return runs


def print_crossovers(rows, shape):
    lines = contenders(rows, shape)
    if len(lines) < 2:
        return
    print(f"\n{shape[0]} x {shape[1]}, norm and quantization included")
    for first, last, name in fastest_by_m(lines):
        print(f"    fastest from M = {first} to {last}: {name}")
    narrow = [name for name in lines if name.startswith(("w4a16", "w4a8"))]
    wide = [name for name in lines if name.startswith("w8a8")]
    for one in narrow:
        for other in wide:
            found = crossover(lines[one], lines[other])
            if found is None:
                print(f"    {other} never stays faster than {one}")
                continue
            m, before, there = found
            less = "at the least M" if before is None else f"{before:.2f} before"
            print(
                f"    {other} is faster than {one} from M = {m} "
                f"({there:.2f} times; {less})"
            )


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("csv", nargs="+", help="what bench_kernels --csv wrote")
    parser.add_argument(
        "--only",
        choices=("tables", "crossovers", "bars"),
        help="only this part",
    )
    return parser.parse_args(arguments)


def main(arguments):
    options = parse_arguments(arguments)
    rows = read_rows(options.csv)
    if not rows:
        sys.exit(f"{', '.join(options.csv)}: no rows")
    if options.only in (None, "tables"):
        for shape in shapes_of(rows):
            print_table(rows, shape)
    if options.only in (None, "crossovers"):
        for shape in shapes_of(rows):
            print_crossovers(rows, shape)
    if options.only in (None, "bars"):
        for bar in BARS:
            print_bar(bar, rows)


if __name__ == "__main__":
    main(sys.argv[1:])
