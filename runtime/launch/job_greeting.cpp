#include "runtime/launch/job_greeting.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace ltrain {

Kinship greet_server(int fd, const JobKey& key, SteadyTime deadline, std::string* why) {
  const std::string mine = JobKey::greeting(kClientMagic);
  std::string theirs, answer;
  if (!send_few(fd, mine, why) || !receive_all(fd, kGreetingBytes, deadline, &theirs, why))
    return Kinship::none;
  if (!theirs.starts_with(kServerMagic)) {
    *why = "something listens but does not speak ltrain's protocol";
    return Kinship::none;
  }
  if (!send_few(fd, key.proofs(mine, theirs), why) || !receive_all(fd, kAnswerBytes, deadline, &answer, why))
    return Kinship::none;
  const Kinship kinship = key.read_answer(answer, mine, theirs);
  if (kinship == Kinship::none) *why = "something listens but belongs to another job";
  if (kinship == Kinship::other_recipe) *why = "a job with another recipe listens";
  return kinship;
}

bool send_few(int fd, const std::string& bytes, std::string* why) {
  if (::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size())) return true;
  *why = std::strerror(errno);
  return false;
}

bool receive_all(int fd, size_t count, SteadyTime deadline, std::string* bytes, std::string* why) {
  while (bytes->size() < count) {
    pollfd p{fd, POLLIN, 0};
    const int ready = ::poll(&p, 1, poll_timeout(deadline));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) {
      *why = "something listens but does not answer like ltrain";
      return false;
    }
    char buffer[256];
    const ssize_t n = ::recv(fd, buffer, std::min(sizeof(buffer), count - bytes->size()), 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (n <= 0) {
      *why = "something listens but belongs to another job";
      return false;
    }
    bytes->append(buffer, static_cast<size_t>(n));
  }
  return true;
}

}  // namespace ltrain
