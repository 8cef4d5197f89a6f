"""The programs people run, as they run them."""

import json
import signal
import subprocess
import time

import pytest
from harness import MODEL, Server, bin_path


def nibble(server, *arguments, stdin=b"", timeout=60):
    command = [bin_path("nibble"), *arguments]
    if server is not None:
        command += ["--target", server.target]
    return subprocess.run(command,
                          input=stdin,
                          capture_output=True,
                          timeout=timeout)


GREEDY = ("--temperature", "0", "--max-new-tokens", "24")


def test_chat_answers(smollm):
    done = nibble(smollm, "chat", *GREEDY,
                  "What is the capital of France, and what is it known for?")
    assert done.returncode == 0, done.stderr
    assert b"Paris" in done.stdout


def test_the_prompt_comes_from_argument_file_or_stdin(smollm, tmp_path):
    prompt = "Once upon a time"
    path = tmp_path / "prompt.txt"
    path.write_text(prompt)
    by_argument = nibble(smollm, "generate", *GREEDY, prompt)
    assert by_argument.returncode == 0
    for other in (nibble(smollm, "generate", *GREEDY, "--file", str(path)),
                  nibble(smollm, "generate", *GREEDY, stdin=prompt.encode()),
                  nibble(smollm, "generate", *GREEDY, "--no-stream", prompt)):
        assert other.stdout == by_argument.stdout
        assert other.returncode == 0
    both = nibble(smollm, "generate", "--file", str(path), prompt)
    assert both.returncode == 2


def test_json_is_one_object_a_line(smollm):
    done = nibble(smollm, "generate", *GREEDY, "--json", "--token-ids", "Hi")
    chunks = [json.loads(line) for line in done.stdout.splitlines()]
    text = nibble(smollm, "generate", *GREEDY, "Hi").stdout.decode()
    assert "".join(chunk["text"] for chunk in chunks) + "\n" == text
    assert chunks[-1]["finish"]["reason"].startswith("FINISH_REASON_")
    assert sum(len(chunk["tokens"]) for chunk in chunks) == (
        chunks[-1]["finish"]["usage"]["generated_tokens"])


def test_text_arrives_as_it_is_made(smollm):
    process = subprocess.Popen([
        bin_path("nibble"), "generate", "--target", smollm.target,
        "--max-new-tokens", "400", "--ignore-eos", "Once upon a time"
    ], stdout=subprocess.PIPE)
    first = process.stdout.read(1)
    assert first and process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 130
    process.stdout.close()


def test_exit_codes_mean_something(smollm):
    assert nibble(None).returncode == 2
    assert nibble(smollm, "generate", "--no-such-flag").returncode == 2
    assert nibble(None, "status", "--target",
                  "127.0.0.1:1").returncode == 3
    refused = nibble(smollm, "generate", "--top-p", "7", "x")
    assert refused.returncode == 4
    assert b"top_p" in refused.stderr
    assert nibble(smollm, "generate", "--model", "nope", "x").returncode == 4
    late = nibble(smollm, "generate", "--timeout", "0.2", "--ignore-eos",
                  "--max-new-tokens", "4000", "x")
    assert late.returncode == 6


def test_models_tokenize_status(smollm):
    models = nibble(smollm, "models")
    assert b"smollm2" in models.stdout and b"q4_1" in models.stdout
    listed = json.loads(nibble(smollm, "models", "--json").stdout)
    assert listed["models"][0]["architecture"] == "llama"
    tokens = nibble(smollm, "tokenize", "Hello 12")
    rows = [line.split() for line in tokens.stdout.decode().splitlines()]
    assert len(rows) == 4 and rows[0][1] == '"Hello"'
    status = nibble(smollm, "status")
    assert status.returncode == 0 and b"SERVING" in status.stdout


def test_inspect_tells_what_is_in_the_file():
    done = subprocess.run([bin_path("nibble-inspect"), str(MODEL)],
                          capture_output=True)
    assert done.returncode == 0, done.stderr
    for word in (b"llama", b"q4_1", b"q8_0", b"49152"):
        assert word in done.stdout, word
    broken = subprocess.run([bin_path("nibble-inspect"), __file__],
                            capture_output=True)
    assert broken.returncode == 1
    assert b"command_line_test" in broken.stderr


def test_bench_prints_tokens_per_second():
    done = subprocess.run([
        bin_path("nibble-bench"), "--model",
        str(MODEL), "--prefill", "32", "--decode", "8", "--batch", "2",
        "--threads", "2", "--json"
    ],
                          capture_output=True)
    assert done.returncode == 0, done.stderr
    numbers = json.loads(done.stdout)
    text = json.dumps(numbers)
    assert "prefill" in text and "decode" in text


def test_a_server_says_what_is_wrong(tmp_path):

    def refused(*flags):
        done = subprocess.run([bin_path("nibble-server"), *flags],
                              capture_output=True,
                              timeout=30)
        assert done.returncode not in (0, -6, -11)
        return (done.stdout + done.stderr).decode()

    assert "--model" in refused()
    missing = str(tmp_path / "missing.gguf")
    assert missing in refused("--model", f"m={missing}")
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(MODEL.read_bytes()[:1000000])
    assert "broken.gguf" in refused("--model", f"m={broken}")
    assert "--max-sequences" in refused("--model", f"m={MODEL}",
                                        "--max-sequences", "-3")


def test_a_busy_port_is_an_error(smollm):
    done = subprocess.run([
        bin_path("nibble-server"), "--model", f"smollm2={MODEL}", "--listen",
        smollm.target, "--metrics", "off"
    ],
                          capture_output=True,
                          timeout=60)
    assert done.returncode == 1
    assert smollm.target.encode() in done.stdout + done.stderr


def test_one_broken_model_does_not_stop_the_others(tmp_path):
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(MODEL.read_bytes()[:1000000])
    with Server([f"good={MODEL}", f"bad={broken}"]) as server:
        answer = nibble(server, "generate", "--model", "good", *GREEDY, "Hi")
        assert answer.returncode == 0
        models = nibble(server, "models")
        assert b"bad  FAILED" in models.stdout and b"broken.gguf" in (
            models.stdout)
        assert nibble(server, "status", "good").returncode == 0
        assert nibble(server, "status", "bad").returncode == 3


@pytest.mark.parametrize("seconds", [0.0, 0.05])
def test_a_killed_client_is_forgotten(smollm, seconds):
    process = subprocess.Popen([
        bin_path("nibble"), "generate", "--target", smollm.target,
        "--max-new-tokens", "4000", "--ignore-eos", "x"
    ], stdout=subprocess.PIPE)
    process.stdout.read(1)
    time.sleep(seconds)
    process.kill()
    process.wait()
    process.stdout.close()
    deadline = time.monotonic() + 10
    while smollm.metric("nibble_num_requests_running") > 0:
        assert time.monotonic() < deadline
        time.sleep(0.05)
