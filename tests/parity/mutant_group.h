// A communicator that does one collective of a program wrongly: leaves it out, makes it twice, or makes it
// elsewhere.
#pragma once
#include <memory>

#include "parallel/comm/communicator.h"

namespace ltrain::test {

enum class Mutation { none, remove, twice, elsewhere };

class MutantGroup final : public Communicator {
 public:
  /// Passes every call on to `inner`, but for call number `target` (from 0). `other`: where
  /// Mutation::elsewhere goes.
  MutantGroup(std::unique_ptr<Communicator> inner, Mutation mutation, int64_t target,
              std::unique_ptr<Communicator> other = nullptr);
  int64_t calls() const { return calls_; }
  /// Name of call number `target`: "reduce_scatter".
  const std::string& target_name() const { return target_name_; }

  std::unique_ptr<Communicator> split(int, int, std::string, AxisSet) override;

 private:
  /// Makes call(group, stream) as often, and there, as the mutation says.
  template <class F>
  void mutate(const char* name, F&& call);
  void record_meta(Stream& s, const CollectiveCall& call) override;
  void do_all_reduce(Tensor t, ReduceOp op) override;
  void do_all_gather(Tensor out, Tensor in) override;
  void do_reduce_scatter(Tensor out, Tensor in) override;
  void do_all_to_all_v(Tensor out, const std::vector<int64_t>& out_elements, Tensor in,
                       const std::vector<int64_t>& in_elements) override;
  void do_send_recv(Tensor out, int to, Tensor in, int from) override;
  void do_send(Tensor t, int peer) override;
  void do_recv(Tensor t, int peer) override;
  void do_broadcast(Tensor t, int root) override;
  void do_reduce(Tensor t, int root) override;
  // The step makes none of these.
  void do_barrier() override { unknown(); }
  [[noreturn]] static void unknown() {
    fail(ExitCode::internal, "the mutation tests do not know this collective");
  }

  std::unique_ptr<Communicator> inner_, other_;
  std::unique_ptr<Stream> inline_ = make_inline_stream("mutant");
  Mutation mutation_;
  int64_t target_, calls_ = 0;
  std::string target_name_;
};

}  // namespace ltrain::test
