"""A real Prometheus scrapes the server and answers queries about it."""

import json
import pathlib
import re
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request

import grpc
import pytest
from harness import MODEL, ROOT, Server, eventually
from nibble.v1 import nibble_pb2 as pb

PROMETHEUS = ROOT / ".cache/prometheus/usr/bin/prometheus"
PROMTOOL = ROOT / ".cache/prometheus/usr/bin/promtool"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Prometheus:
    """Debian's prometheus, scraping one server each second."""

    def __init__(self, folder, server):
        self.port = free_port()
        config = pathlib.Path(folder) / "prometheus.yml"
        config.write_text(
            json.dumps({
                "global": {
                    "scrape_interval": "1s",
                    "scrape_timeout": "1s"
                },
                "scrape_configs": [{
                    "job_name": "nibble",
                    "static_configs": [{
                        "targets": [server.http.removeprefix("http://")]
                    }]
                }]
            }))
        self.process = subprocess.Popen([
            str(PROMETHEUS), f"--config.file={config}",
            f"--storage.tsdb.path={folder}/data",
            f"--web.listen-address=127.0.0.1:{self.port}",
            "--log.level=warn"
        ])

    def query(self, expression):
        """[(labels, value)] of an instant query; empty while it starts."""
        url = (f"http://127.0.0.1:{self.port}/api/v1/query?" +
               urllib.parse.urlencode({"query": expression}))
        try:
            with urllib.request.urlopen(url, timeout=5) as page:
                answer = json.load(page)
        except OSError:
            return []
        assert answer["status"] == "success", answer
        return [(entry["metric"], float(entry["value"][1]))
                for entry in answer["data"]["result"]]

    def value(self, expression):
        result = self.query(expression)
        return result[0][1] if result else None

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.process.terminate()
        self.process.wait(20)


@pytest.fixture(scope="module")
def served():
    with Server([f"smollm2={MODEL}"]) as server:
        yield server


def generate(server, count, tokens):
    with grpc.insecure_channel(server.target) as channel:
        stub = server.stubs(channel).generation
        for i in range(count):
            list(
                stub.GenerateStream(
                    pb.GenerateRequest(text=f"Number {i} is",
                                       stopping=pb.Stopping(
                                           max_new_tokens=tokens,
                                           ignore_eos=True))))


def test_every_number_is_there_and_zero_before_the_first_request():
    with Server([f"smollm2={MODEL}"]) as server:
        first = server.metrics_text()
        assert first == server.metrics_text()
        samples = server.metrics()
        moving = [
            key for key, value in samples.items()
            if value != 0 and key[0].endswith(("_total", "_sum", "_count"))
        ]
        assert moving == []
        for value in samples.values():
            assert value == value  # not NaN
        for name in ("num_requests_running", "num_requests_waiting",
                     "kv_cache_usage_perc"):
            assert server.metric("nibble_" + name, model_name="smollm2") == 0
            assert any(sample == "nibble_" + name for sample, _ in samples)


def test_the_exposition_passes_promtool(served):
    generate(served, 1, 4)
    check = subprocess.run([str(PROMTOOL), "check", "metrics"],
                           input=served.metrics_text().encode(),
                           capture_output=True)
    assert check.returncode in (0, 3), check.stderr  # 3: lint remarks only
    assert b"error" not in check.stderr.lower(), check.stderr


def test_prometheus_scrapes_and_answers(served, tmp_path):
    tokens_before = served.metric("nibble_generation_tokens_total")
    with Prometheus(tmp_path, served) as prometheus:
        eventually(lambda: prometheus.value('up{job="nibble"}') == 1, 40,
                   "the first scrape")
        generate(served, 4, 25)
        wanted = tokens_before + 100
        assert served.metric("nibble_generation_tokens_total") == wanted
        eventually(
            lambda: prometheus.value(
                'nibble_generation_tokens_total{model_name="smollm2"}') ==
            wanted, 40, "the tokens")
        p50 = prometheus.value(
            "histogram_quantile(0.5, sum by (le) "
            "(nibble_time_to_first_token_seconds_bucket))")
        assert 0 < p50 < 10
        gaps = prometheus.value("nibble_inter_token_latency_seconds_count")
        assert gaps >= 4 * 24
        assert prometheus.value(
            "sum(nibble_requests_received_total) == "
            "sum(nibble_request_total) + "
            "sum(nibble_admission_rejections_total)") is not None
        generate(served, 2, 40)
        eventually(
            lambda: (prometheus.value(
                "rate(nibble_generation_tokens_total[20s])") or 0) > 0, 40,
            "a rate")


def test_the_dashboard_asks_for_metrics_that_exist(served):
    generate(served, 1, 4)
    exposed = {name for name, _ in served.metrics()}
    dashboards = list((ROOT / "deploy/grafana/dashboards").glob("*.json"))
    assert dashboards
    for path in dashboards:
        board = json.loads(path.read_text())
        expressions = [
            target["expr"] for panel in board["panels"]
            for target in panel.get("targets", [])
        ]
        assert len(expressions) >= 10
        for expression in expressions:
            names = set(re.findall(r"\bnibble_[a-z0-9_]+", expression))
            assert names, expression
            assert names <= exposed, (expression, names - exposed)


def test_the_http_server_says_where_things_are(served):

    def status(path):
        try:
            with urllib.request.urlopen(served.http + path, timeout=5) as page:
                return page.status
        except urllib.error.HTTPError as error:
            return error.code

    assert status("/healthz") == 200
    assert status("/metrics") == 200
    assert status("/nothing") == 404


def test_times_are_taken_from_arrival(served):
    start = time.monotonic()
    before = served.metric("nibble_e2e_request_latency_seconds_sum")
    generate(served, 1, 30)
    total = served.metric("nibble_e2e_request_latency_seconds_sum") - before
    assert 0 < total <= time.monotonic() - start
