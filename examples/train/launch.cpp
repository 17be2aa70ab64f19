// SPDX-FileCopyrightText: The Rotoscale authors
// SPDX-License-Identifier: Apache-2.0
#include "launch.hpp"

#include <ifaddrs.h>
#include <net/if.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <random>

#include "format_text.hpp"
#include "rotoscale/io/json.hpp"

namespace rotoscale::program {
namespace {

using nlohmann::ordered_json;

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// Names of a launcher's variables.
struct launcher {
  const char *rank, *size, *local_rank, *local_size;
};
constexpr launcher launchers[] = {
    {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},  // torchrun, users
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},  // MPICH, Intel MPI
    {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", ""},
};

/// A number of a variable; nullopt: not set. Throws io::error.
std::optional<int> number_of(const char* name, int least, int most) {
  const std::string text = variable(name);
  if (text.empty()) return std::nullopt;
  char* end = nullptr;
  const long value = std::strtol(text.c_str(), &end, 10);
  if (*end != 0 || value < least || value > most) {
    throw io::error(name, "'" + text + "' is not from " + std::to_string(least) + " to " + std::to_string(most));
  }
  return static_cast<int>(value);
}

/// A name that all processes of a start share, and no other start has.
std::string start_name() {
  std::string name;
  for (const char* part : {"TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "PMIX_NAMESPACE", "SLURM_JOB_ID",
                           "SLURM_STEP_ID", "SLURM_RESTART_COUNT"}) {
    if (!variable(part).empty()) name += (name.empty() ? "" : ".") + variable(part);
  }
  return name;
}

/// IPv4 addresses of this host except its own.
std::vector<std::string> own_hosts() {
  std::vector<std::string> hosts;
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return hosts;
  for (const ifaddrs* at = all; at != nullptr; at = at->ifa_next) {
    if (at->ifa_addr == nullptr || at->ifa_addr->sa_family != AF_INET || (at->ifa_flags & IFF_LOOPBACK) != 0) continue;
    char text[INET_ADDRSTRLEN] = "";
    ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(at->ifa_addr)->sin_addr, text, sizeof text);
    hosts.emplace_back(text);
  }
  ::freeifaddrs(all);
  return hosts;
}
std::string host_name() {
  char text[256] = "";
  ::gethostname(text, sizeof text - 1);
  return text;
}

std::string random_nonce() {
  std::random_device draw;
  return format_text("%08x%08x%08x%08x", draw(), draw(), draw(), draw());
}

/// File by which other ranks find rank 0. It exists while rank 0 waits for them.
class meeting_file {
 public:
  meeting_file(std::filesystem::path path, const launch_place& place, std::uint16_t port, const std::string& nonce)
      : path_(std::move(path)), nonce_(nonce) {
    io::write_json(path_, ordered_json{{"start", place.start},
                                       {"nonce", nonce},
                                       {"host", host_name()},
                                       {"addresses", place.is_local() ? std::vector<std::string>() : own_hosts()},
                                       {"port", port}});
  }
  meeting_file(const meeting_file&) = delete;
  meeting_file& operator=(const meeting_file&) = delete;
  ~meeting_file() {
    try {  // unless the file is gone, or a later start's
      if (io::read_json(path_).at("nonce") == nonce_) std::filesystem::remove(path_);
    } catch (const std::exception&) {
    }
  }

 private:
  std::filesystem::path path_;
  std::string nonce_;
};

using meeting_places = std::vector<std::pair<nn::rank_address, std::string>>;  ///< with the nonce there

/// Where rank 0 waits, by its file. Empty: there is none yet, or it is of another start.
meeting_places read_meeting(const std::filesystem::path& path, const launch_place& place) {
  meeting_places places;
  try {
    const auto file = io::read_json(path);
    if (file.at("start") != place.start) return places;
    const std::string nonce = file.at("nonce");
    const auto port = file.at("port").get<std::uint16_t>();
    if (file.at("host") == host_name()) places.push_back({{0, port}, nonce});
    for (const std::string address : file.at("addresses")) {
      in_addr host{};
      if (::inet_pton(AF_INET, address.c_str(), &host) == 1) places.push_back({{host.s_addr, port}, nonce});
    }
  } catch (const std::exception&) {  // no file, or another program's
  }
  return places;
}

/// Ports from MASTER_PORT, which torchrun's agent may use itself.
constexpr int ports_to_try = 16;
int first_port() {
  const auto port = number_of("MASTER_PORT", 1, 65535 - ports_to_try);
  if (!port) throw io::error("--rendezvous env", "needs the variables MASTER_ADDR and MASTER_PORT");
  return *port + (variable("TORCHELASTIC_USE_AGENT_STORE") == "True" ? 1 : 0);
}

std::uint32_t master_host(const launch_place& place) {
  if (place.is_local()) return 0;
  addrinfo hints{}, *found = nullptr;
  hints.ai_family = AF_INET;
  const std::string name = variable("MASTER_ADDR");
  if (::getaddrinfo(name.c_str(), nullptr, &hints, &found) != 0) {
    throw io::error("MASTER_ADDR", "'" + name + "' is no host with an IPv4 address");
  }
  const std::uint32_t host = reinterpret_cast<const sockaddr_in*>(found->ai_addr)->sin_addr.s_addr;
  ::freeaddrinfo(found);
  return host;
}

nn::rank_listener listen_at_master(bool is_local) {
  const int first = first_port();
  for (int port = first; port + 1 < first + ports_to_try; ++port) {
    try {
      return nn::rank_listener(is_local, static_cast<std::uint16_t>(port));
    } catch (const std::system_error&) {  // somebody's
    }
  }
  return nn::rank_listener(is_local, static_cast<std::uint16_t>(first + ports_to_try - 1));
}

}  // namespace

launch_place find_launch() {
  launch_place place;
  for (const launcher& l : launchers) {
    const auto rank = number_of(l.rank, 0, 255), size = number_of(l.size, 1, 256);
    if (!rank || !size) continue;
    if (*rank >= *size)
      throw io::error(l.rank, std::to_string(*rank) + ": there are " + std::to_string(*size) + " ranks");
    place.rank = *rank;
    place.size = *size;
    place.local_rank = number_of(l.local_rank, 0, 255).value_or(number_of("SLURM_LOCALID", 0, 255).value_or(0));
    place.local_size = number_of(l.local_size, 1, 256).value_or(0);
    if (l.rank == std::string("SLURM_PROCID") && variable("SLURM_STEP_NUM_NODES") == "1") place.local_size = *size;
    place.start = start_name();
    return place;
  }
  throw io::error("--rendezvous",
                  "no launcher has set RANK and WORLD_SIZE, nor Open MPI's, PMI's or Slurm's variables");
}

std::vector<nn::rank_socket> meet_ranks(const launch_place& place, const std::string& where,
                                        std::chrono::milliseconds timeout) {
  const bool by_port = where == "env";
  const std::string start = variable("MASTER_PORT") + ":" + place.start;  // a neighbour may try this start's ports
  nn::rank_meeting meeting{place.rank, place.size, place.is_local(), by_port ? start : random_nonce(), timeout};
  if (place.rank == 0) {
    const nn::rank_listener here = by_port ? listen_at_master(place.is_local()) : nn::rank_listener(place.is_local());
    std::optional<meeting_file> file;
    if (!by_port) file.emplace(where, place, here.port(), meeting.nonce);
    return nn::meet_as_first(meeting, here);
  }
  if (!by_port) return nn::meet_first(meeting, [&] { return read_meeting(where, place); });
  meeting_places places;
  const std::uint32_t host = master_host(place);
  for (int port = first_port(), i = 0; i < ports_to_try; ++i) {
    places.push_back({{host, static_cast<std::uint16_t>(port + i)}, start});
  }
  return nn::meet_first(meeting, [&] { return places; });
}

}  // namespace rotoscale::program
