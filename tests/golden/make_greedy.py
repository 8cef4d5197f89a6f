#!/usr/bin/env python3
"""Asks a running llama-server for greedy continuations and log-probabilities.

The server runs the F32 copy of the model (dequantize_gguf.py) with FP32 keys
and values; README.md here gives the command lines. Token ids go in and come
out, so no tokenizer of ours is involved. Writes one JSON file:

  make_greedy.py --server http://127.0.0.1:8080 --out greedy.json
"""

import argparse
import json
import urllib.request

NEW_TOKENS = 32
TOP = 16  # best log-probabilities kept for each generated token
STRIDE = 97  # of a prompt's last log-probabilities, ids 0, 97, ... are kept

CHATML = ("<|im_start|>system\nYou are a helpful AI assistant named SmolLM, "
          "trained by Hugging Face<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n"
          "<|im_start|>assistant\n")

PROMPTS = [
    "The capital of France is a city that",
    "Once upon a time, in a village by the sea, there lived a",
    "def fibonacci(n):\n    \"\"\"Return the n-th Fibonacci number.\"\"\"\n",
    "#include <stdio.h>\n\nint main(void) {\n",
    "SELECT name, COUNT(*) FROM orders WHERE",
    "Water boils at 100 degrees Celsius because",
    "Q: Why is the sky blue?\nA:",
    "1, 1, 2, 3, 5, 8, 13,",
    "Dear Sir or Madam,\n\nI am writing to",
    "La Révolution française a commencé en",
    "Die Hauptstadt von Deutschland ist",
    "En un lugar de la Mancha,",
    "The three laws of thermodynamics state that",
    "{\"name\": \"Alice\", \"age\": 30, \"city\":",
    "<html>\n<head>\n<title>",
    "Photosynthesis is the process by which plants",
    "In mathematics, a prime number is",
    CHATML.format("What is gravity?"),
    CHATML.format("Write a short poem about the moon."),
    CHATML.format("List three uses of copper."),
]


def post(server, path, body):
    request = urllib.request.Request(
        server + path, json.dumps(body).encode(),
        {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as response:
        return json.load(response)


def complete(server, text, ids, new_tokens, n_probs):
    answer = post(server, "/completion", {
        "prompt": ids, "n_predict": new_tokens, "temperature": 0,
        "n_probs": n_probs, "return_tokens": True, "cache_prompt": False})
    if len(answer["tokens"]) != new_tokens:
        raise SystemExit(f"{text!r} ends after {len(answer['tokens'])} tokens: "
                         "choose another prompt")
    return answer


def case(server, text):
    ids = post(server, "/tokenize", {
        "content": text, "add_special": False, "parse_special": True})["tokens"]
    answer = complete(server, text, ids, NEW_TOKENS, TOP)
    top = [[[p["id"], round(p["logprob"], 4)] for p in step["top_logprobs"]]
           for step in answer["completion_probabilities"]]
    # Asking for more than the vocabulary gives all of it.
    whole = complete(server, text, ids, 1, 1 << 20)["completion_probabilities"][0]
    by_id = {p["id"]: p["logprob"] for p in whole["top_logprobs"]}
    return {"text": text, "prompt": ids, "tokens": answer["tokens"],
            "top": top, "vocab": len(by_id),
            "sample": [round(by_id[i], 5)
                       for i in range(0, len(by_id), STRIDE)]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--server", required=True)
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    cases = [case(args.server, text) for text in PROMPTS]
    with open(args.out, "w", encoding="utf-8") as out:
        out.write('{"stride": %d,\n "cases": [\n' % STRIDE)
        out.write(",\n".join(json.dumps(c, separators=(",", ":"))
                             for c in cases))
        out.write("\n]}\n")


if __name__ == "__main__":
    main()
