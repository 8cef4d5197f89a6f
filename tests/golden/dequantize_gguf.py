#!/usr/bin/env python3
"""Writes a copy of a GGUF file with every tensor dequantized to F32.

Needs the PyPI packages gguf and numpy. The result is what an independent FP32
implementation runs to give Nibble's golden numbers (see README.md here):

  dequantize_gguf.py SmolLM2-135M-Instruct.Q4_1.gguf smollm2-f32.gguf
"""

import argparse
import sys

import gguf
import numpy as np

# Keys the writer sets itself.
OWN_KEYS = {"GGUF.version", "GGUF.tensor_count", "GGUF.kv_count",
            "general.architecture", "general.file_type",
            "general.quantization_version"}


def copy_metadata(reader, writer):
    for key, field in reader.fields.items():
        if key in OWN_KEYS:
            continue
        kind = field.types[0]
        element = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(key, field.contents(), kind, sub_type=element)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("source")
    parser.add_argument("target")
    args = parser.parse_args()

    reader = gguf.GGUFReader(args.source)
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(args.target, architecture)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    copy_metadata(reader, writer)
    for tensor in reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        shape = tuple(int(d) for d in reversed(tensor.shape))
        writer.add_tensor(tensor.name,
                          np.asarray(values, dtype=np.float32).reshape(shape))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    print(f"{args.target}: {len(reader.tensors)} tensors, F32",
          file=sys.stderr)


if __name__ == "__main__":
    main()
