#include "runtime/launch/environment/hostlist.h"

#include <catch2/catch.hpp>

#include "base/error.h"
#include "runtime/launch/environment/slurm_node.h"

using namespace ltrain;
using Strings = std::vector<std::string>;

TEST_CASE("hostlists") {
  auto parse = [](const char* text) { return parse_hostlist(text, "LIST"); };
  CHECK(parse("gpu7") == Strings{"gpu7"});
  CHECK(parse("node[001-003,010],gpu7") == Strings{"node001", "node002", "node003", "node010", "gpu7"});
  CHECK(parse("r[1-2]c[01-02]") == Strings{"r1c01", "r1c02", "r2c01", "r2c02"});
  CHECK(parse("a-b[8-11]") == Strings{"a-b8", "a-b9", "a-b10", "a-b11"});
  CHECK(parse("n[098-101]") == Strings{"n098", "n099", "n100", "n101"});
  CHECK(parse("a[09-10]-ib") == Strings{"a09-ib", "a10-ib"});
  CHECK(parse("x,y,x") == Strings{"x", "y", "x"});
  CHECK(parse("n.example.org,m_1") == Strings{"n.example.org", "m_1"});
  CHECK(parse("n[5]") == Strings{"n5"});
}

TEST_CASE("malformed hostlists are refused with the place") {
  for (const char* bad : {"",
                          ",",
                          "a,",
                          ",a",
                          "a[",
                          "a[]",
                          "a[1",
                          "a[1-",
                          "a[1-]",
                          "a[3-1]",
                          "a[1-2",
                          "a[x]",
                          "a]",
                          "a b",
                          "a[1,]",
                          "a[1-8/2]",
                          "a[1-9999999999]",
                          "a[0-99999]",
                          "a[0-999][0-999]",
                          "a;rm",
                          "$(x)"}) {
    INFO(bad);
    CHECK_THROWS_WITH(parse_hostlist(bad, "SLURM_STEP_NODELIST"),
                      Catch::Contains("SLURM_STEP_NODELIST=") && Catch::Contains("character"));
  }
}

TEST_CASE("a hostlist is counted before it is expanded, and a message of it is short") {
  // 16,000 ranges of 65,535: 10^9 names if they were made.
  std::string many = "n[0-65534";
  while (many.size() < 112 * 1024) many += ",0-65534";
  many += "]";
  const std::string name(200, 'a');
  for (const std::string& list :
       Strings{many, many + "," + many, "n[0-65535],m", name + "[0-9]" + name, std::string(256, 'a'),
               std::string(100000, 'a') + "[0-65535]", std::string(100000, ';')}) {
    try {
      parse_hostlist(list, "SLURM_STEP_NODELIST");
      FAIL("it was expanded");
    } catch (const Error& e) {
      CHECK(e.code() == ExitCode::usage);
      CHECK(std::string(e.what()).size() < 400);
      CHECK_THAT(e.what(), Catch::Contains("at character"));
    }
  }
  CHECK(parse_hostlist("n[0-65535]", "LIST").size() == 65536);
  CHECK(parse_hostlist(std::string(255, 'a'), "LIST").size() == 1);
  CHECK_THROWS_WITH(parse_hostlist("a\x1b[31m", "LIST"), Catch::Contains("\\x1b"));
}

TEST_CASE("tasks per node") {
  CHECK(parse_tasks_per_node("2(x3),1", "T") == std::vector<int>{2, 2, 2, 1});
  CHECK(parse_tasks_per_node("8", "T") == std::vector<int>{8});
  CHECK(parse_tasks_per_node("1,2,3(x2)", "T") == std::vector<int>{1, 2, 3, 3});
  for (const char* bad : {"", "x", "2(", "2(x", "2(x3", "2(3)", "2x3", "2,", "2(x999999999)", "-1"})
    CHECK_THROWS_AS(parse_tasks_per_node(bad, "T"), Error);
}

TEST_CASE("ranges of numbers for people") {
  CHECK(format_ranges({0, 1, 2, 5, 7, 8}) == "0-2, 5, 7, 8");
  CHECK(format_ranges({3}) == "3");
  CHECK(format_ranges({2, 1, 2}) == "1, 2");
  CHECK(format_ranges({}) == "");
}

TEST_CASE("the address in scontrol's words") {
  CHECK(parse_node_address("NodeName=ltn1 Arch=x86_64 NodeAddr=10.0.0.7 NodeHostName=vm Version=22\n") ==
        "10.0.0.7");
  CHECK(parse_node_address("NodeAddr=n1\n") == "n1");
  CHECK(parse_node_address("XNodeAddr=n1") == "");
  CHECK(parse_node_address("") == "");
  CHECK(slurm_node_address("-x") == "");
  CHECK(slurm_node_address("a;b") == "");
}
