// The proofs of job_key.h over a fresh connection.
#pragma once
#include <string>

#include "base/deadline.h"
#include "runtime/launch/job_key.h"

namespace ltrain {

/// The client's side. Sets `why` unless both have the same job and recipe.
Kinship greet_server(int fd, const JobKey& key, SteadyTime deadline, std::string* why);

/// Sends few bytes, which fit in the socket's buffer. Returns false, and sets `why`, on failure.
bool send_few(int fd, const std::string& bytes, std::string* why);
/// Appends to `bytes` until it has `count`. Returns false, and sets `why`, if they do not come.
bool receive_all(int fd, size_t count, SteadyTime deadline, std::string* bytes, std::string* why);

}  // namespace ltrain
