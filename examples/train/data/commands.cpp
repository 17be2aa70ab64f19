// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "data/commands.hpp"

#include <ostream>

namespace rotoscale::program {

void define_tokenizer(CLI::App& app, tokenizer_arguments& a) {
  CLI::App* tokenizer = app.add_subcommand("tokenizer", "train a SentencePiece model, or encode text with one");
  tokenizer->require_subcommand(1);
  CLI::App* train = tokenizer->add_subcommand("train", "pieces from text");
  train->add_option("--data", a.train.data, "text files or directories, plain or gzip")->required();
  train->add_option("--text-format", a.train.text_format, "auto, plain or bytes")->capture_default_str();
  train->add_option("--vocab-size", a.train.vocabulary, "pieces, 259 for bytes and controls among them")
      ->capture_default_str()
      ->check(CLI::Range(260, 1 << 24));
  train->add_option("--type", a.train.type, "bpe or unigram")
      ->capture_default_str()
      ->check(CLI::IsMember({"bpe", "unigram"}));
  train->add_option("--out", a.train.out, "model to write")->required();
  CLI::App* encode = tokenizer->add_subcommand("encode", "a token file (llm.c's form) of text");
  encode->add_option("--data", a.encode.data, "text files or directories, plain or gzip")->required();
  encode->add_option("--text-format", a.encode.text_format, "auto, plain or bytes")->capture_default_str();
  encode->add_option("--tokenizer", a.encode.tokenizer, "SentencePiece model (default: bytes)");
  encode->add_option("--out", a.encode.out, "token file to write")->required();
  encode->callback([&a] { a.encodes = true; });
}

int run_tokenizer(const tokenizer_arguments& a, std::ostream& out) {
  progress_line line;
  if (!a.encodes) {
    const progress_function reading = line.counter(a.train.out, "reading text for pieces");
    train_tokenizer(a.train, [&](std::int64_t done, std::int64_t total) {
      reading(done, total);
      if (done >= total) line.show(a.train.out, {"training pieces"}, true);
    });
    line.end();
    out << a.train.out << ": " << tokenizer::load(a.train.out).vocabulary() << " pieces\n";
  } else {
    const std::uint64_t count = encode_to_file(a.encode, line.counter(a.encode.out, "encoding"));
    line.end();
    out << a.encode.out << ": " << count << " tokens\n";
  }
  return 0;
}

}  // namespace rotoscale::program
