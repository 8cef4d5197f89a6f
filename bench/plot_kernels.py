#!/usr/bin/env python3
"""Draws bench_kernels' CSV: time over M, a picture a shape, a line a path.

The dashed line is the time of only reading the weights. Of rows that occur
more than once the last counts; rows whose result was wrong are left out.
"""

import argparse
import collections
import csv
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.ticker import ScalarFormatter

PEER_FORMATS = ("bf16", "fp16", "fp8", "int8")
COLUMNS = 3  # of pictures


def read_rows(path):
    rows = {}
    with open(path, newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["us_cold"] == "error":
                continue
            shape = (int(row["n"]), int(row["k"]))
            rows[row["path"], row["format"], shape, int(row["m"])] = row
    return rows


def lines_of(rows, shape, formats, column):
    """(path, format): [(m, microseconds)], and the floors [(m, us)]."""
    lines = collections.defaultdict(list)
    floors = {}
    for (path, fmt, at, m), row in sorted(rows.items()):
        if at != shape or fmt not in formats + list(PEER_FORMATS):
            continue
        if path.endswith("_norm") or not row[column]:  # --cold-only
            continue
        lines[path, fmt].append((m, float(row[column])))
        if fmt == formats[0]:
            floors[m] = float(row["floor_us"])
    return lines, sorted(floors.items())


def draw_shape(axes, rows, shape, formats, column):
    lines, floors = lines_of(rows, shape, formats, column)
    for (path, fmt), points in lines.items():
        label = path if fmt in PEER_FORMATS else f"{path} {fmt}"
        axes.plot(*zip(*points), marker="o", markersize=3, label=label)
    if floors:
        axes.plot(*zip(*floors), "k--", linewidth=1, label="read floor")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(ScalarFormatter())
    axes.set_title(f"{shape[0]} x {shape[1]}")
    axes.set_xlabel("M, rows of activations")
    axes.set_ylabel("microseconds")
    axes.grid(True, which="both", alpha=0.3)
    axes.legend(fontsize=7)


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("csv", help="what bench_kernels --csv wrote")
    parser.add_argument("png", help="the picture to write")
    parser.add_argument(
        "--formats",
        default="int4-g128",
        help="weight formats to draw, with commas (default: %(default)s)",
    )
    parser.add_argument(
        "--time",
        default="us_cold",
        choices=("us_cold", "us_graph"),
        help="which time (default: %(default)s)",
    )
    return parser.parse_args(arguments)


def main(arguments):
    options = parse_arguments(arguments)
    rows = read_rows(options.csv)
    formats = options.formats.split(",")
    shapes = list(dict.fromkeys(key[2] for key in rows if key[1] in formats))
    if not shapes:
        sys.exit(f"{options.csv}: no rows of {options.formats}")
    columns = min(COLUMNS, len(shapes))
    height = -(-len(shapes) // columns)
    figure, grid = plt.subplots(
        height, columns, figsize=(5 * columns, 4 * height), squeeze=False
    )
    for axes, shape in zip(grid.flat, shapes):
        draw_shape(axes, rows, shape, formats, options.time)
    for axes in list(grid.flat)[len(shapes) :]:
        axes.set_visible(False)
    gpus = sorted({row["gpu"] for row in rows.values()})
    how = {"us_cold": "one launch, L2 cold", "us_graph": "a node of a graph"}
    figure.suptitle(f"{', '.join(gpus)}: y = x Wᵀ, {how[options.time]}")
    figure.tight_layout()
    figure.savefig(options.png, dpi=120)


if __name__ == "__main__":
    main(sys.argv[1:])
