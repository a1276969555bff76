#include "base/fault_point.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <thread>

#include "base/error.h"

namespace ltrain {

bool faults_armed = false;

namespace {

enum class Kind : uint8_t { kill, stop, abort, exit, error, sleep, hang, nan, skip, corrupt };
constexpr std::string_view kKinds[] = {"kill",  "stop", "abort", "exit", "error",
                                       "sleep", "hang", "nan",   "skip", "corrupt"};

struct Fault {
  int point = 0;
  int rank = -1;           // -1: any
  int64_t occurrence = 1;  // 0: each one
  Kind kind = Kind::kill;
  int value = 0;
  std::atomic<int64_t> seen{0};
};

std::vector<std::unique_ptr<Fault>> faults;
std::atomic<int> fault_rank{0};

template <class Range>
std::string joined(const Range& names) {
  std::string text;
  for (std::string_view n : names) text += (text.empty() ? "" : ", ") + std::string(n);
  return text;
}

int64_t number(std::string_view text, std::string_view specification, const char* what) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0)
    fail(ExitCode::usage, "LTRAIN_FAULT \"{}\": {} is \"{}\", must be a whole number from 0", specification,
         what, text);
  return value;
}

std::unique_ptr<Fault> parse(std::string_view text) {
  std::vector<std::string_view> field;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(':', begin), text.size());
    field.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  if (field.size() != 4)
    fail(ExitCode::usage,
         "LTRAIN_FAULT \"{}\": must be point:rank:occurrence:action, e.g. collective.enter:1:3:kill", text);
  auto fault = std::make_unique<Fault>();
  fault->point = -1;
  for (size_t i = 0; i < std::size(kFaultPoints); ++i)
    if (kFaultPoints[i] == field[0]) fault->point = static_cast<int>(i);
  if (fault->point < 0)
    fail(ExitCode::usage, "LTRAIN_FAULT \"{}\": no fault point \"{}\"; there are {}", text, field[0],
         joined(kFaultPoints));
  if (field[1] != "*") fault->rank = static_cast<int>(number(field[1], text, "the rank"));
  fault->occurrence = field[2] == "*" ? 0 : number(field[2], text, "the occurrence");
  if (fault->occurrence < 1 && field[2] != "*")
    fail(ExitCode::usage, "LTRAIN_FAULT \"{}\": occurrences count from 1", text);
  const size_t equals = field[3].find('=');
  const std::string_view action = field[3].substr(0, equals);
  bool known = false;
  for (size_t i = 0; i < std::size(kKinds); ++i)
    if (kKinds[i] == action) fault->kind = static_cast<Kind>(i), known = true;
  if (!known)
    fail(ExitCode::usage, "LTRAIN_FAULT \"{}\": no action \"{}\"; there are {}", text, action,
         joined(kKinds));
  fault->value = fault->kind == Kind::exit ? 1 : 0;
  if (equals != std::string_view::npos)
    fault->value = static_cast<int>(number(field[3].substr(equals + 1), text, "the value of the action"));
  return fault;
}

FaultAction carry_out(const Fault& fault) {
  switch (fault.kind) {
    case Kind::kill:
      ::raise(SIGKILL);
      break;
    case Kind::stop:
      ::raise(SIGSTOP);
      break;
    case Kind::abort:
      std::abort();
    case Kind::exit:
      ::_exit(fault.value);
    case Kind::error:
      fail(ExitCode::internal, "fault injected at {}", kFaultPoints[fault.point]);
    case Kind::sleep:
      std::this_thread::sleep_for(std::chrono::milliseconds(fault.value));
      break;
    case Kind::hang:
      while (true) std::this_thread::sleep_for(std::chrono::seconds(1));
    case Kind::nan:
      return FaultAction::nan;
    case Kind::skip:
      return FaultAction::skip;
    case Kind::corrupt:
      return FaultAction::corrupt;
  }
  return FaultAction::none;
}

}  // namespace

void set_fault_rank(int rank) { fault_rank = rank; }

void arm_faults(const std::string& specification) {
  faults.clear();
  for (size_t begin = 0; begin < specification.size();) {
    const size_t end = std::min(specification.find(',', begin), specification.size());
    faults.push_back(parse(std::string_view(specification).substr(begin, end - begin)));
    begin = end + 1;
  }
  if (const char* rank = std::getenv("LTRAIN_RANK")) fault_rank = std::atoi(rank);
  faults_armed = !faults.empty();
}

FaultAction fault_point_reached(int index) {
  // every fault of the point counts the visit, even if another one is carried out
  const Fault* now = nullptr;
  for (const auto& fault : faults) {
    if (fault->point != index) continue;
    if (fault->rank >= 0 && fault->rank != fault_rank) continue;
    const int64_t visit = ++fault->seen;
    if ((visit == fault->occurrence || fault->occurrence == 0) && !now) now = fault.get();
  }
  return now ? carry_out(*now) : FaultAction::none;
}

}  // namespace ltrain
