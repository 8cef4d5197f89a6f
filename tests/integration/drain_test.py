"""SIGTERM: what runs finishes, what comes is refused, the exit code is 0."""

import threading
import time

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from harness import MODEL, Server, eventually
from nibble.v1 import nibble_pb2 as pb

LONG = pb.GenerateRequest(text="Count to a thousand: 1, 2,",
                          sampling=pb.Sampling(temperature=0),
                          stopping=pb.Stopping(max_new_tokens=150,
                                               ignore_eos=True))


def start_stream(stub, request):
    stream = stub.GenerateStream(request)
    next(stream)
    return stream


def test_a_running_stream_survives_sigterm():
    with Server([f"smollm2={MODEL}"]) as server:
        with grpc.insecure_channel(server.target) as channel:
            stub = server.stubs(channel).generation
            seen = []
            watch = health_pb2_grpc.HealthStub(channel).Watch(
                health_pb2.HealthCheckRequest(service="smollm2"))

            def follow():
                try:
                    for update in watch:
                        seen.append(update.status)
                except grpc.RpcError:
                    pass

            follower = threading.Thread(target=follow)
            follower.start()
            eventually(lambda: len(seen) == 1, what="the first health update")
            stream = start_stream(stub, LONG)
            server.terminate()
            eventually(lambda: len(seen) == 2, what="NOT_SERVING")
            assert seen == [
                health_pb2.HealthCheckResponse.SERVING,
                health_pb2.HealthCheckResponse.NOT_SERVING
            ]
            with pytest.raises(grpc.RpcError) as error:
                stub.Generate(pb.GenerateRequest(text="x"))
            assert error.value.code() == grpc.StatusCode.UNAVAILABLE
            chunks = list(stream)
            assert chunks[-1].finish.reason == pb.FINISH_REASON_LENGTH
            assert chunks[-1].finish.usage.generated_tokens == 150
        assert server.process.wait(20) == 0
        follower.join(10)


def test_a_second_sigterm_cancels():
    endless = pb.GenerateRequest()
    endless.CopyFrom(LONG)
    endless.stopping.max_new_tokens = 8000
    with Server([f"smollm2={MODEL}"]) as server:
        with grpc.insecure_channel(server.target) as channel:
            stream = start_stream(server.stubs(channel).generation, endless)
            server.terminate()
            time.sleep(0.3)
            assert server.process.poll() is None
            server.terminate()
            with pytest.raises(grpc.RpcError) as error:
                list(stream)
            assert error.value.code() in (grpc.StatusCode.CANCELLED,
                                          grpc.StatusCode.UNAVAILABLE)
        assert server.process.wait(20) == 0
