// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
// TensorBoard's event files: TFRecord frames (TensorFlow, core/lib/io/record_writer) of serialized protocol buffers
// (tensorboard/compat/proto/event.proto, summary.proto), of which scalars need five fields.

#include <array>
#include <bit>
#include <chrono>
#include <string>
#include <string_view>

#include "rotoscale/io/append_file.hpp"
#include "rotoscale/io/atomic_file.hpp"
#include "trainer/log.hpp"

namespace rotoscale::program {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

namespace {

/// CRC-32C (Castagnoli; RFC 3720, B.4) of bytes.
std::uint32_t crc32c(std::string_view bytes) {
  static const std::array<std::uint32_t, 256> table = [] {
    std::array<std::uint32_t, 256> t{};
    for (std::uint32_t i = 0; i < 256; ++i) {
      std::uint32_t c = i;
      for (int bit = 0; bit < 8; ++bit) c = (c & 1) != 0 ? c >> 1 ^ 0x82F63B78u : c >> 1;
      t[i] = c;
    }
    return t;
  }();
  std::uint32_t crc = ~0u;
  for (const char byte : bytes) crc = table[(crc ^ static_cast<unsigned char>(byte)) & 0xFF] ^ crc >> 8;
  return ~crc;
}

/// Little-endian.
template <class Integer>
std::string fixed(Integer value) {
  std::string bytes;
  for (std::size_t i = 0; i < sizeof value; ++i) bytes += static_cast<char>(value >> 8 * i & 0xFF);
  return bytes;
}

std::string varint(std::uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
  return bytes + static_cast<char>(value);
}

enum wire_type { wire_varint = 0, wire_64_bits = 1, wire_bytes = 2, wire_32_bits = 5 };

std::string field(unsigned number, wire_type type, const std::string& value) {
  return varint(number << 3 | type) + (type == wire_bytes ? varint(value.size()) : "") + value;
}

/// A record with its length, each with a masked checksum.
std::string frame(const std::string& data) {
  const auto masked = [](std::string_view bytes) { return fixed(std::rotr(crc32c(bytes), 15) + 0xA282EAD8u); };
  const std::string length = fixed(static_cast<std::uint64_t>(data.size()));
  return length + masked(length) + data + masked(data);
}

/// Event: wall_time 1, step 2, content.
std::string event(std::int64_t step, const std::string& what) {
  const double now = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  return frame(field(1, wire_64_bits, fixed(std::bit_cast<std::uint64_t>(now))) +
               field(2, wire_varint, varint(static_cast<std::uint64_t>(step))) + what);
}

class tensorboard_log : public log_sink {
 public:
  explicit tensorboard_log(const fs::path& directory) {
    io::make_directories(directory);
    // TensorBoard reads files in the order of their names. Files of one second are numbered in order.
    const auto seconds =
        std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
    long long number = seconds;
    const auto name = [&] { return directory / ("events.out.tfevents." + std::to_string(number) + ".mini-llama"); };
    while (fs::exists(name())) ++number;
    file_ = io::append_file(name(), io::append_file::mode::create);
    file_.write(event(0, field(3, wire_bytes, "brain.Event:2")));
  }

  void write(const ordered_json& record) override {
    constexpr std::pair<const char*, const char*> of_steps[] = {{"loss", "train/loss"},
                                                                {"lr", "train/learning_rate"},
                                                                {"grad_norm", "train/gradient_norm"},
                                                                {"tokens_per_s", "train/tokens_per_s"},
                                                                {"roof_share", "train/roof_share"},
                                                                {"loader_share", "train/loader_share"}};
    constexpr std::pair<const char*, const char*> of_evaluations[] = {{"val_loss", "validation/loss"},
                                                                      {"average_val_loss", "validation/average_loss"},
                                                                      {"bits_per_byte", "validation/bits_per_byte"}};
    const std::string kind = record.value("event", "");
    const std::int64_t step = record.value("step", std::int64_t{0});
    std::string values;
    const auto add = [&](const auto& tags) {
      for (const auto& [key, tag] : tags) {
        if (!record.contains(key) || !record[key].is_number()) continue;
        const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(record[key].template get<double>()));
        // Summary.Value: tag 1, simple_value 2.
        values += field(1, wire_bytes, field(1, wire_bytes, tag) + field(2, wire_32_bits, fixed(bits)));
      }
    };
    if (kind == "step") add(of_steps);
    if (kind == "eval") add(of_evaluations);
    std::string what;
    if (!values.empty()) what = event(step, field(5, wire_bytes, values));
    // SessionLog: status 1 = START. TensorBoard then drops the events of this step and later ones.
    if (kind == "resume" || kind == "rollback") {
      what = event(step + 1, field(7, wire_bytes, field(1, wire_varint, varint(1))));
    }
    if (!what.empty()) file_.write(what);
  }

 private:
  io::append_file file_;
};

}  // namespace

std::unique_ptr<log_sink> make_tensorboard_log(const fs::path& directory) {
  return std::make_unique<tensorboard_log>(directory);
}

}  // namespace rotoscale::program
