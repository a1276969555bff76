#include <catch2/catch.hpp>

#include "runtime/launch/message.h"
#include "runtime/launch/rank_status.h"

using namespace ltrain;
using Catch::Contains;

namespace {

RankStatus status(const std::string& section, std::vector<GroupStatus> groups) {
  RankStatus s;
  s.section = section, s.step = 7, s.groups = std::move(groups);
  return s;
}
GroupStatus group(const std::string& name, uint64_t sequence, bool inside,
                  CollectiveOp op = CollectiveOp::all_reduce) {
  return {name, {op, sequence, 4096, DType::f32}, sequence, inside ? sequence - 1 : sequence};
}
std::optional<Message> unframe(const std::string& frame) {
  FrameBuffer b;
  b.feed(frame.data(), frame.size());
  bool bad = false;
  return b.next(&bad);
}

}  // namespace

TEST_CASE("messages survive any cut of the stream") {
  const std::string stream =
      MessageWriter(MessageType::set).text("key").text(std::string("a\0b", 3)).frame() +
      MessageWriter(MessageType::goodbye).number(-5).real(2.5).frame();
  for (size_t cut = 0; cut <= stream.size(); ++cut) {
    FrameBuffer b;
    std::vector<Message> got;
    bool bad = false;
    for (const std::string& piece : {stream.substr(0, cut), stream.substr(cut)}) {
      b.feed(piece.data(), piece.size());
      while (auto m = b.next(&bad)) got.push_back(*m);
      REQUIRE_FALSE(bad);
    }
    REQUIRE(got.size() == 2);
    MessageReader first(got[0]), second(got[1]);
    CHECK((first.text() == "key" && first.text() == std::string("a\0b", 3) && first.ok()));
    CHECK((second.number() == -5 && second.real() == 2.5 && second.ok()));
  }
}

TEST_CASE("hostile bytes are refused, not believed") {
  FrameBuffer b;
  bool bad = false;
  b.feed("\xff\xff\xff\xff\x01", 5);  // a frame of 4 GiB
  CHECK_FALSE(b.next(&bad));
  CHECK(bad);
  // A text that claims to be longer than its message.
  Message m{MessageType::set, std::string("\xff\xff\xff\x7fxy", 6)};
  MessageReader r(m);
  CHECK(r.text().empty());
  CHECK_FALSE(r.ok());
  CHECK(r.number() == 0);
  // Every truncation and every one-byte change of a status is read without harm, or refused.
  const std::string frame = write_status(status("step", {group("data[0-3]", 12, true)}));
  const auto whole = unframe(frame);
  REQUIRE(whole);
  REQUIRE(read_status(*whole));
  for (size_t n = 0; n < whole->body.size(); ++n) {
    CHECK_FALSE(read_status({whole->type, whole->body.substr(0, n)}));
    Message changed = *whole;
    changed.body[n] = static_cast<char>(changed.body[n] ^ 0x80);
    if (auto s = read_status(changed)) to_string(s->groups.empty() ? CollectiveInfo{} : s->groups[0].last);
  }
}

TEST_CASE("a status comes back as it was") {
  const RankStatus s = status("save", {group("data[0-3]", 12, true), group("tensor[0, 1]", 3, false)});
  const auto back = read_status(*unframe(write_status(s)));
  REQUIRE(back);
  CHECK((back->section == "save" && back->step == 7 && back->groups.size() == 2));
  CHECK(to_string(back->groups[0].last) == "all_reduce #12 of 4096 f32");
  CHECK(where(*back) == "in section save 7, in all_reduce #12 of 4096 f32 of group data[0-3]");
}

TEST_CASE("a lost rank is described by its last heartbeat, with its age, and by its peers where they know") {
  const RankStatus s = status("step", {group("data[0-3]", 12, false)});
  CHECK(last_heard(s, 0.42, false) ==
        "last heard of 0.4 s before, in section step 7, after all_reduce #12 of 4096 f32 of group data[0-3]");
  CHECK(last_heard(s, 0.42, true) == "last heard of 0.4 s before, in section step 7");
  CHECK(last_heard(s, -0.1, true) == "last heard of 0.0 s before, in section step 7");
}

TEST_CASE("a stall is blamed on the rank that is behind, not on those who wait") {
  std::vector<std::optional<RankStatus>> ranks(4, status("step", {group("data[0-3]", 305, true)}));
  ranks[3] = status("step", {group("data[0-3]", 304, false)});
  auto report = explain_stall(ranks);
  CHECK(report.culprits == std::vector<int>{3});
  CHECK_THAT(report.lines[0], Contains("rank 3 last completed #304, never entered #305"));
  CHECK_THAT(report.lines[0], Contains("data[0-3]"));

  // Two groups: 0 waits for 1 in "tensor", 1 waits for 3 in "data", 3 is in neither. Only 3 is to blame.
  ranks[0] = status("step", {group("tensor[0, 1]", 9, true), group("data[1, 3]", 4, false)});
  ranks[1] = status("step", {group("tensor[0, 1]", 8, false), group("data[1, 3]", 5, true)});
  ranks[2] = std::nullopt;
  ranks[3] = status("step", {group("data[1, 3]", 4, false)});
  report = explain_stall(ranks);
  CHECK(report.culprits == std::vector<int>{3});

  // All inside the same call: nobody is behind, the data does not flow; no one is named falsely.
  ranks.assign(2, status("step", {group("data[0, 1]", 5, true)}));
  report = explain_stall(ranks);
  CHECK(report.culprits.empty());
  CHECK_THAT(report.lines[0], Contains("ranks 0, 1: in section step 7, in all_reduce #5"));
  CHECK(report.without_data == std::vector<int>{0, 1});
  // The same where one has received everything and is a call ahead.
  ranks[1] = status("step", {group("data[0, 1]", 6, true)});
  CHECK(explain_stall(ranks).without_data == std::vector<int>{0, 1});
  ranks[1] = status("step", {group("data[0, 1]", 5, false)});  // it has left the call
  CHECK(explain_stall(ranks).without_data.empty());

  // A transfer has no common count: sequence numbers of send and recv are not compared.
  ranks[0] = status("step", {group("pipeline[0, 1]", 5, true, CollectiveOp::recv)});
  ranks[1] = status("step", {group("pipeline[0, 1]", 3, false, CollectiveOp::send)});
  CHECK((explain_stall(ranks).culprits.empty() && explain_stall(ranks).without_data.empty()));
}

TEST_CASE("who hangs: a rank that does nothing and waits for nobody, or all, when none gets on") {
  const auto idle = [](double seconds, bool inside, const std::string& waits_for = "") {
    RankStatus s = status("step", {group("data[0-2]", 5, inside)});
    s.idle_seconds = seconds, s.idle_limit = 10, s.waits_for = waits_for;
    return s;
  };
  std::vector<std::optional<RankStatus>> ranks{idle(0, false), idle(0, false), idle(0, false)};
  CHECK(hung_rank(ranks) == -1);
  // Rank 1 is in a long step, evaluation or load, and gets on; the others wait for it, for hours if need be.
  ranks = {idle(9999, true), idle(0.4, false), idle(9999, false, "the other ranks of group data[0-2]")};
  CHECK(hung_rank(ranks) == -1);
  // It does not get on any more.
  ranks[1] = idle(10, false);
  CHECK(hung_rank(ranks) == 1);
  // Bytes still arrive at rank 2: a slow network does not count as a hang.
  ranks = {idle(9999, true), idle(9999, true), idle(1, true)};
  CHECK(hung_rank(ranks) == -1);
  // All wait and nothing comes: a collective is lost.
  ranks[2] = idle(10, true);
  CHECK(hung_rank(ranks) == 0);
  // Ended ranks do not count, and when all have ended there is no hang.
  ranks = {std::nullopt, idle(9999, true), idle(0, false)};
  CHECK(hung_rank(ranks) == -1);
  ranks[2] = std::nullopt;
  CHECK(hung_rank(ranks) == 1);
  CHECK(hung_rank({std::nullopt, std::nullopt}) == -1);
}

TEST_CASE("a status tells how long nothing was done, and for whom the rank waits") {
  RankStatus s = status("setup", {});
  s.idle_seconds = 3.5, s.idle_limit = 600, s.waits_for = "the other ranks of group data[0-3]";
  const auto back = read_status(*unframe(write_status(s)));
  REQUIRE(back);
  CHECK((back->idle_seconds == 3.5 && back->idle_limit == 600 && back->waits() && !back->stuck()));
  CHECK(where(*back) == "in section setup 7, waiting for the other ranks of group data[0-3]");
  // From outside: a line, bounded.
  s.section = "\x1b[2J\n" + std::string(100000, 'x');
  const auto evil = read_status(*unframe(write_status(s)));
  REQUIRE(evil);
  CHECK(where(*evil).size() < 1200);
  CHECK(where(*evil).find('\x1b') == std::string::npos);
}
