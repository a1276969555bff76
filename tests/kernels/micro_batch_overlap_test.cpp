#include "kernels/tensor/micro_batch_overlap.h"

#include <catch2/catch.hpp>
#include <string>

#include "base/error.h"
#include "kernels/meta/meta.h"
#include "kernels/tensor/timeline.h"

using namespace ltrain;

namespace {

/// A piece of `turns` turns that writes its letter at each.
std::function<void()> piece(Stream& s, std::string& said, char letter, int turns) {
  return [&s, &said, letter, turns] {
    for (int i = 0; i < turns; ++i) {
      if (i > 0) s.overlap->pass();
      said += letter;
    }
  };
}

}  // namespace

TEST_CASE("two pieces take turns where they pass, and the longer one ends alone") {
  const auto stream = make_inline_stream("compute");
  for (const auto& [a, b, expected] : {std::tuple{3, 3, "ababab"}, {1, 3, "abbb"}, {4, 2, "ababaa"}}) {
    std::string said;
    MicroBatchOverlap::run(*stream, piece(*stream, said, 'a', a), piece(*stream, said, 'b', b));
    CHECK(said == expected);
    CHECK(!stream->overlap);
  }
}

TEST_CASE("a piece that keeps its turn does not pass") {
  const auto stream = make_inline_stream("compute");
  std::string said;
  const auto keeps = [&] {
    said += 'a';
    stream->overlap->pass();
    {
      const MicroBatchOverlap::KeptTurn turn(*stream);
      const MicroBatchOverlap::KeptTurn inside(*stream);
      said += 'k';
      stream->overlap->pass();
      said += 'k';
      CHECK_THROWS_AS(stream->overlap->finish_other(), Error);
      CHECK_THROWS_AS(stream->overlap->wait_for_count(1), Error);
    }
    stream->overlap->pass();
    said += 'a';
  };
  MicroBatchOverlap::run(*stream, keeps, piece(*stream, said, 'b', 3));
  CHECK(said == "abkkbab");
  said.clear();
  MicroBatchOverlap::run(*stream, piece(*stream, said, 'b', 3), keeps);
  CHECK(said == "babkkba");
  const MicroBatchOverlap::KeptTurn outside(*stream);  // without overlap it reports nothing
}

TEST_CASE("of two pieces that add to the same the later one waits for the end of the other") {
  const auto stream = make_inline_stream("compute");
  std::string said;
  const auto adds = [&](char name) {
    return [&said, &stream, name] {
      said += name;
      stream->overlap->pass();
      MicroBatchOverlap::after_other(*stream);
      said += '+', said += name;
      stream->overlap->pass();
      said += '.';
    };
  };
  MicroBatchOverlap::run(*stream, adds('a'), adds('b'), 1);
  CHECK(said == "ab+a.+b.");
  said.clear();
  MicroBatchOverlap::run(*stream, adds('a'), adds('b'), 0);
  CHECK(said == "ab+b.+a.");
  MicroBatchOverlap::after_other(*stream);  // one piece alone: nothing
}

TEST_CASE("a piece can wait for the end of the other") {
  const auto stream = make_inline_stream("compute");
  std::string said;
  MicroBatchOverlap::run(*stream, piece(*stream, said, 'a', 4), [&] {
    said += 'b';
    stream->overlap->finish_other();
    said += 'c';
  });
  CHECK(said == "abaaac");
}

TEST_CASE("a piece waits for what the other has counted, or for its end") {
  const auto stream = make_inline_stream("compute");
  std::string said;
  MicroBatchOverlap::run(
      *stream,
      [&] {
        for (int i = 0; i < 4; ++i) {
          said += 'a';
          if (i != 1) stream->overlap->count();
          stream->overlap->pass();
        }
      },
      [&] {
        for (int i = 1; i < 6; ++i) stream->overlap->wait_for_count(i), said += 'b';
      });
  CHECK(said == "abaababbb");
}

TEST_CASE("what a piece throws is thrown on, and the other leaves its frames") {
  const auto stream = make_inline_stream("compute");
  std::string said;
  struct Note {
    std::string& to;
    ~Note() { to += '.'; }
  };
  const auto passes = [&] {
    const Note note{said};
    for (int i = 0; i < 5; ++i) said += 'p', stream->overlap->pass();
  };
  const auto throws = [&] {
    stream->overlap->pass();
    fail(ExitCode::data, "in a piece");
  };
  CHECK_THROWS_WITH(MicroBatchOverlap::run(*stream, throws, passes), "in a piece");
  CHECK(said == "p.");
  said.clear();
  CHECK_THROWS_WITH(MicroBatchOverlap::run(*stream, passes, throws), "in a piece");
  CHECK(said == "pp.");
  CHECK(!stream->overlap);
  said.clear();
  const auto at_once = [] { fail(ExitCode::data, "at once"); };
  CHECK_THROWS_WITH(MicroBatchOverlap::run(*stream, at_once, passes), "at once");
  CHECK(said.empty());
  MicroBatchOverlap::run(*stream, piece(*stream, said, 'a', 2), piece(*stream, said, 'b', 2));
  CHECK(said == "abab");
}

TEST_CASE("each piece has its layer and what counts as the model's work") {
  MetaTrace trace;
  const auto stream = make_meta_stream("compute", trace);
  OpCost op;
  op.name = "op";
  op.model_flops = 1;
  const auto layers = [&](const std::string& name, bool counts) {
    return [&, name, counts] {
      enter_layer(*stream, name);
      stream->overlap->set_model_work(counts);
      for (int i = 0; i < 3; ++i) {
        trace.add(*stream, op);
        stream->overlap->pass();
      }
      trace.add(*stream, op);
      stream->overlap->set_model_work(true);
    };
  };
  MicroBatchOverlap::run(*stream, layers("one", true), layers("other", false), 1,
                         [&](bool on) { trace.set_model_work(on); });
  std::string said;
  for (const TraceEntry& e : trace.entries()) said += std::string(e.layer) + " ";
  CHECK(said == "one other one other one other one other ");
  CHECK(trace.model_flops() == 4);
}
