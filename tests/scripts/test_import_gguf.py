"""import-gguf: weights, configuration, tokenizer and refusals on tiny files."""

import json
import os
import struct
import tempfile
import unittest

import gguf
import numpy
import tokenizers

import fixtures
from fixtures import script

HEADS, KV_HEADS, HEAD_DIM, HIDDEN, INNER, LAYERS = 4, 2, 8, 32, 48, 2


def permute(weight, n_heads):
    """llama.cpp's order of q and k rows."""
    return (weight.reshape(n_heads, 2, weight.shape[0] // n_heads // 2,
                           *weight.shape[1:])
            .swapaxes(1, 2).reshape(weight.shape))


class File:
    """A tiny GGUF to be, whose parts a test may change before write()."""

    def __init__(self, family="llama", pre="smollm"):
        self.family = family
        tokens = fixtures.vocabulary()
        kinds = [1] * len(tokens)
        for token in fixtures.CONTROL:
            kinds[tokens.index(token)] = 3
        for token in fixtures.PLAIN_ADDED:
            kinds[tokens.index(token)] = 4
        self.values = {
            ".block_count": LAYERS, ".context_length": 128,
            ".embedding_length": HIDDEN, ".feed_forward_length": INNER,
            ".attention.head_count": HEADS,
            ".attention.head_count_kv": KV_HEADS,
            ".attention.layer_norm_rms_epsilon": 1e-5,
            ".rope.freq_base": 10000.0,
            "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": pre,
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": kinds,
            "tokenizer.ggml.merges": fixtures.MERGES,
            "tokenizer.ggml.bos_token_id": 0,
            "tokenizer.ggml.eos_token_id": 2,
            "tokenizer.chat_template": fixtures.CHATML}
        if family == "qwen3":
            self.values[".attention.key_length"] = HEAD_DIM
            self.values[".attention.value_length"] = HEAD_DIM
        self.random = numpy.random.default_rng(0)
        self.tensors = {}  # names and layout of Hugging Face
        self._fill(len(tokens))
        self.extra = {}

    def _fill(self, vocab):
        def put(name, *shape):
            self.tensors[name] = self.random.standard_normal(
                shape, dtype=numpy.float32)

        q, kv = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
        put("token_embd.weight", vocab, HIDDEN)
        put("output_norm.weight", HIDDEN)
        for layer in range(LAYERS):
            p = f"blk.{layer}."
            for name, shape in (
                    ("attn_norm", (HIDDEN,)), ("ffn_norm", (HIDDEN,)),
                    ("attn_q", (q, HIDDEN)), ("attn_k", (kv, HIDDEN)),
                    ("attn_v", (kv, HIDDEN)), ("attn_output", (HIDDEN, q)),
                    ("ffn_gate", (INNER, HIDDEN)),
                    ("ffn_up", (INNER, HIDDEN)),
                    ("ffn_down", (HIDDEN, INNER))):
                put(f"{p}{name}.weight", *shape)
            if self.family == "qwen2":
                put(f"{p}attn_q.bias", q)
                put(f"{p}attn_k.bias", kv)
                put(f"{p}attn_v.bias", kv)
            if self.family == "qwen3":
                put(f"{p}attn_q_norm.weight", HEAD_DIM)
                put(f"{p}attn_k_norm.weight", HEAD_DIM)

    def write(self, path):
        writer = gguf.GGUFWriter(path, self.family)
        for key, value in self.values.items():
            key = self.family + key if key.startswith(".") else key
            if isinstance(value, list):
                writer.add_array(key, value)
            elif isinstance(value, str):
                writer.add_string(key, value)
            elif isinstance(value, float):
                writer.add_float32(key, value)
            else:
                writer.add_uint32(key, value)
        for name, values in {**self.tensors, **self.extra}.items():
            if self.family == "llama" and ".attn_q." in name:
                values = permute(values, HEADS)
            elif self.family == "llama" and ".attn_k." in name:
                values = permute(values, KV_HEADS)
            writer.add_tensor(name, numpy.ascontiguousarray(values))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


def read_safetensors(path):
    with open(path, "rb") as file:
        data = file.read()
    size, = struct.unpack_from("<Q", data)
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__")
    types = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}
    return {name: numpy.frombuffer(
        data[8 + size + entry["data_offsets"][0]:
             8 + size + entry["data_offsets"][1]],
        types[entry["dtype"]]).reshape(entry["shape"])
        for name, entry in header.items()}


class ImportGguf(unittest.TestCase):
    def setUp(self):
        self.room = tempfile.TemporaryDirectory()
        self.addCleanup(self.room.cleanup)
        self.gguf = os.path.join(self.room.name, "model.gguf")
        self.folder = os.path.join(self.room.name, "folder")

    def imported(self, file, *options):
        file.write(self.gguf)
        code, error = script("gguf_import.py", self.gguf, self.folder,
                             *options)
        self.assertEqual((code, error), (0, ""))
        with open(os.path.join(self.folder, "config.json"),
                  encoding="utf-8") as config:
            return json.load(config)

    def weights(self):
        return read_safetensors(os.path.join(self.folder,
                                             "model.safetensors"))

    def assert_refused(self, file, words):
        if file:
            file.write(self.gguf)
        code, error = script("gguf_import.py", self.gguf, self.folder)
        self.assertEqual(code, 3, error)
        self.assertEqual(error.count("\n"), 1, error)
        self.assertTrue(error.startswith("chunkflow: error: "), error)
        self.assertIn(words, error)
        self.assertEqual(os.listdir(self.room.name), ["model.gguf"])

    def test_every_family_keeps_its_weights_bit_for_bit(self):
        for family in ("llama", "qwen2", "qwen3"):
            with self.subTest(family=family):
                file = File(family)
                self.folder = os.path.join(self.room.name, family)
                config = self.imported(file, "--dtype", "f32")
                weights = self.weights()
                self.assertEqual(config["model_type"], family)
                self.assertTrue(config["tie_word_embeddings"])
                self.assertEqual(len(weights), len(file.tensors))
                for mine, name in (
                        ("attn_q.weight", "self_attn.q_proj.weight"),
                        ("attn_k.weight", "self_attn.k_proj.weight"),
                        ("attn_v.weight", "self_attn.v_proj.weight"),
                        ("ffn_down.weight", "mlp.down_proj.weight")):
                    numpy.testing.assert_array_equal(
                        weights[f"model.layers.1.{name}"],
                        file.tensors[f"blk.1.{mine}"])

    def test_bf16_rounds_to_nearest_even(self):
        file = File()
        values = numpy.array([1.0, 1.00390625, 1.01171875, -3.0e-39],
                             dtype=numpy.float32)
        file.tensors["output_norm.weight"][:4] = values
        self.imported(file)
        self.assertEqual([hex(bits) for bits in
                          self.weights()["model.norm.weight"][:4]],
                         ["0x3f80", "0x3f80", "0x3f82", "0x8021"])

    def test_quantised_weights_are_dequantised(self):
        file = File()
        weight = file.tensors["blk.0.ffn_down.weight"][:, :32]
        packed = gguf.quantize(weight, gguf.GGMLQuantizationType.Q8_0)
        expected = gguf.dequantize(packed, gguf.GGMLQuantizationType.Q8_0)
        file.tensors["blk.0.ffn_down.weight"] = expected
        file.values[".feed_forward_length"] = 32
        for layer in range(LAYERS):
            for name in ("ffn_gate", "ffn_up"):
                key = f"blk.{layer}.{name}.weight"
                file.tensors[key] = file.tensors[key][:32]
            key = f"blk.{layer}.ffn_down.weight"
            file.tensors[key] = file.tensors[key][:, :32]
        original = gguf.GGUFWriter.add_tensor

        def add_packed(writer, name, values):
            if name == "blk.0.ffn_down.weight":
                original(writer, name, packed,
                         raw_dtype=gguf.GGMLQuantizationType.Q8_0)
            else:
                original(writer, name, values)

        gguf.GGUFWriter.add_tensor = add_packed
        try:
            self.imported(file, "--dtype", "f32")
        finally:
            gguf.GGUFWriter.add_tensor = original
        numpy.testing.assert_array_equal(
            self.weights()["model.layers.0.mlp.down_proj.weight"], expected)

    def test_an_output_tensor_unties_the_head(self):
        file = File()
        file.extra["output.weight"] = file.tensors["token_embd.weight"] + 1
        self.assertFalse(self.imported(file)["tie_word_embeddings"])
        self.assertIn("lm_head.weight", self.weights())

    def test_sizes_and_constants_reach_the_configuration(self):
        config = self.imported(File())
        for key, value in (
                ("hidden_size", HIDDEN), ("num_attention_heads", HEADS),
                ("num_key_value_heads", KV_HEADS), ("head_dim", HEAD_DIM),
                ("intermediate_size", INNER), ("num_hidden_layers", LAYERS),
                ("rms_norm_eps", 1e-5), ("rope_theta", 10000.0),
                ("rope_scaling", None), ("max_position_embeddings", 128),
                ("bos_token_id", 0), ("eos_token_id", 2),
                ("torch_dtype", "bfloat16"), ("attention_bias", False),
                ("vocab_size", len(fixtures.vocabulary()))):
            self.assertEqual(config[key], value, key)

    def test_rope_scalings_are_told_apart(self):
        file = File()
        file.values.update({".rope.scaling.type": "yarn",
                            ".rope.scaling.factor": 4.0,
                            ".rope.scaling.original_context_length": 32})
        self.assertEqual(self.imported(file)["rope_scaling"], {
            "rope_type": "yarn", "factor": 4.0,
            "original_max_position_embeddings": 32})
        file = File()
        file.values[".rope.freq_base"] = 500000.0
        angles = 500000.0 ** (numpy.arange(0, HEAD_DIM, 2) / HEAD_DIM)
        smooth = numpy.clip((8192 / (2 * numpy.pi * angles) - 1) / 3, 0, 1)
        file.extra["rope_freqs.weight"] = (
            1 / ((1 - smooth) / 32 + smooth)).astype(numpy.float32)
        self.folder += "-llama3"
        self.assertEqual(self.imported(file)["rope_scaling"], {
            "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192})

    def test_the_tokenizer_is_the_one_of_the_vocabulary(self):
        self.imported(File(pre="gpt-2"))
        fixtures.write_folder(os.path.join(self.room.name, "reference"))
        mine, reference = (tokenizers.Tokenizer.from_file(
            os.path.join(self.room.name, name, "tokenizer.json"))
            for name in ("folder", "reference"))
        for text in ("hello world 123", "<|im_start|>user\nhé<|im_end|>",
                     "<think>  x\n\n", "日本\U0001f600"):
            ids = mine.encode(text, add_special_tokens=False).ids
            self.assertEqual(ids, reference.encode(
                text, add_special_tokens=False).ids)
            self.assertEqual(mine.decode(ids, skip_special_tokens=False),
                             text)

    def test_what_is_not_understood_is_refused(self):
        def changed(**changes):
            file = File()
            file.values.update({key.replace("__", "."): value
                                for key, value in changes.items()})
            return file

        for words, file in (
                ("architecture gemma", File("gemma")),
                ("mixture of experts", changed(__expert_count=8)),
                ("metadata llama.unheard_of", changed(__unheard_of=1)),
                ("pre-tokenizer martian", File(pre="martian")),
                ("tokenizer model llama",
                 changed(tokenizer__ggml__model="llama")),
                ("sliding window", changed(__attention__sliding_window=4)),
                ("rope scaling longrope", changed(
                    __rope__scaling__type="longrope",
                    __rope__scaling__factor=2.0)),
                ("no place", changed(__block_count=1)),
                ("is missing", changed(__block_count=3))):
            with self.subTest(words=words):
                self.assert_refused(file, words)

    def test_missing_metadata_and_strange_tensors_are_refused(self):
        file = File()
        del file.values[".context_length"]
        self.assert_refused(file, "llama.context_length is missing")
        file = File()
        file.extra["blk.0.attn_sinks.weight"] = numpy.ones(
            4, dtype=numpy.float32)
        self.assert_refused(file, "attn_sinks")
        file = File()
        file.tensors["blk.1.ffn_up.weight"][3, 4] = numpy.nan
        self.assert_refused(file, "NaN")
        file = File()
        file.tensors["blk.1.ffn_up.weight"] = numpy.ones(
            (INNER, HIDDEN + 1), dtype=numpy.float32)
        self.assert_refused(file, "blk.1.ffn_up.weight has shape")

    def test_truncated_and_foreign_files_are_refused(self):
        File().write(self.gguf)
        with open(self.gguf, "rb") as file:
            data = file.read()
        for part in (b"", b"GGUF", data[:40], data[:1000],
                     data[:len(data) // 2], data[:-40], b"x" * 1000):
            with self.subTest(size=len(part)):
                with open(self.gguf, "wb") as file:
                    file.write(part)
                self.assert_refused(None, "not a readable GGUF file")

    def test_a_folder_with_content_is_left_alone(self):
        File().write(self.gguf)
        os.mkdir(self.folder)
        with open(os.path.join(self.folder, "mine"), "w",
                  encoding="utf-8"):
            pass
        code, error = script("gguf_import.py", self.gguf, self.folder)
        self.assertEqual(code, 2)
        self.assertIn("is not empty", error)
        self.assertEqual(os.listdir(self.folder), ["mine"])


if __name__ == "__main__":
    unittest.main()
