// Preloaded into programs under test: starts a thread that blocks no signal, as GPU drivers and profilers do.
// The kernel may give a signal of the process to it.
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

namespace {

void* rest(void*) {
  sigset_t none;
  ::sigemptyset(&none);
  ::pthread_sigmask(SIG_SETMASK, &none, nullptr);
  for (;;) ::pause();
}

[[gnu::constructor]] void start() {
  pthread_t thread;
  ::pthread_create(&thread, nullptr, rest, nullptr);
}

}  // namespace
