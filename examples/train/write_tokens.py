#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Rotoscale authors
# SPDX-License-Identifier: Apache-2.0
"""Writes a token file (llm.c's form, docs/reference/files.md) with a tokenizer that mini-llama does not read.

Usage: write_tokens.py --tokenizer DIR_OR_NAME | --tiktoken FILE_OR_NAME  --data FILE... --out TOKENS.bin
Each file is a document: the begin-of-text token if the tokenizer adds one, its tokens, the end-of-text token."""
import argparse
import os
import struct
import sys

MOST_TOKENS = 2**31 - 1
# The split of Llama 3's tokenizer, which its file of ranks does not hold.
LLAMA_3_PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
                   r"\s*[\r\n]+|\s+(?!\S)|\s+")


def header(vocabulary, count):
    """The 1024 bytes before the tokens: GPT-2's form for 16-bit tokens, else Llama 3's."""
    magic, version = (20240520, 1) if vocabulary <= 65536 else (20240801, 7)
    return struct.pack("<256i", magic, version, count, *[0] * 253)


def write(path, vocabulary, documents):
    """Writes documents, lists of tokens, to a file that appears whole or not at all. Returns the number of tokens."""
    form = "H" if vocabulary <= 65536 else "I"
    temporary, count = f"{path}.tmp-{os.getpid()}", 0
    try:
        with open(temporary, "wb") as file:
            file.write(header(vocabulary, 0))
            for tokens in documents:
                if any(not 0 <= t < vocabulary for t in tokens):
                    raise ValueError(f"a token is not below the vocabulary of {vocabulary}")
                count += len(tokens)
                if count > MOST_TOKENS:
                    raise ValueError(f"more than {MOST_TOKENS} tokens; write several files")
                file.write(struct.pack(f"<{len(tokens)}{form}", *tokens))
            file.seek(0)
            file.write(header(vocabulary, count))
        os.replace(temporary, path)
    finally:
        if os.path.exists(temporary):
            os.remove(temporary)
    return count


def of_transformers(name):
    """Vocabulary and encoder of a directory or name that transformers loads."""
    from transformers import AutoTokenizer
    tokenizer = AutoTokenizer.from_pretrained(name)
    end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    return len(tokenizer), lambda text: tokenizer.encode(text) + [t for t in end if tokenizer.encode("")[-1:] != [t]]


def of_tiktoken(name):
    """Vocabulary and encoder of tiktoken's ranks: a name ("gpt2"), or Llama 3's tokenizer.model."""
    import tiktoken
    if not os.path.exists(name):
        encoding = tiktoken.get_encoding(name)
        return encoding.n_vocab, lambda text: encoding.encode_ordinary(text) + [encoding.eot_token]
    from tiktoken.load import load_tiktoken_bpe
    ranks = load_tiktoken_bpe(os.path.abspath(name))
    begin, end = len(ranks), len(ranks) + 1  # <|begin_of_text|>, <|end_of_text|>
    encoding = tiktoken.Encoding(os.path.basename(name), pat_str=LLAMA_3_PATTERN, mergeable_ranks=ranks,
                                 special_tokens={"<|begin_of_text|>": begin, "<|end_of_text|>": end})
    return len(ranks) + 256, lambda text: [begin] + encoding.encode_ordinary(text) + [end]


def fail(message):
    print(f"write_tokens: {message}", file=sys.stderr)
    sys.exit(2)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--tokenizer", help="directory or name for transformers' AutoTokenizer")
    which.add_argument("--tiktoken", help="tiktoken's name of an encoding, or Llama 3's tokenizer.model")
    parser.add_argument("--data", nargs="+", required=True, help="UTF-8 text files")
    parser.add_argument("--out", required=True, help="token file to write")
    options = parser.parse_args()
    inputs = options.data + [p for p in (options.tokenizer, options.tiktoken) if p]
    if os.path.exists(options.out) and any(os.path.exists(p) and os.path.samefile(p, options.out) for p in inputs):
        fail(f"{options.out}: would be written, and is an input")
    try:
        vocabulary, encode = of_transformers(options.tokenizer) if options.tokenizer else of_tiktoken(options.tiktoken)
        documents = (encode(open(path, encoding="utf-8", newline="").read()) for path in options.data)
        count = write(options.out, vocabulary, documents)
    except (ImportError, OSError, ValueError) as error:
        fail(error)
    print(f"{options.out}: {count} tokens, --vocab-size {vocabulary}")


if __name__ == "__main__":
    main()
