#!/usr/bin/env python3
"""Writes dequant.bin: random blocks and what the gguf package makes of them.

Usage: make_dequant.py OUT   (needs the PyPI packages gguf and numpy)

For each format, little endian: 8 bytes name (zero padded), int32 number of
blocks, int32 bytes per block, int32 elements per block, the blocks, then the
FP32 elements.
"""

import struct
import sys

import gguf
import numpy as np

SEED = 20240607
# Format: number of blocks, byte offsets of the FP16 scales in a block.
FORMATS = {
    "F32": (64, []),
    "F16": (512, [0]),
    "BF16": (512, []),
    "Q4_0": (32, [0]),
    "Q4_1": (32, [0, 2]),
    "Q5_0": (32, [0]),
    "Q5_1": (32, [0, 2]),
    "Q8_0": (32, [0]),
    "Q4_K": (10, [0, 2]),
    "Q5_K": (10, [0, 2]),
    "Q6_K": (10, [208]),
}
# FP16 scales that every format meets first: +0, -0, the least and the
# greatest subnormal, the greatest finite, each also negative.
SPECIAL_HALVES = [0x0000, 0x8000, 0x0001, 0x83FF, 0x7BFF, 0xFBFF, 0x8001]


def random_halves(rng, count):
    """Finite halves, any exponent; the special ones first."""
    halves = rng.integers(0, 0x10000, size=count, dtype=np.uint16)
    infinite = (halves & 0x7C00) == 0x7C00
    halves[infinite] &= 0xBFFF  # a smaller exponent
    halves[: len(SPECIAL_HALVES)] = SPECIAL_HALVES[:count]
    return halves


def main():
    rng = np.random.default_rng(SEED)
    with open(sys.argv[1], "wb") as out:
        for name, (blocks, halves) in FORMATS.items():
            kind = gguf.GGMLQuantizationType[name]
            elements, size = gguf.GGML_QUANT_SIZES[kind]
            data = rng.integers(0, 256, size=(blocks, size), dtype=np.uint8)
            for offset in halves:
                values = random_halves(rng, blocks).view(np.uint8)
                data[:, offset : offset + 2] = values.reshape(blocks, 2)
            raw = data
            if name == "F32":
                raw = data.view(np.float32)
            elif name == "F16":
                raw = data.view(np.float16)
            floats = gguf.quants.dequantize(raw, kind).astype(np.float32)
            out.write(name.lower().encode().ljust(8, b"\0"))
            out.write(struct.pack("<3i", blocks, size, elements))
            out.write(data.tobytes())
            out.write(floats.tobytes())


if __name__ == "__main__":
    main()
