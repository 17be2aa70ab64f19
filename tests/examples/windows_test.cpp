// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Windows of text, token files and records: their tokens, targets and documents, and what cannot be read.
#include <doctest/doctest.h>

#include <numeric>

#include "data/epoch_order.hpp"
#include "data/open_windows.hpp"
#include "data/records.hpp"
#include "rotoscale/io/scratch.hpp"
#include "rotoscale/io/token_file.hpp"
#include "rotoscale/nn/backend.hpp"

namespace llama_windows_test {

using namespace rotoscale;
using namespace rotoscale::program;
using namespace rotoscale::io::testing;
using ints = std::vector<std::int32_t>;

constexpr std::int32_t none = nn::ignored_target;

data_options make_options(std::vector<std::string> paths, int sequence, double validation = 0.25) {
  data_options o;
  o.paths = std::move(paths);
  o.sequence = sequence;
  o.validation = validation;
  return o;
}

token_batch window(const window_source& source, data_part part, std::int64_t i) {
  token_batch batch;
  source.append(part, i, batch);
  return batch;
}

ints letters(const char* text) {
  ints tokens;
  for (; *text != 0; ++text) tokens.push_back(*text == '_' ? none : *text == '$' ? 0 : *text);
  return tokens;
}

std::string failure(const data_options& o) {
  return message_of([&] { open_windows(o); });
}

void put_tokens(const std::filesystem::path& path, io::token_kind kind, const ints& tokens) {
  io::token_file_writer writer(path, kind);
  writer.write(tokens);
  writer.commit();
}

/// All windows drawn at once.
std::vector<std::int64_t> order_of_epoch(std::int64_t windows, std::uint64_t seed, std::int64_t epoch) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(windows));
  std::iota(order.begin(), order.end(), 0);
  const auto random = nn::stream_for(seed, nn::random_purpose::data_order, static_cast<std::uint64_t>(epoch));
  for (auto j = static_cast<std::uint64_t>(windows) - 1; j > 0; --j) {
    const philox_block words = random.block(j);
    std::swap(order[j], order[(std::uint64_t{words.word[0]} << 32 | words.word[1]) % (j + 1)]);
  }
  return order;
}

TEST_CASE("an epoch's order is the same however it is drawn, and is there when the epoch begins") {
  for (const std::int64_t windows : {1, 2, 3, 7, 64, 1001}) {
    std::vector<std::vector<std::int64_t>> expected;
    for (std::int64_t epoch = 0; epoch < 4; ++epoch) expected.push_back(order_of_epoch(windows, 9, epoch));
    for (const std::int64_t first : {std::int64_t{0}, windows / 2, windows, 2 * windows - 1}) {
      epoch_order order(windows, 9);
      order.draw(first / windows);
      CHECK(order.is_drawn(first / windows));
      for (std::int64_t i = first; i < 4 * windows; ++i) {
        // Only one window's share is left to draw.
        if (i > first) CHECK(order.is_drawn(i / windows));
        CHECK(order.window(i) ==
              expected[static_cast<std::size_t>(i / windows)][static_cast<std::size_t>(i % windows)]);
        CHECK(order.window(i) == order.window(i));
      }
      CHECK(order.window(first) ==
            expected[static_cast<std::size_t>(first / windows)][static_cast<std::size_t>(first % windows)]);
    }
  }
  epoch_order order(1000, 9);
  for (std::int64_t i = 0; i < 500; ++i) static_cast<void>(order.window(i));
  CHECK_FALSE(order.is_drawn(1));  // half of the window
  CHECK_FALSE(order.is_drawn(2));
}

TEST_CASE("text: windows that do not overlap, the end held out") {
  const scratch_directory dir;
  put(dir / "a", "abcdefghi");
  put(dir / "b", "jklmnop");
  const auto source = open_windows(make_options({(dir / "a").string(), (dir / "b").string()}, 3));
  CHECK(std::string(source->kind()) == "text");
  CHECK(source->tokens(data_part::training) == 12);
  CHECK(source->tokens(data_part::validation) == 4);
  CHECK(source->windows(data_part::training) == 3);
  CHECK(source->windows(data_part::validation) == 1);
  CHECK(source->least_vocabulary() == 256);
  const token_batch second = window(*source, data_part::training, 2);
  CHECK(second.tokens == letters("ghi"));
  CHECK(second.targets == letters("hij"));  // across files
  CHECK(second.document_starts.empty());
  CHECK(window(*source, data_part::validation, 0).tokens == letters("mno"));
  // FNV-1a of the bytes, equal to runs without token files.
  CHECK(open_windows(make_options({(dir / "b").string()}, 1, 0.5))->fingerprint() == 0x2128F2162F48725Eu);
}

TEST_CASE("token files: known by their content, one after the other, largest token and bytes") {
  const scratch_directory dir;
  ints tokens(20);
  for (int i = 0; i < 20; ++i) tokens[static_cast<std::size_t>(i)] = 1000 * i;
  put_tokens(dir / "a.txt", io::token_kind::gpt2, ints(tokens.begin(), tokens.begin() + 7));
  put_tokens(dir / "b.txt", io::token_kind::llama3, ints(tokens.begin() + 7, tokens.begin() + 8));
  put_tokens(dir / "c.txt", io::token_kind::llama3, ints(tokens.begin() + 8, tokens.end()));
  const auto source =
      open_windows(make_options({(dir / "a.txt").string(), (dir / "b.txt").string(), (dir / "c.txt").string()}, 4));
  CHECK(std::string(source->kind()) == "tokens");
  CHECK(source->windows(data_part::training) == 3);
  CHECK(source->least_vocabulary() == 19001);
  REQUIRE(source->largest_token() != nullptr);
  CHECK(source->largest_token()->token == 19000);
  CHECK(source->largest_token()->file == (dir / "c.txt").string());
  CHECK(source->largest_token()->position == 11);
  CHECK(source->bytes_of_tokens().empty());
  CHECK(window(*source, data_part::training, 1).tokens == ints(tokens.begin() + 4, tokens.begin() + 8));
  CHECK(window(*source, data_part::training, 1).targets == ints(tokens.begin() + 5, tokens.begin() + 9));
  CHECK(window(*source, data_part::validation, 0).tokens == ints(tokens.begin() + 15, tokens.begin() + 19));

  put(dir / "text", "some text");
  CHECK(failure(make_options({(dir / "a.txt").string(), (dir / "text").string()}, 4)) ==
        (dir / "text").string() + ": no token file, while " + (dir / "a.txt").string() + " is one");
  CHECK(failure(make_options({(dir / "b.txt").string()}, 4)) ==
        (dir / "b.txt").string() +
            ": too short: 1 training and 0 validation tokens, a sequence needs 5 of each (--sequence, --validation)");
}

TEST_CASE("records: only answers are learnt, records stay whole, the rest of a window is masked") {
  const scratch_directory dir;
  put(dir / "r.jsonl", R"({"prompt": "ab", "answer": "cd"})"
                       "\n\n"
                       R"({"text": "efg", "source": 7})"
                       "\n"
                       R"({"answer": "j", "prompt": "hi"})"
                       "\n"
                       R"({"prompt": "", "answer": "k"})"
                       "\r\n");
  const auto source = open_windows(make_options({(dir / "r.jsonl").string()}, 8));
  CHECK(std::string(source->kind()) == "records");
  CHECK(source->windows(data_part::training) == 2);
  CHECK(source->windows(data_part::validation) == 1);
  CHECK(source->tokens(data_part::training) == 5 + 4 + 4);
  const token_batch first = window(*source, data_part::training, 0);
  CHECK(first.tokens == letters("abcdefg$"));
  CHECK(first.targets == letters("_cd$fg$_"));
  CHECK(first.document_starts == ints{0, 0, 0, 0, 4, 4, 4, 7});
  const token_batch second = window(*source, data_part::training, 1);
  CHECK(second.tokens == letters("hij$$$$$"));
  CHECK(second.targets == letters("_j$_____"));
  CHECK(second.document_starts == ints{0, 0, 0, 3, 3, 3, 3, 3});
  const token_batch held_out = window(*source, data_part::validation, 0);
  CHECK(held_out.tokens == letters("k$$$$$$$"));
  CHECK(held_out.targets == letters("$_______"));
  // The end of a record is a target but not text. Every other byte is both.
  ints bytes(256, 1);
  bytes[0] = 0;
  CHECK(source->bytes_of_tokens() == bytes);
  // The first two records are one token too long for a window. The next two fill one.
  const auto narrow = open_windows(make_options({(dir / "r.jsonl").string()}, 6));
  CHECK(narrow->windows(data_part::training) == 2);
  CHECK(window(*narrow, data_part::training, 0).tokens == letters("abcd$$"));
  CHECK(window(*narrow, data_part::training, 0).targets == letters("_cd$__"));
  CHECK(window(*narrow, data_part::training, 1).tokens == letters("efghij"));
}

TEST_CASE("records: what is none, by its line") {
  const scratch_directory dir;
  const std::string good = "{\"prompt\": \"a\", \"answer\": \"b\"}\n", name = (dir / "r").string();
  const auto failure_of = [&](const std::string& line) {
    put(dir / "r", good + good + line);
    return failure(make_options({name}, 8));
  };
  CHECK(failure_of("") == "(no error)");
  CHECK(failure_of("{\"prompt\": \"a\"}") == name + ": line 3: answer is missing");
  CHECK(failure_of("{\"prompt\": 1, \"answer\": \"\"}") == name + ": line 3: prompt is not a string");
  CHECK(failure_of("[]") == name + ": line 3: not an object");
  CHECK(failure_of("{\"text\": \"\"}") == name + ": line 3: the record is empty");
  CHECK(failure_of("{\"text\": \"\\u0000\"}") == name + ": line 3: text holds a zero byte, which ends documents");
  CHECK(failure_of("{\"text\": ").starts_with(name + ": line 3, column 10: syntax error"));
  CHECK(failure_of("{\"text\": \"12345678\"}") == "(no error)");
  CHECK(failure_of("{\"text\": \"123456789\"}") == name +
                                                       ": line 3: 10 tokens do not fit a sequence of 8 and its last "
                                                       "target (--sequence; --long-records cut or skip)");
  put(dir / "r", good);
  CHECK(failure(make_options({name}, 8)) ==
        name + ": too short: 1 training and 0 validation records, each needs one (--validation)");
}

TEST_CASE("records: what is learnt is part of what the data are") {
  const scratch_directory dir;
  const auto fingerprint_of = [&](const std::string& record) {
    put(dir / "r", record + "\n" + record + "\n");
    return open_windows(make_options({(dir / "r").string()}, 8))->fingerprint();
  };
  const auto one = fingerprint_of("{\"prompt\": \"ab\", \"answer\": \"cd\"}");
  CHECK(fingerprint_of("{\"answer\": \"cd\", \"prompt\": \"ab\"}") == one);
  CHECK(fingerprint_of("{\"prompt\": \"abc\", \"answer\": \"d\"}") != one);  // the same tokens
}

TEST_CASE("JSON that is not JSON lines of records is no text") {
  const scratch_directory dir;
  const std::string name = (dir / "j").string(), record = "{\"prompt\": \"a\", \"answer\": \"b\"}";
  const auto failure_of = [&](const std::string& text) {
    put(dir / "j", text);
    return failure(make_options({name}, 2));
  };
  const std::string hint = "; --text-format plain takes the file as text";
  const std::string array = name + ": an array of JSON, not JSON lines" + hint;
  CHECK(failure_of("[" + record + ", " + record + "]") == array);
  CHECK(failure_of("[\n  " + record + "\n]\n") == array);
  CHECK(failure_of("{\n  \"prompt\": \"a\",\n  \"answer\": \"b\"\n}\n").find(name + ": line 1, ") == 0);
  for (const char* text : {"[Chapter 1]\nIt was a dark night", "\"Hello,\" he said.\n", "{curly} text",
                           "[1] A book.\n[2] B", "[1]\nA book, by someone", "[1, 2]\n[3]\n", "\"one\"\n\"two\"\n"}) {
    CHECK(failure_of(text) == "(no error)");
  }
  put(dir / "j", "[" + record + "]");
  data_options plain = make_options({name}, 2);
  plain.text_format = "plain";
  CHECK(failure(plain) == "(no error)");
}

TEST_CASE("llm.c's evaluation file is called one") {
  const scratch_directory dir;
  const std::uint32_t magic = 20240522;  // dev/data/data_common.py, write_evalfile
  put(dir / "hellaswag_val.bin", std::string(reinterpret_cast<const char*>(&magic), 4) + std::string(1020, '\0'));
  CHECK(failure(make_options({(dir / "hellaswag_val.bin").string()}, 2))
            .find("hellaswag_val.bin: is an evaluation file of llm.c") != std::string::npos);
}

TEST_CASE("messages: the assistant's turns are learnt") {
  const scratch_directory dir;
  const std::string chat = R"({"messages": [{"role": "user", "content": "u"}, {"role": "assistant", "content": "A"},)"
                           R"( {"role": "user", "content": "v"}, {"role": "assistant", "content": "B"}]})";
  put(dir / "r", chat + "\n" + chat + "\n");
  data_options o = make_options({(dir / "r").string()}, 400, 0.5);
  CHECK(failure(o).find("line 1: messages need --chat-template") != std::string::npos);
  for (const auto& [name, learnt] :
       {std::pair{"chatml", "A<|im_end|>\nB<|im_end|>\n"}, {"llama3", "A<|eot_id|>B<|eot_id|>"}}) {
    o.chat_template = name;
    const token_batch batch = window(*open_windows(o), data_part::training, 0);
    ints targets;
    for (const std::int32_t target : batch.targets) {
      if (target != none) targets.push_back(target);
    }
    std::string text(targets.begin(), targets.end());
    CHECK(text == learnt + std::string(1, '\0'));
  }
}

TEST_CASE("records that no window holds: cut or left out, and counted") {
  const scratch_directory dir;
  put(dir / "r",
      "{\"text\": \"abcdefgh\"}\n{\"prompt\": \"abcdefgh\", \"answer\": \"z\"}\n{\"text\": \"ab\"}\n{\"text\": "
      "\"cd\"}\n");
  data_options o = make_options({(dir / "r").string()}, 4, 0.5);
  o.long_records = "cut";
  auto source = open_windows(o);
  CHECK(source->long_records() == 2);
  CHECK(window(*source, data_part::training, 0).targets == letters("bcde"));
  o.long_records = "skip";
  source = open_windows(o);
  CHECK(source->long_records() == 2);
  CHECK(window(*source, data_part::training, 0).tokens == letters("ab$$"));
}

TEST_CASE("whole: every token but the first is a target once, however few") {
  const scratch_directory dir;
  put(dir / "t", "abcdefgh");
  data_options o = make_options({(dir / "t").string()}, 3);
  o.whole = true;
  auto source = open_windows(o);
  CHECK(source->windows(data_part::training) == 0);
  REQUIRE(source->windows(data_part::validation) == 3);
  CHECK(window(*source, data_part::validation, 0).targets == letters("bcd"));
  CHECK(window(*source, data_part::validation, 2).tokens == letters("g$$"));
  CHECK(window(*source, data_part::validation, 2).targets == letters("h__"));
  put(dir / "t", "{\"text\": \"abc\"}\n");
  source = open_windows(o);
  CHECK(source->windows(data_part::validation) == 1);
  CHECK(source->tokens(data_part::training) == 0);
}

TEST_CASE("files of two kinds are refused in either order") {
  const scratch_directory dir;
  const std::string text = (dir / "text").string(), mark = "\xEF\xBB\xBF";
  const std::string records = (dir / "records").string(), tokens = (dir / "tokens").string();
  put(text, "some text, long enough for a window");
  put(records, mark + "{\"text\": \"abc\"}\n{\"text\": \"abc\"}\n");
  put_tokens(tokens, io::token_kind::gpt2, ints(20, 7));
  CHECK(failure(make_options({records, records}, 4)) == "(no error)");  // a mark before each
  CHECK(failure(make_options({text, records}, 4)) == records + ": records, while " + text + " is text");
  CHECK(failure(make_options({text, tokens}, 4)) == tokens + ": a token file, while " + text + " is text");
  CHECK(failure(make_options({records, text}, 4)).starts_with(text + ": line 1, column 1: syntax error"));
  CHECK(failure(make_options({tokens, records}, 4)) == records + ": no token file, while " + tokens + " is one");
  put(dir / "folder/a", "{\"text\": \"abc\"}\n{\"text\": \"abc\"}\n");
  const std::string folder = (dir / "folder").string();
  CHECK(failure(make_options({folder}, 4)) ==
        folder + ": begins with records, which are read from files, not from a directory");
  data_options o = make_options({text, records}, 4);
  o.text_format = "plain";
  CHECK(failure(o) == "(no error)");
}

}  // namespace llama_windows_test
