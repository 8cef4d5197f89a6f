"""Streams opened and dropped leave nothing behind."""

import grpc
from harness import MODEL, Server, eventually
from nibble.v1 import nibble_pb2 as pb


def resident_bytes(server):
    with open(f"/proc/{server.process.pid}/statm") as file:
        return int(file.read().split()[1]) * 4096


def accounted(server):
    """received = finished by reason + rejected + in flight."""
    samples = server.metrics()

    def total(name):
        return sum(v for (sample, _), v in samples.items() if sample == name)

    return (total("nibble_requests_received_total") ==
            total("nibble_request_total") +
            total("nibble_admission_rejections_total") +
            total("nibble_num_requests_running") +
            total("nibble_num_requests_waiting"))


def idle(server):
    samples = server.metrics()
    return all(value == 0 for (name, _), value in samples.items()
               if name in ("nibble_num_requests_running",
                           "nibble_num_requests_waiting",
                           "nibble_kv_cache_usage_perc"))


def open_and_drop(stub, count):
    request = pb.GenerateRequest(
        text="Tell me a long story.",
        stopping=pb.Stopping(max_new_tokens=1000, ignore_eos=True))
    for _ in range(count):
        stream = stub.GenerateStream(request)
        next(stream)
        stream.cancel()


def test_five_hundred_dropped_streams_leave_nothing():
    with Server([f"smollm2={MODEL}"]) as server:
        with grpc.insecure_channel(server.target) as channel:
            stub = server.stubs(channel).generation
            open_and_drop(stub, 100)  # warm: pools and caches grow once
            eventually(lambda: idle(server), what="idle gauges")
            before = resident_bytes(server)
            open_and_drop(stub, 500)
            eventually(lambda: idle(server), what="idle gauges")
            grown = resident_bytes(server) - before
            assert grown < 8 << 20, f"resident memory grew by {grown} bytes"
            answer = stub.Generate(
                pb.GenerateRequest(text="Hello",
                                   stopping=pb.Stopping(max_new_tokens=3)))
            assert answer.outputs[0].finish.usage.generated_tokens > 0
            eventually(lambda: idle(server), what="idle gauges")
            assert accounted(server)
            assert server.metric("nibble_requests_received_total") == 601
            assert server.metric("nibble_request_total",
                                 finish_reason="cancelled") == 600
