"""Fixtures of the integration tests: generated stubs and running servers."""

import os
import pathlib
import sys
import tempfile

import grpc
import pytest
from grpc_tools import protoc

ROOT = pathlib.Path(__file__).resolve().parents[2]


def _generate_stubs():
    """Python stubs from the project's .proto files, importable."""
    out = tempfile.mkdtemp(prefix="nibble_stubs_")
    proto = ROOT / "proto"
    status = protoc.main([
        "protoc", f"-I{proto}", f"--python_out={out}",
        f"--grpc_python_out={out}", "nibble/v1/nibble.proto"
    ])
    assert status == 0
    sys.path.insert(0, out)


_generate_stubs()

from harness import MODEL, Server  # noqa: E402  (needs the stubs)


@pytest.fixture(scope="session")
def smollm():
    """One server with the real model, shared by the tests that only ask."""
    assert MODEL.exists(), "run scripts/fetch-model"
    with Server([f"smollm2={MODEL}"]) as server:
        yield server


@pytest.fixture
def stubs(smollm):
    with grpc.insecure_channel(smollm.target) as channel:
        yield smollm.stubs(channel)


@pytest.fixture
def bin_dir():
    return pathlib.Path(os.environ.get("NIBBLE_BIN",
                                       ROOT / "build/release/bin"))
