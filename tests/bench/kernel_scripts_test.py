#!/usr/bin/env python3
"""Tests of bench/summarize_kernels.py and bench/kernel_peers.py without a GPU.

Usage: kernel_scripts_test.py SOURCE_DIR
"""

import contextlib
import io
import math
import pathlib
import re
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(sys.argv.pop()).resolve()
sys.path.insert(0, str(SOURCE / "bench"))

# The path must come first.
import kernel_peers  # noqa: E402
import summarize_kernels as summary  # noqa: E402


def row(path, m, us, shape=(64, 32), fmt="int8", **more):
    fields = {"path": path, "format": fmt, "m": m, "us_cold": us, **more}
    fields["n"], fields["k"] = shape
    return fields


def rows_of(*rows):
    """What summarize_kernels reads from a file of these rows."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "rows.csv"
        labels = {"gpu": "a GPU", "commit": "abc"}
        kernel_peers.append_rows(path, rows, labels)
        return summary.read_rows([path])


def output_of(function, *arguments):
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        function(*arguments)
    return text.getvalue()


class CsvTest(unittest.TestCase):
    def test_peers_write_the_header_of_bench_kernels(self):
        source = (SOURCE / "bench/gpu_rows.cc").read_text(encoding="utf-8")
        literals = re.search(r"kHeader\[\] =(.*?);", source, re.DOTALL)[1]
        header = "".join(re.findall(r'"(.*?)"', literals))
        self.assertEqual(header, kernel_peers.HEADER)

    def test_refuses_a_file_with_another_header(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "rows.csv"
            path.write_text("path,us\n", encoding="utf-8")
            with self.assertRaises(SystemExit):
                kernel_peers.append_rows(path, [row("a", 1, 2)], {})

    def test_later_rows_count_and_wrong_ones_do_not(self):
        rows = rows_of(
            row("a", 1, "3.00"), row("a", 1, "2.00"), row("b", 1, "error")
        )
        self.assertEqual([key.path for key in rows], ["a"])
        self.assertEqual(
            summary.number(next(iter(rows.values())), "us_cold"), 2
        )

    def test_sustained_runs_add_to_rows_with_cold_times(self):
        plain = row("a", 1, "2.00")
        sustained = row("a", 1, "3.00", us_sustained="4.00")
        for order in ((plain, sustained), (sustained, plain)):
            (found,) = rows_of(*order).values()
            self.assertEqual(summary.number(found, "us_cold"), 2)
            self.assertEqual(summary.number(found, "us_sustained"), 4)

    def test_means_of_conditions(self):
        samples = [(1000, 500.0), None, (2000, 600.0)]
        self.assertEqual(kernel_peers.mean_condition(samples), ("1500", "550"))
        self.assertEqual(kernel_peers.mean_condition([None]), ("", ""))


class CrossoverTest(unittest.TestCase):
    def test_least_m_from_which_the_wide_one_stays_faster(self):
        narrow = {1: 1, 2: 4, 4: 3, 8: 8, 16: 16}
        wide = {1: 4, 2: 2, 4: 4, 8: 4, 16: 4}
        self.assertEqual(summary.crossover(narrow, wide), (8, 3 / 4, 2))

    def test_of_the_rows_that_both_have(self):
        narrow = {1: 1, 8: 8, 64: 1}
        wide = {1: 2, 4: 1, 8: 4}
        self.assertEqual(summary.crossover(narrow, wide), (8, 1 / 2, 2))

    def test_from_the_first_m_on(self):
        self.assertEqual(summary.crossover({1: 3}, {1: 2}), (1, None, 1.5))

    def test_none_where_the_last_m_is_not_the_wide_ones(self):
        self.assertIsNone(summary.crossover({1: 2, 2: 1}, {1: 1, 2: 2}))
        self.assertIsNone(summary.crossover({1: 2}, {2: 1}))

    def test_runs_of_the_fastest(self):
        lines = {"a": {1: 1, 2: 2, 4: 9}, "b": {1: 2, 2: 3, 4: 5, 8: 6}}
        self.assertEqual(
            summary.fastest_by_m(lines), [(1, 2, "a"), (4, 8, "b")]
        )

    def test_compares_what_begins_at_the_hidden_state(self):
        rows = rows_of(
            row("w4a16_small_norm", 1, "5.0", fmt="int4"),
            row("w4a16_mid_norm", 1, "4.0", fmt="int4"),
            row("w8a8_int8_row", 1, "1.0"),
            row("w8a8_int8_row_norm", 1, "2.0"),
            row("w8a8_int8_row_quant", 1, "3.0"),
            row("cublas_bf16", 1, "1.0", fmt="bf16"),
            row("cublas_bf16_norm", 1, "9.0", fmt="bf16"),
        )
        self.assertEqual(
            summary.contenders(rows, (64, 32)),
            {
                "w4a16 int4": {1: 4},
                "w8a8_int8_row int8": {1: 3},
                "cublas_bf16 bf16": {1: 9},
            },
        )


class BarTest(unittest.TestCase):
    def test_over_a_peer(self):
        bar = summary.Bar("", "a", "over", "b", m=range(8, 100), each=2)
        rows = rows_of(
            row("a", 4, "1"), row("b", 4, "1"),  # too few rows
            row("a", 8, "2"), row("b", 8, "4"),
            row("a", 16, "2"), row("b", 16, "8"),
            row("a", 32, "2"),  # without a peer
        )  # fmt: skip
        found = summary.ratios(bar, rows)
        self.assertEqual({key.m: found[key] for key in found}, {8: 2, 16: 4})
        self.assertEqual(summary.verdict(bar, [2, 4]), "met")
        self.assertEqual(summary.verdict(bar, [1.99, 4]), "MISSED")

    def test_share_of_a_peer(self):
        bar = summary.Bar("", "a", "of", "b", each=1.03)
        rows = rows_of(row("a", 4, "103"), row("b", 4, "100"))
        self.assertEqual(list(summary.ratios(bar, rows).values()), [1.03])
        self.assertEqual(summary.verdict(bar, [1.03]), "met")
        self.assertEqual(summary.verdict(bar, [1.04]), "MISSED")

    def test_floors_and_percent(self):
        rows = rows_of(row("a", 4, "15", floor_us="10", pct_peak="80"))
        floors = summary.Bar("", "a", "floors", each=1.4)
        percent = summary.Bar("", "a", "percent", each=75)
        self.assertEqual(list(summary.ratios(floors, rows).values()), [1.5])
        self.assertEqual(list(summary.ratios(percent, rows).values()), [80])
        self.assertEqual(summary.verdict(floors, [1.5]), "MISSED")
        self.assertEqual(summary.verdict(percent, [80]), "met")

    def test_other_column_shape_and_format(self):
        bar = summary.Bar(
            "",
            "a",
            "over",
            "b",
            column="us_sustained",
            format="x",
            shapes=((64, 32),),
        )
        rows = rows_of(
            row("a", 1, "1", fmt="x", us_sustained="2"),
            row("b", 1, "1", us_sustained="6"),
            row("a", 1, "1", fmt="y", us_sustained="2"),
            row("a", 1, "1", fmt="x", us_sustained="2", shape=(32, 32)),
            row("b", 1, "1", us_sustained="8", shape=(32, 32)),
            row("a", 2, "1", fmt="x"),  # no sustained run
            row("b", 2, "1"),
        )
        self.assertEqual(list(summary.ratios(bar, rows).values()), [3])

    def test_of_one_of_the_peers_formats(self):
        bar = summary.Bar("", "a", "over", "b", peer_format="x")
        rows = rows_of(
            row("a", 1, "1"), row("b", 1, "3", fmt="x"), row("b", 1, "2")
        )
        self.assertEqual(list(summary.ratios(bar, rows).values()), [3])

    def test_bf16_is_the_one_that_took_turns(self):
        bar = summary.Bar("", "a", "over", "cublas_bf16")
        rows = rows_of(
            row("a", 1, "1", bf16_us="3"),
            row("a", 2, "1"),
            row("cublas_bf16", 1, "4"),
            row("cublas_bf16", 2, "5"),
        )
        self.assertEqual(list(summary.ratios(bar, rows).values()), [3, 5])

    def test_goals_name_paths_that_are_measured(self):
        code = "".join(
            path.read_text(encoding="utf-8")
            for folder in ("bench", "bench/results/h200")
            for path in (SOURCE / folder).iterdir()
            if path.suffix in (".cc", ".csv")
            or path.name == "kernel_peers.py"
        )
        known = set(re.findall(r"\w+", code))
        for bar in summary.BARS:
            for name in filter(None, (bar.path, bar.peer)):
                base = re.sub("_(quant|unfused|norm|with_sums)$", "", name)
                self.assertIn(base, known)

    def test_geometric_mean(self):
        self.assertTrue(math.isclose(summary.geometric_mean([1, 4]), 2))
        bar = summary.Bar("", "a", "over", "b", geomean=2)
        self.assertEqual(summary.verdict(bar, [1, 4.1]), "met")
        self.assertEqual(summary.verdict(bar, [1, 3.9]), "MISSED")
        self.assertEqual(summary.verdict(summary.Bar("", "a", "of"), [1]), "")

    def test_says_which_goals_have_no_rows(self):
        bar = summary.Bar("A goal", "a", "over", "b", each=2)
        self.assertIn("no rows", output_of(summary.print_bar, bar, {}))
        rows = rows_of(row("a", 4, "1"), row("b", 4, "1"))
        text = output_of(summary.print_bar, bar, rows)
        self.assertIn("64x32 int8", text)
        self.assertIn("MISSED", text)


if __name__ == "__main__":
    unittest.main(verbosity=2)
