// The drawing of a schedule.
#include "parallel/pipeline/draw.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <sstream>

using namespace ltrain::pipeline;
using Catch::Contains;

namespace {

std::string drawn(const char* name, int p, int v, int m, int width) {
  const Schedule s = make_schedule(name, p, v, m);
  return draw_text(s, simulate(s, StageCosts::uniform(s.stages())), width, "F = I = W = 1");
}

size_t widest(const std::string& text) {
  std::istringstream in(text);
  size_t most = 0;
  for (std::string line; std::getline(in, line);)
    if (line.rfind("rank", 0) == 0) most = std::max(most, line.size());
  return most;
}

size_t count(const std::string& text, const std::string& what) {
  size_t n = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++n;
  return n;
}

}  // namespace

TEST_CASE("a drawing that fits shows every number", "[pipeline]") {
  CHECK(drawn("1f1b", 2, 1, 3, 100) ==
        "1f1b: 2 ranks, 1 chunk a rank, 3 micro-batches; F = I = W = 1\n"
        "rank 0 F0F1....B0--F2B1--..B2--\n"
        "rank 1 ..F0B0--F1B1--F2B2--....\n"
        "       0                     12\n"
        "F forward, B backward, I backward of the input, W of the weights; then the micro-batch; . idle\n");
  CHECK(drawn("zb-h1", 2, 1, 2, 100) ==
        "zb-h1: 2 ranks, 1 chunk a rank, 2 micro-batches; F = I = W = 1\n"
        "rank 0 F0F1..I0W0I1W1\n"
        "rank 1 ..F0I0F1I1W0W1\n"
        "       0            7\n"
        "F forward, B backward, I backward of the input, W of the weights; then the micro-batch; . idle\n");
  const std::string v = drawn("zbv", 2, 2, 3, 120);
  CHECK_THAT(v, Contains("F0a") && Contains("F0b") && Contains("W2a") &&
                    Contains("the chunk (a: the rank's first)"));
  CHECK_THAT(v, !Contains("scaled"));
}

TEST_CASE("a drawing never passes the width, and says what it leaves out", "[pipeline]") {
  for (int width : {40, 60, 80, 132})
    for (const char* name : {"gpipe", "1f1b", "zb-h2"}) {
      const std::string text = drawn(name, 8, 1, 64, width);
      CHECK(widest(text) <= static_cast<size_t>(width));
      CHECK_THAT(text, Contains("scaled to " + std::to_string(width) + " columns: "));
    }
  CHECK_THAT(drawn("1f1b", 8, 1, 64, 40), Contains("narrower than a column"));
  CHECK_THAT(drawn("1f1b", 8, 1, 64, 132), Contains("actions without number"));
  CHECK_THAT(drawn("1f1b", 8, 1, 64, 2000), !Contains("scaled"));
  // Stages of unlike costs.
  const Schedule s = make_schedule("1f1b", 3, 1, 4);
  StageCosts c = StageCosts::uniform(3);
  c.forward = {0.001, 0.0017, 0.0023};
  c.input = {0.0011, 0.0021, 0.0031};
  c.weight = {0.0009, 0.0013, 0.0019};
  const std::string text = draw_text(s, simulate(s, c), 100, "seconds");
  CHECK(widest(text) <= 100);
  for (int m = 0; m < 4; ++m) CHECK(count(text, "B" + std::to_string(m)) == 3);
  c = StageCosts::uniform(3, 0, 0, 0);
  CHECK_THAT(draw_text(s, simulate(s, c), 100, "none"), Contains("nothing to draw"));
}

TEST_CASE("the table has bubble and peak by rank", "[pipeline]") {
  const Schedule s = make_schedule("1f1b", 3, 1, 6);
  const std::string table = rank_table(s, simulate(s, StageCosts::uniform(3)));
  CHECK_THAT(table, Contains("bubble 25.0 % of ranks * time; time 24"));
  CHECK_THAT(table, Contains("     0          18           6                       6                   3\n"));
  CHECK_THAT(table, Contains("     2          18           6                       0                   1\n"));
}

TEST_CASE("the SVG has one box an action, and escapes names", "[pipeline]") {
  Schedule s = make_schedule("zbv", 2, 2, 3);
  const std::string svg = draw_svg(s, simulate(s, StageCosts::uniform(4)), "a < b & \"c\"");
  CHECK(count(svg, "<title>") == 1 + 2 * 2 * 3 * 3);  // one title for the drawing, and one per action
  CHECK_THAT(svg, Contains("a &lt; b &amp; &quot;c&quot;") && Contains("<title>0F0: 0 to 1</title>"));
  CHECK(svg.rfind("<svg ", 0) == 0);
  CHECK(svg.find("</svg>\n") == svg.size() - 7);
  CHECK(count(svg, "<rect") == 2 * 2 * 3 * 3 + 1 + 4 + 2);
  CHECK(count(svg, "<text") == count(svg, "</text>"));
}
