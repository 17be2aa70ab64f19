// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// Text from files and directories, and the message for each failure.

#include "rotoscale/io/text.hpp"

#include <doctest/doctest.h>
#include <zlib.h>

#include <string>

#include "scratch.hpp"

namespace text_test {

namespace fs = std::filesystem;
namespace io = rotoscale::io;
using namespace rotoscale::io::testing;

void put_gzip(const fs::path& path, std::string_view text) {
  const gzFile file = gzopen(path.c_str(), "wb");
  REQUIRE(file != nullptr);
  CHECK(gzwrite(file, text.data(), static_cast<unsigned>(text.size())) == static_cast<int>(text.size()));
  CHECK(gzclose(file) == Z_OK);
}

std::string failure(const fs::path& path) {
  return message_of([&] { io::read_text(path); });
}

TEST_CASE("read_text reads a plain and a compressed file") {
  const scratch_directory dir;
  put(dir / "a.txt", "no newline");
  CHECK(io::read_text(dir / "a.txt") == "no newline");
  put_gzip(dir / "b.gz", "packed\n");
  CHECK(io::read_text(dir / "b.gz") == "packed\n");
}

TEST_CASE("read_text joins the files of a directory in the order of their paths") {
  const scratch_directory dir;
  put(dir / "b.txt", "second");
  put(dir / "a.txt", "first\n");
  put(dir / "sub/z.txt", "fifth");
  put_gzip(dir / "sub/c.gz", "fourth");
  put(dir / "c.txt", "");
  put(dir / "d.txt", "third\n");
  put(dir / ".hidden", "no");
  put(dir / "sub/.hidden", "no");
  put(dir / ".git/config", "no");
  fs::create_symlink(dir / "b.txt", dir / "sub/zz.txt");
  const std::string joined = "first\nsecond\nthird\nfourth\nfifth\nsecond";
  CHECK(io::read_text(dir.path()) == joined);
  CHECK(io::read_text(dir.path().string() + "/") == joined);
  fs::rename(dir / "sub", dir / ".sub");
  CHECK(io::read_text(dir / ".sub") == "fourth\nfifth\nsecond");  // named explicitly, so not hidden
  CHECK(io::read_text(dir.path()) == "first\nsecond\nthird\n");
}

TEST_CASE("read_text names the file that has no text") {
  const scratch_directory dir;
  const std::string missing = (dir / "missing").string();
  CHECK(failure(missing) == missing + ": cannot open: No such file or directory");
  put(dir / "empty", "");
  CHECK(failure(dir / "empty") == (dir / "empty").string() + ": the text is empty");
  put_gzip(dir / "empty.gz", "");
  CHECK(failure(dir / "empty.gz") == (dir / "empty.gz").string() + ": the text is empty");
  CHECK(failure(dir.path()) == dir.path().string() + ": the directory holds no text");
}

TEST_CASE("read_text names the bad file in a directory") {
  const scratch_directory dir;
  put(dir / "a.txt", "good");
  put_gzip(dir / "sub.gz", "packed");
  fs::resize_file(dir / "sub.gz", 20);
  CHECK(failure(dir.path()) == (dir / "sub.gz").string() + ": truncated gzip file");
  put(dir / "sub.gz", "\x1f\x8b rubbish");
  CHECK(failure(dir.path()) == (dir / "sub.gz").string() + ": corrupt gzip file: unknown compression method");
  fs::remove(dir / "sub.gz");
  fs::create_symlink("nowhere", dir / "dangling");
  CHECK(failure(dir.path()) == (dir / "dangling").string() + ": cannot open: No such file or directory");
  fs::remove(dir / "dangling");
  if (::geteuid() == 0) return;  // root can read everything
  fs::permissions(dir / "a.txt", fs::perms::none);
  CHECK(failure(dir.path()) == (dir / "a.txt").string() + ": cannot open: Permission denied");
}

TEST_CASE("files of other kinds are called so") {
  const auto refused = [](const std::string& content) {
    return message_of([&] { io::detail::extract_text(content, "data", io::text_format::plain); });
  };
  CHECK(refused("\x28\xb5\x2f\xfd\x04\x58") == "data: is zstd: decompress it");
  CHECK(refused("PAR1\x15\x04") == "data: is Parquet: convert it to JSON lines or safetensors");
  CHECK(refused("version https://git-lfs.github.com/spec/v1\n").starts_with("data: is a Git LFS pointer"));
}

TEST_CASE("binary files are refused as text and taken as bytes") {
  const scratch_directory dir;
  const std::string binary(
      "\x7f"
      "ELF\0\1",
      6);
  put(dir / "x/a.out", binary);
  const std::string message = (dir / "x/a.out").string() +
                              ": not text: a zero byte at offset 4 (binary, or UTF-16); "
                              "--text-format bytes takes it as it is";
  CHECK(failure(dir / "x/a.out") == message);
  CHECK(failure(dir / "x") == message);
  CHECK(io::read_text(dir / "x/a.out", io::text_format::bytes) == binary);
  put(dir / "latin", "caf\xE9 au lait");
  const std::string latin = (dir / "latin").string();
  CHECK(failure(latin) == latin +
                              ": not text: byte \\xe9 at offset 3 is not UTF-8 (binary, or text in another encoding); "
                              "--text-format bytes takes it as it is");
  CHECK(message_of([&] { io::read_text(latin, io::text_format::bytes); }) == "(no error)");
  put(dir / "control", "ab\x01");
  CHECK(failure(dir / "control") == (dir / "control").string() +
                                        ": not text: byte \\x01 at offset 2 is a control character (binary?); "
                                        "--text-format bytes takes it as it is");
  put(dir / "terminal", "\a\b\t\n\v\f\r\x1a\x1b[1m\xEF\xBB\xBF\xC2\x85");
  CHECK(failure(dir / "terminal") == "(no error)");
  // Only the start of a file is checked. A character across its end is complete.
  const std::string most((std::size_t{1} << 20) - 1, 'x');
  put(dir / "long", most + "\xC3\xA9\xE9");
  CHECK(failure(dir / "long") == "(no error)");
  put(dir / "long", most + "\xE9");
  CHECK(failure(dir / "long").find("at offset 1048575 is not UTF-8") != std::string::npos);
  put_gzip(dir / "z.gz", std::string(2'000'000, '\0'));
  CHECK(failure(dir / "z.gz").find("not text: a zero byte at offset 0 (binary, or UTF-16)") != std::string::npos);
}

}  // namespace text_test
