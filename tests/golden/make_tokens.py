#!/usr/bin/env python3
"""Makes tokens_*.json: token ids and splits by independent implementations.

  pip install tokenizers sentencepiece gguf
  tests/golden/make_tokens.py --smollm2 SmolLM2-135M-Instruct.Q4_1.gguf \
      --gpt2 ggml-vocab-gpt-2.gguf --qwen2 ggml-vocab-qwen2.gguf \
      [--llama-tokenize llama-tokenize]

The texts are those of tokens_texts.json. What each file holds, and which
program made it, is in README.md beside this one. The ggml-vocab files lie in
llama.cpp's models/ folder. With --llama-tokenize, llama.cpp must give the
same ids for SmolLM2; the texts where it does not are printed.
"""

import argparse
import json
import pathlib
import subprocess
import tempfile

import gguf
import sentencepiece
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

HERE = pathlib.Path(__file__).parent
CORPUS = ["Apache-2.0", "MPL-2.0", "GPL-3"]
LICENSES = pathlib.Path("/usr/share/common-licenses")
CONTROL = 3  # tokenizer.ggml.token_type

# The expressions of the published tokenizer.json files.
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
          r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace("{1,3}", "")
QWEN35 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+"
          r"|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
TEKKEN = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*"
          r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
          r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+"
          r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}"
          r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def byte_level(use_regex=True):
    return pre_tokenizers.ByteLevel(add_prefix_space=False,
                                    use_regex=use_regex)


def split(expression, behavior="isolated"):
    return pre_tokenizers.Split(Regex(expression), behavior)


def rule(name):
    """The pre-tokenizer of `tokenizer.ggml.pre`, of Hugging Face's parts."""
    sequence = pre_tokenizers.Sequence
    return {
        "gpt-2": byte_level,
        "smollm": lambda: sequence(
            [pre_tokenizers.Digits(individual_digits=True), byte_level()]),
        "llama-bpe": lambda: sequence([split(LLAMA3), byte_level(False)]),
        "qwen2": lambda: sequence([split(QWEN2), byte_level(False)]),
        "qwen35": lambda: sequence([split(QWEN35), byte_level(False)]),
        "tekken": lambda: sequence([split(TEKKEN), byte_level(False)]),
        "falcon": lambda: sequence(
            [pre_tokenizers.Punctuation("contiguous"), byte_level(),
             split("[0-9][0-9][0-9]")]),
        "default": lambda: sequence(
            [split(r"[\p{P}\$\+<=>\^~\|]+"), byte_level(), split(r"\p{N}+"),
             split("[0-9][0-9][0-9]")]),
    }[name]()


RULES = ["default", "falcon", "gpt-2", "llama-bpe", "qwen2", "qwen35",
         "smollm", "tekken"]


def spelled_splits(name, text):
    """Lengths in bytes of the pieces of `text`."""
    if name in ("falcon", "default"):
        # The expressions after ByteLevel would see its alphabet: apply them
        # to the pieces of the text itself.
        first = {"falcon": pre_tokenizers.Punctuation("contiguous"),
                 "default": split(r"[\p{P}\$\+<=>\^~\|]+")}[name]
        steps = [first, byte_level()]
        if name == "default":
            steps.append(split(r"\p{N}+"))
        steps.append(split("[0-9][0-9][0-9]"))
    else:
        steps = [rule(name)]
    pieces = [text]
    for step in steps:
        finer = []
        for piece in pieces:
            spans = step.pre_tokenize_str(piece)
            finer += [piece[begin:end] for _, (begin, end) in spans]
        pieces = finer
    assert "".join(pieces) == text, (name, text)
    return [len(piece.encode()) for piece in pieces]


class Vocabulary:
    def __init__(self, path):
        fields = gguf.GGUFReader(path).fields
        self.tokens, self.merges, self.types = (
            fields["tokenizer.ggml." + key].contents()
            for key in ("tokens", "merges", "token_type"))

    def special(self):
        return [token for token, kind in zip(self.tokens, self.types)
                if kind == CONTROL]

    def hugging_face(self, pre, parse_special=False, ignore_merges=False):
        model = models.BPE(
            {token: i for i, token in enumerate(self.tokens)},
            [tuple(merge.split(" ")) for merge in self.merges],
            ignore_merges=ignore_merges)
        tokenizer = Tokenizer(model)
        tokenizer.pre_tokenizer = rule(pre)
        if parse_special:
            tokenizer.add_special_tokens(self.special())
        return tokenizer

    def reduced(self, pre, texts):
        """The tokens and merges that can play a part in `texts`."""
        wanted = set()
        splitter = rule(pre)
        for text in texts:
            for piece, _ in splitter.pre_tokenize_str(text):
                wanted.update(piece[i:j] for i in range(len(piece))
                              for j in range(i + 1, len(piece) + 1))
        tokens = [[i, token] for i, token in enumerate(self.tokens)
                  if token in wanted or len(token) == 1]
        merges = [merge for merge in self.merges
                  if merge.replace(" ", "") in wanted]
        return tokens, merges


def ids_of(tokenizer, texts):
    return [tokenizer.encode(text, add_special_tokens=False).ids
            for text in texts]


def write(name, head, rows):
    """`head` and the lists `rows`, one row a line."""
    lines = [json.dumps(key) + ": " + json.dumps(value)
             for key, value in head.items()]
    for key, values in rows.items():
        body = ",\n".join(json.dumps(value, separators=(",", ":"))
                          for value in values)
        lines.append(json.dumps(key) + ": [\n" + body + "]")
    (HERE / name).write_text("{\n" + ",\n".join(lines) + "\n}\n")


def llama_tokenize(program, model, text, parse_special):
    with tempfile.NamedTemporaryFile("wb") as file:
        file.write(text.encode())
        file.flush()
        command = [program, "-m", model, "-f", file.name, "--ids", "--no-bos",
                   "--log-disable", "--no-escape"]
        if not parse_special:
            command.append("--no-parse-special")
        return json.loads(subprocess.run(
            command, check=True, capture_output=True).stdout)


def make_smollm2(path, texts, program):
    vocabulary = Vocabulary(path)
    plain = ids_of(vocabulary.hugging_face("smollm"), texts)
    parsed = ids_of(vocabulary.hugging_face("smollm", True), texts)
    for parse_special, expected in ((False, plain), (True, parsed)):
        for text, ids in zip(texts, expected):
            # The program refuses an empty file.
            if program and text:
                other = llama_tokenize(program, path, text, parse_special)
                if other != ids:
                    print("differs:", repr(text), ids, other)
    changed = [[i, ids] for i, ids in enumerate(parsed) if ids != plain[i]]
    write("tokens_smollm2.json", {}, {"ids": plain, "parsed": changed})


def make_reduced(name, pre, path, texts):
    vocabulary = Vocabulary(path)
    tokens, merges = vocabulary.reduced(pre, texts)
    head = {"pre": pre, "vocab_size": len(vocabulary.tokens)}
    write(name, head, {
        "tokens": tokens, "merges": merges,
        "ids": ids_of(vocabulary.hugging_face(pre), texts)})


def corpus():
    return [(LICENSES / name).read_text() for name in CORPUS]


def make_llama_bpe(texts):
    """A small vocabulary under Llama 3's rule.

    Every third of the merges that no other builds on is taken out, so that
    its token comes up only where a whole piece is looked up first.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = rule("llama-bpe")
    tokenizer.train_from_iterator(corpus() + texts, trainers.BpeTrainer(
        vocab_size=1500, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    model = json.loads(tokenizer.to_str())["model"]
    merges = [tuple(merge) for merge in model["merges"]]
    used = {part for merge in merges for part in merge}
    leaves = [merge for merge in merges if "".join(merge) not in used]
    dropped = set(leaves[::3])
    merges = [merge for merge in merges if merge not in dropped]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    tokenizer = Tokenizer(models.BPE(model["vocab"], merges,
                                     ignore_merges=True))
    tokenizer.pre_tokenizer = rule("llama-bpe")
    write("tokens_llama_bpe.json",
          {"pre": "llama-bpe", "vocab_size": len(tokens)},
          {"tokens": [[i, token] for i, token in enumerate(tokens)],
           "merges": [" ".join(merge) for merge in merges],
           "ids": ids_of(tokenizer, texts)})


def make_sentencepiece(name, texts, **options):
    with tempfile.TemporaryDirectory() as folder:
        prefix = folder + "/model"
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(
                line for text in corpus() + texts
                for line in text.split("\n") if line),
            model_prefix=prefix, model_type="bpe", num_threads=1,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False, split_digits=True,
            allow_whitespace_only_pieces=True, minloglevel=2, **options)
        model = sentencepiece.SentencePieceProcessor(
            model_file=prefix + ".model")
    def kind(i):
        if model.is_unknown(i):
            return "unknown"
        if model.is_control(i):
            return "control"
        return "byte" if model.is_byte(i) else "normal"
    write(name, {"add_space_prefix": options["add_dummy_prefix"],
                 "unknown": model.unk_id()},
          {"tokens": [[model.id_to_piece(i), model.get_score(i), kind(i)]
                      for i in range(len(model))],
           "ids": [model.encode(text) for text in texts]})


def main():
    parser = argparse.ArgumentParser()
    for name in ("--smollm2", "--gpt2", "--qwen2"):
        parser.add_argument(name, required=True)
    parser.add_argument("--llama-tokenize")
    options = parser.parse_args()
    texts = json.loads((HERE / "tokens_texts.json").read_text())
    make_smollm2(options.smollm2, texts, options.llama_tokenize)
    make_reduced("tokens_gpt2.json", "gpt-2", options.gpt2, texts)
    make_reduced("tokens_qwen2.json", "qwen2", options.qwen2, texts)
    make_llama_bpe(texts)
    make_sentencepiece("tokens_sentencepiece.json", texts, vocab_size=1200,
                       byte_fallback=True, add_dummy_prefix=True)
    make_sentencepiece("tokens_sentencepiece_unknown.json", texts,
                       vocab_size=400, character_coverage=0.98,
                       byte_fallback=False, add_dummy_prefix=False)
    write("tokens_splits.json", {}, {
        name: [spelled_splits(name, text) for text in texts]
        for name in RULES})


if __name__ == "__main__":
    main()
