// Schedule files of torch.distributed.pipelining.
#include "parallel/pipeline/schedule_csv.h"

#include <catch2/catch.hpp>

#include <random>

#include "base/error.h"

using namespace ltrain;
using namespace ltrain::pipeline;
using Catch::Contains;

namespace {

std::string refusal(const std::string& text) {
  try {
    read_schedule_csv(text, "s.csv");
  } catch (const Error& e) {
    CHECK(e.code() == ExitCode::usage);
    return e.what();
  }
  return "(accepted)";
}

}  // namespace

TEST_CASE("every schedule is written and read back", "[pipeline]") {
  for (const ScheduleInfo& info : schedules())
    for (int p : {1, 2, 4}) {
      const Schedule s = make_schedule(std::string(info.name), p, info.least_chunks, 8, true);
      CHECK(s.has_pairs() == (info.pairs != Pairs::none));
      const Schedule back = read_schedule_csv(write_schedule_csv(s), "s.csv");
      CHECK(back.order == s.order);
      CHECK(back.rank_of_stage == s.rank_of_stage);
      CHECK(back.chunks == s.chunks);
      CHECK(back.micros == 8);
      CHECK(back.name == "s.csv");
    }
}

TEST_CASE("a file as PyTorch writes it: empty cells, line ends of DOS, split backwards, pairs",
          "[pipeline]") {
  // 1F1B over two ranks, with the idle steps that PyTorch writes as empty cells.
  const Schedule s = read_schedule_csv("0F0,0F1,,0B0,,0B1\r\n,1F0,1B0,1F1,1B1,\r\n", "s.csv");
  CHECK(write_schedule_csv(s) == "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
  CHECK(s.ranks == 2);
  CHECK(s.chunks == 1);
  // I and W, no line end at the end, quotes and blanks.
  CHECK(read_schedule_csv("\"0F0\", 0I0 ,0W0", "s.csv").order[0].size() == 3);
  // The stage's rank is where its forward is: here a V.
  CHECK(read_schedule_csv("0F0,3F0,3B0,0B0\n1F0,2F0,2B0,1B0\n", "s.csv").rank_of_stage ==
        std::vector<int>{0, 1, 1, 0});
  std::vector<std::string> notes;
  const Schedule pairs = read_schedule_csv("0F0,1F0,0F1,(1F1;1B0)OVERLAP_F_B,0B0,1B1,0B1\n", "s.csv", &notes);
  CHECK(write_schedule_csv(pairs) == "0F0,1F0,0F1,(1F1;1B0)OVERLAP_F_B,0B0,1B1,0B1\n");
  CHECK(write_schedule_csv(without_pairs(pairs)) == "0F0,1F0,0F1,1F1,1B0,0B0,1B1,0B1\n");
  CHECK(notes.empty());
  CHECK(refusal("0F0,0F1,(0B0;0B1)OVERLAP_F_B\n") ==
        "s.csv: rank 0, position 2: 0B0 and 0B1 are a pair, and a pair is a forward (F) and a backward (B or "
        "I) of "
        "different micro-batches");
  CHECK_THAT(refusal("0F0,(0F1;0B1)OVERLAP_F_B,0B0\n"), Contains("of different micro-batches"));
  CHECK_THAT(refusal("0F0,0I0,(0F1;0W0)OVERLAP_F_B,0B1\n"), Contains("0F1 and 0W0 are a pair"));
  // The backward of the first stage waits for that of the second, whose forward would be beside it.
  CHECK_THAT(refusal("0F0,1F0,0F1,1B0,(1F1;0B0)OVERLAP_F_B,1B1,0B1\n"), Contains("(accepted)"));
  CHECK_THAT(
      refusal("0F0,1F0,(0F1;0B0)OVERLAP_F_B,1B0,1F1,1B1,0B1\n"),
      Contains("the order never ends") && Contains("before 0F1, for 1B0, which rank 0 runs at position 4"));
  // A file as PyTorch writes it with transfers and sharding.
  notes.clear();
  const Schedule with = read_schedule_csv(
      "0UNSHARD,0F0,0SEND_F0,0RECV_B0,0B0,0REDUCE_GRAD,0RESHARD\n1RECV_F0,1F0,1B0,1SEND_B0\n", "s.csv",
      &notes);
  CHECK(write_schedule_csv(with) == "0F0,0B0\n1F0,1B0\n");
  REQUIRE(notes.size() == 7);
  CHECK_THAT(notes[0], Contains("s.csv: 1 RECV_B passed over: transfers follow from the order"));
}

TEST_CASE("files that are no schedule are refused with line, cell and rule", "[pipeline]") {
  const std::string form =
      "an action is STAGE KIND MICRO-BATCH without blanks, such as 0F3; the kinds are F, B, I, W";
  CHECK(refusal("") == "s.csv: has no line; every rank has one");
  CHECK(refusal("\n\n") == "s.csv: has no line; every rank has one");
  CHECK(refusal(",,,\n") == "s.csv: has no action");
  CHECK(refusal("0F0,0X0\n") == "s.csv:1: cell 2, 0X0: " + form);
  CHECK(refusal("0F0,,F0\n") == "s.csv:1: cell 3, F0: " + form);
  CHECK(refusal("0F0,0B\n") == "s.csv:1: cell 2, 0B: " + form);
  CHECK(refusal("0F0,0B0x\n") == "s.csv:1: cell 2, 0B0x: " + form);
  CHECK(refusal("0F0,0B-1\n") == "s.csv:1: cell 2, 0B-1: " + form);
  CHECK(refusal("0F0,-1B0\n") == "s.csv:1: cell 2, -1B0: " + form);
  CHECK(refusal("0F0,0B99999999999999\n") == "s.csv:1: cell 2, 0B99999999999999: " + form);
  CHECK(refusal("0F0,0BW0\n") == "s.csv:1: cell 2, 0BW0: a whole backward is B");
  CHECK(refusal("0F0,0SEND_F0x\n") == "s.csv:1: cell 2, 0SEND_F0x: " + form);
  CHECK_THAT(refusal("0F0,(0F0)OVERLAP_F_B\n"), Contains("a pair has two actions"));
  CHECK_THAT(refusal("0F0,(0F0;0B0;0W0)OVERLAP_F_B\n"), Contains("a pair has two actions"));
  CHECK_THAT(refusal("0F0,(0F0;0B0)SOMETHING\n"), Contains("a pair is written (0F4;7B1)OVERLAP_F_B"));
  CHECK_THAT(refusal("0F0,(0F0;0SEND_F0)OVERLAP_F_B\n"), Contains(form));
  CHECK_THAT(refusal("0F0,(0F0;0B0\n"), Contains("a pair is written"));
  CHECK(refusal("0F0,0B0\n\n1F0,1B0\n") == "s.csv:2: an empty line; every rank has a line");
  CHECK(refusal("0F0,0B0\n2F0,2B0\n") ==
        "s.csv: names 3 stages and 1 micro-batches, which take at least 6 actions, and has 4");
  // Numbers that would take terabytes are refused before anything is made.
  CHECK_THAT(refusal("0F0,1000000B1000000\n"), Contains("which take at least"));
  CHECK_THAT(refusal("0F0,0B0,1F0,1B0,2F0,2B0\n,\n"),
             Contains("3 stages do not spread evenly over its 2 lines"));
  CHECK_THAT(refusal("0F0,0B0,1B0\n1W0,1I0\n"), Contains("no line runs stage 1 forward"));
  CHECK_THAT(refusal("0F0,0B0,0B1\n1F0,1F1,1B0,1B1\n0F1\n"), Contains("s.csv: 2 stages do not spread"));
  CHECK_THAT(refusal("0F0,0B0,0F1,0B1\n1F0,1B0,1B1,1B1\n"),
             Contains("rank 1, position 3: 1B1 is a duplicate"));
  CHECK_THAT(refusal("0F0,0B0,0B0,0F1,0W0\n1F0\n"), Contains("take at least 8 actions"));
  CHECK_THAT(refusal("0B0,0F0\n"), Contains("rank 0, position 0: 0B0 comes before 0F0"));
  CHECK_THAT(refusal("0F0,0B0,0W0\n"), Contains("In files of PyTorch before 2.6 B stands for I"));
  CHECK_THAT(refusal(std::string("0F0,\x1b[31m\n")), Contains("cell 2, ?[31m: "));
  CHECK(refusal("0F0,0B0\n") == "(accepted)");
}

TEST_CASE("damaged files are refused or read, never worse", "[pipeline]") {
  std::mt19937_64 random(7);
  const std::string good = write_schedule_csv(make_schedule("zbv", 3, 2, 6));
  int refused = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string text = good;
    for (int i = 0; i < 1 + round % 4; ++i) {
      const size_t at = random() % text.size();
      if (random() % 3 == 0)
        text.erase(at, random() % 5);
      else
        text[at] = "0123456789FBIW,\n();\"-x"[random() % 22];
    }
    refused += refusal(text) != "(accepted)";
  }
  CHECK(refused > 2000);
}
