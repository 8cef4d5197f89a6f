#!/usr/bin/env python3
"""Times other libraries' matrix multiplications, as rows of bench_kernels' CSV.

Needs PyTorch on a GPU: torch_int_mm (torch._int_mm: INT8, an INT32 result, no
scales), torch_fp8_* (torch._scaled_mm: FP8), tinygemm (torch._weight_int4pack_mm: INT4 in groups of 128) and, where
its package is found, marlin (IST-DASLab's kernel: FP16, INT4 in groups of 128).
Run it on the machine and right after the bench_kernels whose rows it joins:

    python3 bench/kernel_peers.py --csv w8a8.csv --m 1024,4096

Measured as in bench_kernels: random operands, each result checked against FP64;
before each call the L2 is emptied by reading 256 MiB and the device waits until
the host is ahead; one pair of events, the median; peers take turns, and after
each call the device rests ten times as long, so that none has the clocks that
another one left behind.
"""

import argparse
import ctypes
import importlib
import importlib.util
import os
import statistics
import sys
import time

HEADER = (
    "path,format,m,n,k,us_cold,us_graph,gbps,tflops,pct_peak,floor_us,bf16_us,"
    "rel_err,mhz_cold,watts_cold,us_sustained,mhz_sustained,watts_sustained,"
    "gpu,commit"
)
GROUP = 128
FLUSH_BYTES = 256 << 20  # several times any L2
ROTATION_BYTES = 600_000_000  # of weights that a sustained run walks through
SPIN_CLOCKS = 400_000  # about 0.2 ms: longer than the host needs to enqueue
REST_FACTOR = 10  # how much longer than a call the device rests after it
BATCH_US = 20_000  # of calls between two events of a sustained run
LAST_S = 1  # of a sustained run: what counts


class Monitor:
    """Clock and power of a GPU, through NVML; without it reads nothing."""

    CLOCK_SM = 1

    def __init__(self, index):
        self.device = ctypes.c_void_p()
        try:
            self.nvml = ctypes.CDLL("libnvidia-ml.so.1")
            failed = (
                self.nvml.nvmlInit_v2()
                or self.nvml.nvmlDeviceGetHandleByIndex_v2(
                    index, ctypes.byref(self.device)
                )
            )
        except OSError as error:
            failed = error
        if failed:
            print(f"without clocks and power: NVML: {failed}")
            self.nvml = None

    def read(self):
        """(MHz, watts), or None."""
        if self.nvml is None:
            return None
        mhz, milliwatts = ctypes.c_uint(), ctypes.c_uint()
        failed = self.nvml.nvmlDeviceGetClockInfo(
            self.device, self.CLOCK_SM, ctypes.byref(mhz)
        ) or self.nvml.nvmlDeviceGetPowerUsage(
            self.device, ctypes.byref(milliwatts)
        )
        return None if failed else (mhz.value, milliwatts.value / 1000)


def mean_condition(samples):
    """(MHz, watts) as CSV fields, empty without samples."""
    samples = [sample for sample in samples if sample is not None]
    if not samples:
        return "", ""
    return tuple(f"{statistics.mean(part):.0f}" for part in zip(*samples))


def copies_for(weight_bytes, sustained):
    return -(-ROTATION_BYTES // weight_bytes) if sustained else 1


class IntMm:
    """torch._int_mm on copies of W [n, k]."""

    path, format, max_error, y_bytes, x_bytes = "torch_int_mm", "int8", 0, 4, 1
    least_m = 17  # it takes no fewer rows

    def __init__(self, torch, n, k, sustained):
        self.torch, self.n, self.k, self.weight_bytes = torch, n, k, n * k
        self.w = [
            torch.randint(-127, 128, (n, k), device="cuda", dtype=torch.int8)
            for _ in range(copies_for(self.weight_bytes, sustained))
        ]

    def prepare(self, m):
        self.x = self.torch.randint(
            -127, 128, (m, self.k), device="cuda", dtype=self.torch.int8
        )

    def run(self, node):
        return self.torch._int_mm(self.x, self.w[node % len(self.w)].t())

    def reference(self, rows):
        return self.x[rows].double() @ self.w[0].double().t()


class ScaledMm:
    """torch._scaled_mm on copies of W [n, k]: cuBLASLt's FP8.

    The algorithm is the first that its heuristic names: bench_kernels' rows of
    the same products (cublas_fp8_*) are the fastest of all it names.
    """

    format, y_bytes, x_bytes, least_m = "e4m3", 2, 1, 1
    by_row = fast = False

    def __init__(self, torch, n, k, sustained):
        self.torch, self.n, self.k, self.weight_bytes = torch, n, k, n * k
        self.max_error = 6e-3 if self.fast else 3e-3
        copies = copies_for(self.weight_bytes, sustained)
        self.w = [self.codes(n) for _ in range(copies)]
        self.w_scales = self.scales(n).t()

    def codes(self, rows):
        normal = self.torch.randn((rows, self.k), device="cuda")
        return normal.to(self.torch.float8_e4m3fn)

    def scales(self, rows):
        size = (rows, 1) if self.by_row else (1, 1)
        return self.torch.rand(size, device="cuda") + 0.5

    def prepare(self, m):
        self.x, self.x_scales = self.codes(m), self.scales(m)

    def run(self, node):
        return self.torch._scaled_mm(
            self.x,
            self.w[node % len(self.w)].t(),
            self.x_scales,
            self.w_scales,
            out_dtype=self.torch.bfloat16,
            use_fast_accum=self.fast,
        )

    def reference(self, rows):
        y = self.x[rows].double() @ self.w[0].double().t()
        x_scales = self.x_scales[rows] if self.by_row else self.x_scales
        return y * x_scales.double() * self.w_scales.double()


class ScaledMmTensor(ScaledMm):
    path = "torch_fp8_tensor"


class ScaledMmTensorFast(ScaledMm):
    path, fast = "torch_fp8_tensor_fast", True


class ScaledMmRow(ScaledMm):
    path, by_row = "torch_fp8_row", True


class ScaledMmRowFast(ScaledMm):
    path, by_row, fast = "torch_fp8_row_fast", True, True


class Int4:
    """Random INT4 weights in groups of 128, and activations of 16 bits.

    values [n, k], FP64, are (code - 8) * scale + zero.
    """

    format, max_error, y_bytes, x_bytes, least_m = "int4-g128", 1e-2, 2, 2, 1

    def __init__(self, torch, n, k, dtype, zeros):
        self.torch, self.n, self.k, self.dtype = torch, n, k, dtype
        self.weight_bytes = n * k // 2 + 4 * n * k // GROUP
        self.codes = torch.randint(
            0, 16, (n, k), device="cuda", dtype=torch.uint8
        )
        shape = (n, k // GROUP, 1)
        self.scales = (torch.rand(shape, device="cuda") + 2).to(dtype) / 1024
        self.zeros = (torch.rand(shape, device="cuda") - 0.5).to(dtype) / 1024
        if not zeros:
            self.zeros.zero_()
        grouped = self.codes.view(n, k // GROUP, GROUP).double() - 8
        self.values = grouped * self.scales.double() + self.zeros.double()
        self.values = self.values.view(n, k)

    def prepare(self, m):
        x = self.torch.rand((m, self.k), device="cuda") * 2 - 1
        self.x = x.to(self.dtype)

    def reference(self, rows):
        return self.x[rows].double() @ self.values.t()


class Tinygemm(Int4):
    """torch._weight_int4pack_mm."""

    path = "tinygemm"

    def __init__(self, torch, n, k, sustained):
        super().__init__(torch, n, k, torch.bfloat16, True)
        # The upper half of a byte is the even column.
        pairs = self.codes[:, ::2] << 4 | self.codes[:, 1::2]
        packed = torch.ops.aten._convert_weight_to_int4pack(pairs, 8)
        copies = copies_for(self.weight_bytes, sustained)
        self.w = [packed.clone() for _ in range(copies)]
        both = torch.cat([self.scales, self.zeros], 2)
        self.scales_and_zeros = both.transpose(0, 1).contiguous()

    def run(self, node):
        return self.torch.ops.aten._weight_int4pack_mm(
            self.x, self.w[node % len(self.w)], GROUP, self.scales_and_zeros
        )


class Marlin(Int4):
    """IST-DASLab's Marlin, from its Python package."""

    path = "marlin"

    def __init__(self, torch, n, k, sustained):
        super().__init__(torch, n, k, torch.float16, False)
        self.marlin = importlib.import_module("marlin")
        self.layer = self.marlin.Layer(k, n, groupsize=GROUP).cuda()
        linear = torch.nn.Linear(k, n, bias=False, device="cuda").half()
        linear.weight.data = self.values.half()
        self.layer.pack(linear, self.scales[:, :, 0])
        copies = copies_for(self.weight_bytes, sustained)
        self.w = [self.layer.B.clone() for _ in range(copies)]

    def prepare(self, m):
        super().prepare(m)
        self.y = self.torch.empty((m, self.n), device="cuda", dtype=self.dtype)

    def run(self, node):
        self.marlin.mul(
            self.x,
            self.w[node % len(self.w)],
            self.y,
            self.layer.s,
            self.layer.workspace,
        )
        return self.y


def wanted_peers(names):
    """The classes to measure, by name; says which are not there."""
    peers = [
        IntMm,
        ScaledMmTensor,
        ScaledMmTensorFast,
        ScaledMmRow,
        ScaledMmRowFast,
        Tinygemm,
    ]
    if importlib.util.find_spec("marlin") is not None:
        peers.append(Marlin)
    else:
        print("without marlin: its package is not installed")
    return [peer for peer in peers if not names or peer.path in names]


def relative_error(peer, m):
    rows = sorted({0, m // 2, m - 1})
    reference = peer.reference(rows)
    result = peer.run(0)[rows].double()
    return float((result - reference).norm() / reference.norm())


class Timer:
    """Times what is enqueued on the current stream."""

    def __init__(self, torch, monitor):
        self.torch, self.monitor = torch, monitor
        self.flush = torch.ones(FLUSH_BYTES // 4, device="cuda")

    def event(self):
        event = self.torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def cold_us(self, run):
        """Of a call whose code is loaded; rests ten times as long afterwards."""
        self.flush.sum()
        self.torch.cuda._sleep(SPIN_CLOCKS)
        begin = self.event()
        run(0)
        end = self.event()
        self.torch.cuda.synchronize()
        us = 1e3 * begin.elapsed_time(end)
        time.sleep(REST_FACTOR * us / 1e6)
        return us

    def sustained(self, run, seconds, expected_us):
        """(us, samples): of the last second of running back to back."""
        calls = max(1, round(BATCH_US / expected_us))
        node, batches, started = 0, [], time.monotonic()
        begin = self.event()
        while time.monotonic() < started + seconds:
            for _ in range(calls):
                run(node)
                node += 1
            end = self.event()
            if batches:  # one batch is always under way
                batches[-1][2].synchronize()
            batches.append((time.monotonic(), begin, end, self.monitor.read()))
            begin = end
        self.torch.cuda.synchronize()
        last = [b for b in batches if b[0] >= batches[-1][0] - LAST_S]
        us = [1e3 * begin.elapsed_time(end) / calls for _, begin, end, _ in last]
        return statistics.mean(us), [sample for *_, sample in last]


def row_of(peer, m, error, cold_us, condition):
    size = peer.weight_bytes + m * (
        peer.x_bytes * peer.k + peer.y_bytes * peer.n
    )
    wrong = not error <= peer.max_error
    return {
        "path": peer.path,
        "format": peer.format,
        "m": m,
        "n": peer.n,
        "k": peer.k,
        "us_cold": "error" if wrong else f"{cold_us:.2f}",
        "gbps": "" if wrong else f"{1e-3 * size / cold_us:.1f}",
        "tflops": ""
        if wrong
        else f"{2e-6 * m * peer.n * peer.k / cold_us:.2f}",
        "rel_err": f"{error:.3g}",
        "mhz_cold": condition[0],
        "watts_cold": condition[1],
    }


def measure(timer, peers, m, options):
    """Rows of all peers for m rows."""
    peers = [peer for peer in peers if m >= peer.least_m]
    errors = []
    for peer in peers:
        peer.prepare(m)
        errors.append(relative_error(peer, m))
    times, samples = [[] for _ in peers], []
    for _ in range(options.repeats):
        for peer, own in zip(peers, times):
            own.append(timer.cold_us(peer.run))
        samples.append(timer.monitor.read())
    condition = mean_condition(samples)
    rows = []
    for peer, error, own in zip(peers, errors, times):
        row = row_of(peer, m, error, statistics.median(own), condition)
        if options.sustained > 0 and row["us_cold"] != "error":
            us, during = timer.sustained(
                peer.run, options.sustained, statistics.median(own)
            )
            row["us_sustained"] = f"{us:.2f}"
            row["mhz_sustained"], row["watts_sustained"] = mean_condition(
                during
            )
        rows.append(row)
    return rows


def append_rows(path, rows, labels):
    """Writes rows behind those that are there; a new file gets the header."""
    if not path:
        return
    new = not os.path.exists(path) or os.path.getsize(path) == 0
    if not new:
        with open(path, encoding="utf-8") as file:
            first = file.readline().rstrip("\n")
        if first != HEADER:
            sys.exit(f"{path} starts with {first!r}, not with {HEADER!r}")
    with open(path, "a", encoding="utf-8") as file:
        if new:
            file.write(HEADER + "\n")
        for row in rows:
            fields = {**row, **labels}
            names = HEADER.split(",")
            file.write(",".join(str(fields.get(n, "")) for n in names) + "\n")


def parse_shape(text):
    n, k = text.split("x")
    return int(n), int(k)


def parse_arguments(arguments):
    def numbers(text):
        return [int(number) for number in text.split(",")]

    def shapes(text):
        return [parse_shape(shape) for shape in text.split(",")]

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--csv", help="append the rows to this file")
    parser.add_argument("--commit", default="-", help="the rows' last column")
    parser.add_argument(
        "--shapes",
        type=shapes,
        default="14336x4096,4096x14336,4096x4096,6144x4096,28672x4096",
        help="weights, NxK, with commas (default: %(default)s)",
    )
    parser.add_argument(
        "--m",
        type=numbers,
        default="1,2,4,8,16,32,64,128,256,512,1024,2048,4096",
        help="rows of activations, with commas (default: %(default)s)",
    )
    parser.add_argument(
        "--paths",
        type=lambda text: text.split(","),
        help="only these, with commas",
    )
    parser.add_argument(
        "--repeats", type=int, default=31, help="default: %(default)s"
    )
    parser.add_argument(
        "--sustained",
        type=float,
        default=0,
        metavar="SECONDS",
        help="also run each so long back to back and time the last second",
    )
    return parser.parse_args(arguments)


def main(arguments):
    options = parse_arguments(arguments)
    if importlib.util.find_spec("torch") is None:
        print("no PyTorch: nothing to measure")
        return
    torch = importlib.import_module("torch")
    if not torch.cuda.is_available():
        print("no CUDA device: nothing to measure")
        return
    torch.manual_seed(0)
    labels = {
        "gpu": torch.cuda.get_device_name().replace(",", " "),
        "commit": options.commit.replace(",", " "),
    }
    timer = Timer(torch, Monitor(torch.cuda.current_device()))
    classes = wanted_peers(options.paths)
    for n, k in options.shapes:
        sustained = options.sustained > 0
        peers = [make(torch, n, k, sustained) for make in classes]
        for m in options.m:
            rows = measure(timer, peers, m, options)
            append_rows(options.csv, rows, labels)
            for row in rows:
                print(
                    f"{row['path']:<22} {row['format']:<9} {n:>5}x{k:<5} "
                    f"M {m:<5} {row['us_cold']:>8} us cold, sustained "
                    f"{row.get('us_sustained', '-')}, "
                    f"error {row['rel_err']}",
                    flush=True,
                )


if __name__ == "__main__":
    main(sys.argv[1:])
