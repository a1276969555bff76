// Flight recorder of a job: the last calls of each rank as a JSON file, and what all files together say about
// a hang.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "parallel/comm/flight_ring.h"

namespace ltrain {

/// One rank's group, for a dump.
struct FlightGroup {
  std::string label;         ///< "data[0-3]"
  std::vector<int> members;  ///< ranks of the job
  const FlightRecord* record = nullptr;
};

/// State of a rank, for a dump.
struct FlightSource {
  int rank = 0, world_size = 1;
  std::string host, reason, section;
  int64_t step = -1;
  std::vector<FlightGroup> groups;
};

/// File of a rank: FOLDER/rank-00001.json.
std::string flight_path(const std::string& folder, int rank);

/// Writes FOLDER/rank-00001.json with the calls of `ring`; creates the folder. Throws Error (storage).
void write_flight(const std::string& folder, const FlightSource& source, const FlightRing& ring);

/// Sentences about the calls that some ranks wait in: which ranks have entered it and since when, and which
/// have not. Reads the files of `folder` that were written after `since` (Unix seconds). Files come from
/// outside: a malformed one becomes a sentence. Never throws.
std::vector<std::string> merge_flights(const std::string& folder, double since = 0);

/// Unix time in seconds.
double unix_seconds();

}  // namespace ltrain
