"""Starts and stops nibble-server for the tests."""

import json
import os
import pathlib
import signal
import subprocess
import tempfile
import time
import types
import urllib.request

import grpc

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "models/SmolLM2-135M-Instruct.Q4_1.gguf"


def bin_path(name):
    folder = os.environ.get("NIBBLE_BIN", str(ROOT / "build/release/bin"))
    return os.path.join(folder, name)


class Server:
    """A nibble-server on free ports, its log in a file. A context manager."""

    def __init__(self, models, *flags):
        self._work = tempfile.TemporaryDirectory(prefix="nibble_test_")
        work = pathlib.Path(self._work.name)
        self.port_file = work / "port"
        self.log_path = work / "log"
        command = [
            bin_path("nibble-server"), "--listen", "127.0.0.1:0", "--metrics",
            "127.0.0.1:0", "--port-file",
            str(self.port_file)
        ]
        for model in models:
            command += ["--model", model]
        self._log = open(self.log_path, "wb")
        self.process = subprocess.Popen(command + list(flags),
                                        stderr=self._log,
                                        stdout=self._log)
        self._wait()

    def _wait(self):
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise AssertionError("the server ended: " + self.log())
            if self.port_file.exists():
                self.target, metrics = self.port_file.read_text().split()
                self.http = "http://" + metrics
                return
            time.sleep(0.02)
        raise AssertionError("the server did not start: " + self.log())

    def log(self):
        return self.log_path.read_text(errors="replace")

    def stubs(self, channel):
        from nibble.v1 import nibble_pb2_grpc
        return types.SimpleNamespace(
            generation=nibble_pb2_grpc.GenerationStub(channel),
            models=nibble_pb2_grpc.ModelsStub(channel))

    def metrics_text(self):
        with urllib.request.urlopen(self.http + "/metrics", timeout=10) as page:
            return page.read().decode()

    def metrics(self):
        """{(name, (label pairs...)): value} of every sample, parsed strictly."""
        from prometheus_client.parser import text_string_to_metric_families
        samples = {}
        for family in text_string_to_metric_families(self.metrics_text()):
            for sample in family.samples:
                key = (sample.name, tuple(sorted(sample.labels.items())))
                assert key not in samples, f"{key} appears twice"
                samples[key] = sample.value
        return samples

    def metric(self, name, **labels):
        """The sum of the samples of that name with (at least) the labels."""
        return sum(value for (sample, pairs), value in self.metrics().items()
                   if sample == name and labels.items() <= dict(pairs).items())

    def terminate(self):
        self.process.send_signal(signal.SIGTERM)

    def stop(self):
        if self.process.poll() is None:
            self.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise AssertionError("the server did not stop: " + self.log())
        self._log.close()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        try:
            self.stop()
        finally:
            self._work.cleanup()


def write_script(folder, script):
    """Writes a scripted model; returns its --model value."""
    path = pathlib.Path(folder) / "script.json"
    path.write_text(json.dumps(script))
    return f"scripted={'scripted:' + str(path)}"


def eventually(condition, seconds=10, what="the condition"):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return
        time.sleep(0.02)
    raise AssertionError(f"{what} did not come true in {seconds} s")


def channel(server):
    return grpc.insecure_channel(server.target)
