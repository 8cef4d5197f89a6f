#!/usr/bin/env python3
"""Makes chat.json: conversations rendered by Jinja2 with published templates.

  pip install jinja2
  tests/golden/make_chat.py LLAMA_CPP/models/templates

The environment is the one of Hugging Face's `transformers` (trim_blocks,
lstrip_blocks, raise_exception, tools=None), without strftime_now, so that a
template that asks for today's date takes the one it names instead.
"""

import json
import pathlib
import sys

import jinja2
import jinja2.sandbox

HERE = pathlib.Path(__file__).parent

RAISE_ALTERNATE = ("{{ raise_exception('Conversation roles must alternate "
                   "user/assistant/user/assistant/...') }}")
ALTERNATE = ("{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
             + RAISE_ALTERNATE + "{% endif %}")
CHATML_LOOP = (
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|im_start|>assistant\n' }}{% endif %}")


def chatml_with_default(system):
    return ("{% for message in messages %}{% if loop.first and "
            "messages[0]['role'] != 'system' %}{{ '<|im_start|>system\n"
            + system + "<|im_end|>\n' }}{% endif %}" + CHATML_LOOP)


LLAMA2 = (
    "{% if messages[0]['role'] == 'system' %}{% set loop_messages = "
    "messages[1:] %}{% set system_message = messages[0]['content'] %}"
    "{% else %}{% set loop_messages = messages %}{% set system_message = "
    "false %}{% endif %}{% for message in loop_messages %}" + ALTERNATE +
    "{% if loop.index0 == 0 and system_message != false %}{% set content = "
    "'<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + "
    "message['content'] %}{% else %}{% set content = message['content'] %}"
    "{% endif %}{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + "
    "content.strip() + ' [/INST]' }}{% elif message['role'] == 'assistant' %}"
    "{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}")

LLAMA3 = (
    "{% set loop_messages = messages %}{% for message in loop_messages %}"
    "{% set content = '<|start_header_id|>' + message['role'] + "
    "'<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' %}"
    "{% if loop.index0 == 0 %}{% set content = bos_token + content %}"
    "{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}")


def mistral_old(after_eos):
    return (
        "{{ bos_token }}{% for message in messages %}" + ALTERNATE +
        "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] "
        "+ ' [/INST]' }}{% elif message['role'] == 'assistant' %}"
        "{{ message['content'] + eos_token" + after_eos + "}}{% else %}"
        "{{ raise_exception('Only user and assistant roles are supported!') "
        "}}{% endif %}{% endfor %}")


# mistralai/Mistral-7B-Instruct-v0.2, since December 2024.
MISTRAL_SYSTEM = """\
{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}

{{- bos_token }}
{%- for message in loop_messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('After the optional system message, conversation \
roles must alternate user/assistant/user/assistant/...') }}
    {%- endif %}
    {%- if message["role"] == "user" %}
        {%- if loop.first and system_message is defined %}
            {{- " [INST] " + system_message + "\\n\\n" + message["content"] + \
" [/INST]" }}
        {%- else %}
            {{- " [INST] " + message["content"] + " [/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"] + eos_token}}
    {%- else %}
        {{- raise_exception("Only user and assistant roles are supported, \
with the exception of an initial optional system message!") }}
    {%- endif %}
{%- endfor %}
"""

ZEPHYR = """\
{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>
' + message['content'] + eos_token }}
{% elif message['role'] == 'system' %}
{{ '<|system|>
' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}
{{ '<|assistant|>
'  + message['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}"""

SMOLLM2 = ("You are a helpful AI assistant named SmolLM, "
           "trained by Hugging Face")


def templates(folder):
    def published(name):
        return (folder / (name + ".jinja")).read_text()
    nemo = published("mistralai-Mistral-Nemo-Instruct-2407")
    # mistralai/Mistral-7B-Instruct-v0.3 is Nemo's but for its spaces.
    v03 = (nemo.replace('"[INST]" +', '"[INST] " +')
           .replace('{{- message["content"] + eos_token}}',
                    '{{- " " + message["content"]|trim + eos_token}}'))
    assert v03.count('"[INST] " +') == 2 and "|trim + eos" in v03
    gemma2 = published("google-gemma-2-2b-it")
    im = ("<|endoftext|>", "<|im_end|>")
    llama = ("<s>", "</s>")
    llama3 = ("<|begin_of_text|>", "<|eot_id|>")
    gemma = ("<bos>", "<eos>")
    return [
        ("smollm2", "chatml", chatml_with_default(SMOLLM2), *im),
        ("qwen2", "chatml",
         chatml_with_default("You are a helpful assistant."), *im),
        ("qwen2.5", "chatml", published("Qwen-Qwen2.5-7B-Instruct"), *im),
        ("chatml", "chatml",
         "{% for message in messages %}" + CHATML_LOOP, *im),
        ("chatml-bos", "chatml",
         "{% if not add_generation_prompt is defined %}{% set "
         "add_generation_prompt = false %}{% endif %}{{bos_token}}"
         "{% for message in messages %}" + CHATML_LOOP, *llama),
        ("llama2", "llama2", LLAMA2, *llama),
        ("llama3", "llama3", LLAMA3, *llama3),
        ("llama3.1", "llama3", published("meta-llama-Llama-3.1-8B-Instruct"),
         *llama3),
        ("llama3.2", "llama3", published("meta-llama-Llama-3.2-3B-Instruct"),
         *llama3),
        ("llama3.3", "llama3", published("meta-llama-Llama-3.3-70B-Instruct"),
         *llama3),
        ("mistral-v0.1", "mistral", mistral_old(" + ' '"), *llama),
        ("mistral-v0.2", "mistral", mistral_old(""), *llama),
        ("mistral-v0.2-system", "mistral", MISTRAL_SYSTEM, *llama),
        ("mistral-v0.3", "mistral", v03, *llama),
        ("mistral-nemo", "mistral", nemo, *llama),
        ("zephyr", "zephyr", ZEPHYR, *llama),
        ("gemma2", "gemma", gemma2, *gemma),
        ("gemma", "gemma", gemma2.replace("{{ bos_token }}", ""), *gemma),
    ]


def conversations():
    def talk(*turns):
        names = {"s": "system", "u": "user", "a": "assistant"}
        return [{"role": names[role], "content": content}
                for role, content in turns]
    return [
        talk(("u", "Hello")),
        talk(("s", "Be brief."), ("u", "Hello")),
        talk(("u", "Hello"), ("a", "Hi there"), ("u", "Who are you?")),
        talk(("s", "You are a pirate."), ("u", "Hello"), ("a", "Ahoy"),
             ("u", "Who?"), ("a", "  Me.  "), ("u", "Bye")),
        talk(("s", "  spaced system \n"), ("u", " \n spaced user\t "),
             ("a", "\n answer \n"), ("u", " x ")),
        talk(("s", "Sys"), ("u", " \n\t "), ("a", ""), ("u", "")),
        talk(("u", "\u3000\u00a0wide\u2003\u0085"), ("a", "\u200bzero\u200b"),
             ("u", "\x1cseparators\x1f")),
        talk(("u", "你好，世界 🦙"), ("a", "مرحبا"), ("u", "e\u0301")),
        talk(("u", "<|im_end|><|eot_id|></s>[/INST]<end_of_turn><s>"),
             ("a", "{{ bos_token }}{% if x %}'\"\\n"), ("u", "<<SYS>>")),
        talk(("u", "Finish:"), ("a", "Half an ans")),
        talk(("u", "one"), ("u", "two")),
        talk(("a", "I begin")),
        talk(("s", "s"), ("a", "I begin"), ("u", "no")),
        talk(("s", "one"), ("s", "two"), ("u", "x")),
        talk(("u", "a"), ("s", "late system"), ("u", "b")),
    ]


# Conversations that these formats' templates neither refuse nor show whole.
LATE_SYSTEM = 14
SILENT = {("llama2", LATE_SYSTEM), ("gemma", LATE_SYSTEM)}


def environment():
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)
    result = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols"])
    result.globals["raise_exception"] = raise_exception
    return result


def main():
    folder = pathlib.Path(sys.argv[1])
    jinja = environment()
    lists = conversations()
    out = []
    for name, family, source, bos, eos in templates(folder):
        rendered = []
        for i, messages in enumerate(lists):
            if (family, i) in SILENT:
                rendered.append(None)
                continue
            try:
                rendered.append(jinja.from_string(source).render(
                    messages=messages, tools=None, documents=None,
                    add_generation_prompt=True, bos_token=bos,
                    eos_token=eos))
            except jinja2.exceptions.TemplateError as error:
                rendered.append({"error": str(error)})
        out.append({"name": name, "format": family, "template": source,
                    "bos": bos, "eos": eos, "rendered": rendered})
    text = json.dumps({"conversations": lists, "templates": out}, indent=1)
    (HERE / "chat.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
