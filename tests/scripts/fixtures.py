"""A tiny tokenizer, templates, and helpers for the tests of the scripts."""

import json
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
SCRIPTS = os.path.join(HERE, "..", "..", "scripts")
LIB = os.path.join(SCRIPTS, "lib")
sys.path.insert(0, LIB)

CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
PLAIN_ADDED = ["<think>"]
MERGES = ["h e", "l l", "he ll", "hell o", "Ġ w", "o r", "Ġw or", "l d",
          "Ċ Ċ", "u s", "e r", "us er", "Ġ h", "Ġ Ġ"]

CHATML = ("{% for message in messages %}{{ '<|im_start|>' + message['role'] "
          "+ '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
          "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
          "{% endif %}")
GENERATION = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n'"
    " }}{% if message['role'] == 'assistant' %}{% generation %}"
    "{{ message['content'] + '<|im_end|>' }}{% endgeneration %}{% else %}"
    "{{ message['content'] + '<|im_end|>' }}{% endif %}{{ '\n' }}"
    "{% endfor %}")
INSTRUCT = (
    "{% for message in messages %}{% if message['role'] == 'user' %}"
    "{{ '[INST] ' + message['content'] + ' [/INST]' }}{% else %}"
    "{{ ' ' + message['content'] | trim + ' ' + eos_token }}{% endif %}"
    "{% endfor %}")


def byte_alphabet():
    """GPT-2's printable spelling of each byte."""
    plain = (list(range(33, 127)) + list(range(161, 173)) +
             list(range(174, 256)))
    extra = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(extra))
            for byte in range(256)]


def vocabulary():
    tokens = CONTROL + byte_alphabet()
    tokens += ["".join(merge.split()) for merge in MERGES]
    return tokens + PLAIN_ADDED


def write_folder(folder, template=CHATML, **settings):
    """A model folder as far as prepare reads it."""
    os.makedirs(folder, exist_ok=True)
    tokens = vocabulary()
    added = [{"id": tokens.index(token), "content": token,
              "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False, "special": token in CONTROL}
             for token in CONTROL + PLAIN_ADDED]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False,
                  "trim_offsets": True, "use_regex": True}
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": added, "normalizer": None,
        "pre_tokenizer": byte_level, "post_processor": byte_level,
        "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None,
                  "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False,
                  "byte_fallback": False, "ignore_merges": False,
                  "vocab": {token: i for i, token in enumerate(tokens)},
                  "merges": [merge.split() for merge in MERGES]}}
    config = {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>",
              **settings}
    if template is not None:
        config["chat_template"] = template
    for name, value in (("tokenizer.json", tokenizer),
                        ("tokenizer_config.json", config)):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            json.dump(value, file)
    return folder


def write_lines(path, rows):
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        for row in rows:
            file.write(row if isinstance(row, str)
                       else json.dumps(row, ensure_ascii=False))
            file.write("\n")
    return path


def script(module, *arguments):
    """Run a script of scripts/lib; (exit code, standard error)."""
    done = subprocess.run([sys.executable, "-B", os.path.join(LIB, module),
                           *arguments], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, check=False)
    return done.returncode, done.stderr


def chat(*turns):
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[i % 2], "content": turn}
                         for i, turn in enumerate(turns)]}
