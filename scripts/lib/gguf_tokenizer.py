"""The tokenizer of a GGUF file as tokenizer.json and its companions.

Byte-level BPE only, as all of llama 3, qwen2, qwen3 and SmolLM have it. The
file names its pre-tokenizer; the patterns below are those that the named
tokenizers ship with.
"""

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2_SPLIT = LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")


def _byte_level(use_regex):
    return {"type": "ByteLevel", "add_prefix_space": False,
            "trim_offsets": True, "use_regex": use_regex}


def _sequence(*parts):
    return {"type": "Sequence", "pretokenizers": list(parts)}


def _split(pattern):
    return _sequence({"type": "Split", "pattern": {"Regex": pattern},
                      "behavior": "Isolated", "invert": False},
                     _byte_level(False))


_DIGITS = _sequence({"type": "Digits", "individual_digits": True},
                    _byte_level(True))
# name in the file: (pre-tokenizer, normalizer, ignore_merges)
PRE_TOKENIZERS = {
    "gpt-2": (_byte_level(True), None, False),
    "smollm": (_DIGITS, None, False),
    "starcoder": (_DIGITS, None, False),
    "refact": (_DIGITS, None, False),
    "llama-bpe": (_split(LLAMA3_SPLIT), None, True),
    "llama-v3": (_split(LLAMA3_SPLIT), None, True),
    "llama3": (_split(LLAMA3_SPLIT), None, True),
    "qwen2": (_split(QWEN2_SPLIT), {"type": "NFC"}, False),
    "deepseek-r1-qwen": (_split(QWEN2_SPLIT), {"type": "NFC"}, False),
}
NAMED = {"bos_token": "bos_token_id", "eos_token": "eos_token_id",
         "unk_token": "unknown_token_id", "pad_token": "padding_token_id"}


def _entries(file, vocab_size):
    """(token, type) of every id that means something."""
    tokens = file.get("tokenizer.ggml.tokens", list)
    types = file.get("tokenizer.ggml.token_type", list,
                     [NORMAL] * len(tokens))
    if len(types) != len(tokens) or len(tokens) > vocab_size:
        raise file.failure(f"{len(tokens)} tokens, {len(types)} token types "
                           f"and {vocab_size} embedding rows do not fit")
    entries = list(zip(tokens, types))
    while entries and entries[-1][1] == UNUSED:  # rows that only pad
        entries.pop()
    for i, (token, kind) in enumerate(entries):
        if kind not in (NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED):
            raise file.failure(f"token {i} has type {kind}, which is not "
                               "understood")
        if not isinstance(token, str) or not token:
            raise file.failure(f"token {i} is empty")
    if len({token for token, _ in entries}) != len(entries):
        raise file.failure("two tokens are spelled alike")
    return entries


def _merges(file, vocabulary):
    merges = []
    for i, merge in enumerate(file.get("tokenizer.ggml.merges", list)):
        pair = merge.split(" ")
        if len(pair) != 2 or not all(part in vocabulary for part in
                                     (*pair, "".join(pair))):
            raise file.failure(f"merge {i} ({merge!r}) does not join two "
                               "tokens to a third")
        merges.append(pair)
    return merges


def convert(file, vocab_size):
    """The tokenizer files as {file name: JSON value}."""
    kind = file.get("tokenizer.ggml.model", str)
    if kind != "gpt2":
        raise file.failure(f"tokenizer model {kind} is not supported "
                           "(gpt2, byte-level BPE, is)")
    name = file.get("tokenizer.ggml.pre", str)
    if name not in PRE_TOKENIZERS:
        raise file.failure(f"pre-tokenizer {name} is not understood "
                           f"({', '.join(PRE_TOKENIZERS)} are)")
    pre_tokenizer, normalizer, ignore_merges = PRE_TOKENIZERS[name]
    entries = _entries(file, vocab_size)
    vocabulary = {token: i for i, (token, _) in enumerate(entries)}
    added = [{"id": i, "content": token, "single_word": False,
              "lstrip": False, "rstrip": False, "normalized": False,
              "special": kind == CONTROL}
             for i, (token, kind) in enumerate(entries)
             if kind in (CONTROL, USER_DEFINED)]
    named = {}
    for key, field in NAMED.items():
        token_id = file.get(f"tokenizer.ggml.{field}", int, required=False)
        if token_id is None:
            continue
        if not 0 <= token_id < len(entries):
            raise file.failure(f"tokenizer.ggml.{field} {token_id} is not "
                               "in the vocabulary")
        named[key] = entries[token_id][0]

    model = {"type": "BPE", "dropout": None, "unk_token": None,
             "continuing_subword_prefix": None, "end_of_word_suffix": None,
             "fuse_unk": False, "byte_fallback": False,
             "ignore_merges": ignore_merges, "vocab": vocabulary,
             "merges": _merges(file, vocabulary)}
    add_bos = "bos_token" in named and file.get(
        "tokenizer.ggml.add_bos_token", bool, name.startswith("llama"))
    tokenizer = {"version": "1.0", "truncation": None, "padding": None,
                 "added_tokens": added, "normalizer": normalizer,
                 "pre_tokenizer": pre_tokenizer,
                 "post_processor": _post_processor(named, vocabulary,
                                                   add_bos),
                 "decoder": _byte_level(True), "model": model}
    config = {"added_tokens_decoder": {
                  str(token["id"]): {k: v for k, v in token.items()
                                     if k != "id"} for token in added},
              "add_prefix_space": False,
              "clean_up_tokenization_spaces": False,
              "model_max_length": file.get(".context_length", int),
              "tokenizer_class": "PreTrainedTokenizerFast", **named}
    template = file.get("tokenizer.chat_template", str, required=False)
    if template is not None:
        config["chat_template"] = template
    return {"tokenizer.json": tokenizer, "tokenizer_config.json": config,
            "special_tokens_map.json": named}


def _post_processor(named, vocabulary, add_bos):
    byte_level = _byte_level(True)
    if not add_bos:
        return byte_level
    bos = named["bos_token"]
    token, text = ({"SpecialToken": {"id": bos, "type_id": 0}},
                   {"Sequence": {"id": "A", "type_id": 0}})
    second = {"Sequence": {"id": "B", "type_id": 1}}
    return {"type": "Sequence", "processors": [byte_level, {
        "type": "TemplateProcessing", "single": [token, text],
        "pair": [token, text, token, second],
        "special_tokens": {bos: {"id": bos, "ids": [vocabulary[bos]],
                                 "tokens": [bos]}}}]}
