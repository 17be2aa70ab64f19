// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// The contract of the atomic writers: the final name only ever shows a complete file or directory, and nothing else
// remains. For a loss of power, tests/examples/mini_llama_kill.py traces the order of system calls.

#include "rotoscale/io/atomic_file.hpp"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <string>

#include "scratch.hpp"

namespace atomic_file_test {

namespace fs = std::filesystem;
namespace io = rotoscale::io;
using namespace rotoscale::io::testing;

TEST_CASE("an atomic file appears complete or not at all") {
  const scratch_directory dir;
  const fs::path path = dir / "out.json";
  {
    io::atomic_file file(path);
    file.write("half");
    CHECK_FALSE(fs::exists(path));
  }
  CHECK(dir.entries() == 0);
  io::write_file_atomically(path, "first");
  CHECK(get(path) == "first");
  {
    io::atomic_file file(path);
    io::atomic_file other(path);
    file.write("sec");
    CHECK(get(path) == "first");
    file.write("ond");
    file.commit();
    CHECK(get(path) == "second");
  }
  CHECK(get(path) == "second");
  CHECK(dir.entries() == 1);
  const std::string large(3'000'000, 'x');
  io::write_file_atomically(path, large);
  CHECK(get(path) == large);
}

TEST_CASE("what a killed writer has left is removed by the next one of that file, what a living one has is not") {
  const scratch_directory dir;
  const fs::path path = dir / "out.bin";
  put(dir / ".out.bin.tmp-1-0", "left");
  put(dir / ".out.bin.tmp-99999999-7", "left");
  for (const char* other : {".other.bin.tmp-1-0", ".out.bin.tmp-x", ".out.bin", "out.bin.tmp-1-0"})
    put(dir / other, "kept");
  fs::create_directory(dir / ".out.bin.tmp-2");
  {
    io::atomic_file living(path);
    living.write("living");
    CHECK(dir.entries() == 4 + 1);
    io::write_file_atomically(path, "other");
    CHECK(get(path) == "other");
    living.commit();
  }
  CHECK(get(path) == "living");
  CHECK(dir.entries() == 4 + 1);
}

TEST_CASE("a killed writer's directory is removed by the next one of that name, a living one's is not") {
  const scratch_directory dir;
  put(dir / ".model.tmp-99999999" / "half" / "file", "left");
  put(dir / ".other.tmp-99999999" / "file", "another's");
  {
    io::atomic_directory living(dir / "model");
    CHECK(dir.entries() == 2);
    put(living.path() / "file", "living");
    io::detail::remove_unclaimed(dir / "model");
    CHECK(get(living.path() / "file") == "living");
    living.commit();
  }
  CHECK(get(dir / "model" / "file") == "living");
  CHECK(dir.entries() == 2);
}

TEST_CASE("an atomic file follows a symbolic link and honours the umask") {
  const scratch_directory dir;
  put(dir / "target", "old");
  fs::create_symlink("target", dir / "link");
  io::write_file_atomically(dir / "link", "new");
  CHECK(fs::is_symlink(dir / "link"));
  CHECK(get(dir / "target") == "new");
  const mode_t before = ::umask(027);
  io::write_file_atomically(dir / "masked", "x");
  ::umask(before);
  CHECK(fs::status(dir / "masked").permissions() == fs::perms(0640));
}

TEST_CASE("an atomic file names what it cannot write") {
  const scratch_directory dir;
  put(dir / "file", "x");
  const auto attempt = [](const fs::path& path) { return message_of([&] { io::write_file_atomically(path, "x"); }); };
  const std::string missing = (dir / "no").string() + "/out";
  CHECK(attempt(missing) == missing + ": cannot write: No such file or directory");
  const std::string below_file = (dir / "file").string() + "/out";
  CHECK(attempt(below_file) == below_file + ": cannot write: Not a directory");
  CHECK(attempt(dir.path()) == dir.path().string() + ": cannot write: is a directory");
  const std::string slashed = (dir / "new").string() + "/";
  CHECK(attempt(slashed) == slashed + ": cannot write: is a directory");
  CHECK(attempt("/dev/null") == "/dev/null: cannot write: not a regular file");
  CHECK(attempt("..") == "..: not a name that can be written");
  CHECK(attempt("/") == "/: not a name that can be written");
  CHECK(attempt("") == ": not a name that can be written");
  CHECK(dir.entries() == 1);
}

TEST_CASE("an atomic directory appears complete or not at all") {
  const scratch_directory dir;
  const fs::path path = dir / "step-5";
  {
    io::atomic_directory out(path);
    CHECK(out.path().parent_path() == dir.path());
    CHECK(out.path().filename().string() == ".step-5.tmp-" + std::to_string(::getpid()));
    put(out.path() / "a", "half");
    CHECK_FALSE(fs::exists(path));
  }
  CHECK(dir.entries() == 0);
  {
    io::atomic_directory out(path.string() + "/");
    put(out.path() / "a", "1");
    put(out.path() / "sub" / "b", "2");
    out.commit();
  }
  CHECK(get(path / "a") == "1");
  CHECK(get(path / "sub" / "b") == "2");
  CHECK(dir.entries() == 1);
}

TEST_CASE("an atomic directory replaces an existing one as a whole") {
  const scratch_directory dir;
  const fs::path path = dir / "step-5";
  put(path / "old", "1");
  put(dir / (".step-5.tmp-" + std::to_string(::getpid())) / "left", "by a killed process");
  {
    io::atomic_directory out(path);
    put(out.path() / "new", "2");
    CHECK(get(path / "old") == "1");
    out.commit();
  }
  CHECK(get(path / "new") == "2");
  CHECK_FALSE(fs::exists(path / "old"));
  CHECK_FALSE(fs::exists(path / "left"));
  CHECK(dir.entries() == 1);
}

TEST_CASE("without an exchange in one step the old directory is moved away, and back on failure") {
  const scratch_directory dir;
  const fs::path path = dir / "final";
  put(path / "old", "1");
  put(dir / "next" / "new", "2");
  CHECK(message_of([&] { io::detail::displace_directory(dir / "missing", path); }) ==
        path.string() + ": cannot rename to it: No such file or directory");
  CHECK(get(path / "old") == "1");
  const fs::path old = io::detail::displace_directory(dir / "next", path);
  CHECK(get(path / "new") == "2");
  CHECK(get(old / "old") == "1");
  CHECK(old.filename().string().front() == '.');
}

TEST_CASE("make_directories makes all that is missing, and names what it cannot make") {
  const scratch_directory dir;
  io::make_directories(dir / "a/b/c");
  CHECK(fs::is_directory(dir / "a/b/c"));
  io::make_directories(dir / "a/b/c");
  io::make_directories(dir / "d/");
  CHECK(fs::is_directory(dir / "d"));
  put(dir / "file", "x");
  const std::string file = (dir / "file").string();
  CHECK(message_of([&] { io::make_directories(file); }) ==
        file + ": cannot create the directory: exists and is no directory");
  CHECK(message_of([&] { io::make_directories(file + "/below"); }).find("cannot create the directory") !=
        std::string::npos);
  // If one directory cannot be made, its new parents are removed.
  const std::string below = (dir / "e/f" / std::string(300, 'g')).string();
  CHECK(message_of([&] { io::make_directories(below); }) ==
        below + ": cannot create the directory: File name too long");
  CHECK(!fs::exists(dir / "e"));
}

TEST_CASE("new directories go unless they are kept, but for what was there and what is not empty") {
  const scratch_directory dir;
  fs::create_directory(dir / "a");
  const auto make = [&](const char* name, bool keeps, bool fills) {
    io::new_directories made(dir / name);
    CHECK(fs::is_directory(dir / name));
    if (fills) put(dir / name / "file", "x");
    if (keeps) made.keep();
  };
  make("a/b/c", false, false);
  CHECK(fs::is_directory(dir / "a"));
  CHECK(!fs::exists(dir / "a/b"));
  make("a/d/e", true, false);
  CHECK(fs::is_directory(dir / "a/d/e"));
  make("a/f", false, true);
  CHECK(get(dir / "a/f" / "file") == "x");
}

}  // namespace atomic_file_test
