"""chunkflow generate with scripts/tokenizer: a model that knows of every token
which one follows, so that what it has to say is known."""

import array
import json
import os
import subprocess
import sys
import tempfile
import unittest

import tokenizers

import fixtures
from fixtures import chat, write_folder

import safetensors_file

PROGRAM = os.path.abspath(os.environ.get("CHUNKFLOW") or os.path.join(
    fixtures.HERE, "..", "..", "src", "chunkflow"))
TOKENIZER = os.path.join(fixtures.LIB, "tokenizer.py")
VOCAB = len(fixtures.vocabulary())
HIDDEN, FFN = VOCAB + VOCAB % 2, 4
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama",
    "hidden_size": HIDDEN, "intermediate_size": FFN, "num_hidden_layers": 1,
    "num_attention_heads": HIDDEN // 2, "hidden_act": "silu",
    "vocab_size": VOCAB, "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "tie_word_embeddings": False, "torch_dtype": "float32"}


def matrix(rows, columns, ones=()):
    def produce():
        values = array.array("f", [0.0]) * (rows * columns)
        for row, column in ones:
            values[row * columns + column] = 1.0
        if sys.byteorder == "big":
            values.byteswap()
        return values.tobytes()
    return (rows, columns), produce


def vector(n):
    return (n,), lambda: array.array("f", [1.0]).tobytes() * n


def write_model(folder, follows, **config):
    """A model that says follows[token] after a token: its layer adds nothing,
    and token i is direction i."""
    layer = "model.layers.0."
    tensors = {
        "model.embed_tokens.weight": matrix(
            VOCAB, HIDDEN, [(i, i) for i in range(VOCAB)]),
        layer + "input_layernorm.weight": vector(HIDDEN),
        layer + "post_attention_layernorm.weight": vector(HIDDEN),
        "model.norm.weight": vector(HIDDEN),
        "lm_head.weight": matrix(VOCAB, HIDDEN,
                                 [(j, i) for i, j in follows.items()]),
        **{f"{layer}self_attn.{name}_proj.weight": matrix(HIDDEN, HIDDEN)
           for name in "qkvo"},
        **{f"{layer}mlp.{name}_proj.weight": matrix(FFN, HIDDEN)
           for name in ("gate", "up")},
        layer + "mlp.down_proj.weight": matrix(HIDDEN, FFN)}
    with open(os.path.join(folder, "config.json"), "w",
              encoding="utf-8") as file:
        json.dump({**CONFIG, **config}, file)
    safetensors_file.write(folder, [(name, *tensor)
                                    for name, tensor in tensors.items()],
                           "F32")


@unittest.skipUnless(os.access(PROGRAM, os.X_OK), "chunkflow is not built")
class Generate(unittest.TestCase):
    def setUp(self):
        self.room = tempfile.TemporaryDirectory()
        self.addCleanup(self.room.cleanup)
        self.model = write_folder(self.path("model"))
        self.tokens = fixtures.vocabulary()
        # An interpreter that has tokenizers is running this.
        script = self.path("tokenizer")
        with open(script, "w", encoding="utf-8") as file:
            file.write(f"#!/bin/sh\nexec {sys.executable} -B {TOKENIZER} "
                       '"$@"\n')
        os.chmod(script, 0o755)
        self.environment = dict(os.environ, CHUNKFLOW_TOKENIZER=script)

    def path(self, name):
        return os.path.join(self.room.name, name)

    def ids(self, text):
        return tokenizers.Tokenizer.from_file(
            os.path.join(self.model, "tokenizer.json")).encode(
                text, add_special_tokens=False).ids

    def teach(self, text, **config):
        """A model that says the text from its first token on; none of its
        tokens may come twice."""
        ids = self.ids(text)
        self.assertEqual(len(ids), len(set(ids)))
        write_model(self.model, dict(zip(ids, ids[1:])), **config)

    def generate(self, *options):
        done = subprocess.run(
            [PROGRAM, "generate", "--model", self.model, "--threads", "1",
             "--quiet", *options],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False,
            env=self.environment)
        return done.returncode, done.stdout.decode(), done.stderr.decode()

    def said(self, *options):
        code, text, error = self.generate(*options)
        self.assertEqual((code, error), (0, ""))
        return text

    def result(self, *options):
        return json.loads(self.said("--json", *options))

    def file(self, value, name="chat.json"):
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(value if isinstance(value, str) else json.dumps(value))
        return self.path(name)

    def assert_refused(self, code, words, *options):
        found, text, error = self.generate(*options)
        self.assertEqual((found, text), (code, ""), error)
        self.assertEqual(error.count("\n"), 1, error)
        self.assertTrue(error.startswith("chunkflow: error: "), error)
        self.assertIn(words, error)

    # ---- what it says ----

    def test_a_text_goes_on(self):
        self.teach("hello world", eos_token_id=None)
        self.assertEqual(self.said("--prompt", "hello",
                                   "--max-new-tokens", "2"), " world\n")

    def test_a_chat_is_answered_up_to_its_end_token(self):
        self.teach("\nhello world<|im_end|>", eos_token_id=2)
        chats = [chat("hi"), chat("hi")["messages"]]
        for value in chats:
            result = self.result("--messages", self.file(value))
            self.assertEqual(result["text"], "hello world")
            self.assertEqual(result["stop"], "eos")
            self.assertEqual(result["tokens"],
                             self.ids("hello world<|im_end|>"))

    def test_the_prompt_is_the_template_with_the_assistants_header(self):
        self.teach("\nhello<|im_end|>", eos_token_id=2)
        value = [{"role": "system", "content": "hello"},
                 {"role": "user", "content": " world"}]
        self.assertEqual(
            self.result("--messages", self.file(value))["prompt_tokens"],
            self.ids("<|im_start|>system\nhello<|im_end|>\n"
                     "<|im_start|>user\n world<|im_end|>\n"
                     "<|im_start|>assistant\n"))

    def test_control_tokens_in_a_prompt_are_text(self):
        self.teach("hello world", eos_token_id=None)
        for options in (("--prompt", "a<|im_end|>b"),
                        ("--messages", self.file(chat("a<|im_end|>b")))):
            ids = self.result(*options, "--max-new-tokens",
                              "1")["prompt_tokens"]
            control = sum(i < 3 for i in ids)
            self.assertEqual(control, 0 if options[0] == "--prompt" else 3)

    def test_control_tokens_are_no_text(self):
        self.teach("hello<|im_start|> world<|im_end|>", eos_token_id=2)
        result = self.result("--prompt", "hello")
        self.assertEqual(result["text"], " world")
        self.assertEqual(len(result["tokens"]), 4)

    def test_characters_of_several_tokens_come_whole(self):
        self.teach("aé😀b", eos_token_id=None)
        self.assertEqual(len(self.ids("aé😀b")), 8)
        for n, text in ((1, "\N{REPLACEMENT CHARACTER}"), (2, "é"),
                        (5, "é\N{REPLACEMENT CHARACTER}"), (6, "é😀"),
                        (7, "é😀b")):
            self.assertEqual(self.said("--prompt", "a", "--max-new-tokens",
                                       str(n)), text + "\n")

    def test_a_long_answer_is_the_sum_of_its_parts(self):
        ring = self.ids("hello worldé")
        write_model(self.model, dict(zip(ring, ring[1:] + ring[:1])),
                    eos_token_id=None)
        n = 60 * len(ring)
        self.assertEqual(self.said("--prompt", "é", "--max-new-tokens",
                                   str(n)), "hello worldé" * 60 + "\n")

    def test_bos_comes_first_where_the_tokenizer_says_so(self):
        self.teach("hello world", eos_token_id=None)
        with open(os.path.join(self.model, "tokenizer_config.json"),
                  encoding="utf-8") as file:
            settings = json.load(file)
        with open(os.path.join(self.model, "tokenizer_config.json"), "w",
                  encoding="utf-8") as file:
            json.dump({**settings, "add_bos_token": True}, file)
        self.assertEqual(
            self.result("--prompt", "hello",
                        "--max-new-tokens", "1")["prompt_tokens"],
            [0] + self.ids("hello"))

    # ---- errors ----

    def test_a_folder_without_tokenizer_is_named(self):
        self.teach("hello world")
        os.remove(os.path.join(self.model, "tokenizer.json"))
        self.assert_refused(3, "tokenizer.json is missing", "--prompt", "x")

    def test_a_folder_without_chat_template_is_named(self):
        write_folder(self.model, None)
        self.teach("hello world")
        self.assert_refused(3, "no chat template", "--messages",
                            self.file(chat("a")))

    def test_a_chat_file_that_is_none_is_named(self):
        self.teach("hello world")
        for value, words in (("{", "not JSON"), ({}, "has no messages"),
                             ([], "not a list of messages"), (7, "messages"),
                             ([{"role": "user"}], "has no content")):
            path = self.file(value)
            self.assert_refused(3, words, "--messages", path)
            self.assert_refused(3, path, "--messages", path)
        self.assert_refused(3, "No such file", "--messages",
                            self.path("none.json"))

    def test_a_tokenizer_of_another_model_is_seen(self):
        self.teach("hello world")
        with open(os.path.join(self.model, "config.json"),
                  encoding="utf-8") as file:
            config = json.load(file)
        with open(os.path.join(self.model, "config.json"), "w",
                  encoding="utf-8") as file:
            json.dump({**config, "vocab_size": 50}, file)
        self.assert_refused(3, "outside the model's vocabulary of 50",
                            "--prompt", "hello")


if __name__ == "__main__":
    unittest.main()
