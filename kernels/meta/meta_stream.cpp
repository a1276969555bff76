// A stream of the meta device: a clock.
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "kernels/meta/meta.h"

namespace ltrain {
namespace {

class MetaStream final : public Stream {
 public:
  MetaStream(std::string name, MetaTrace& trace) : Stream(DeviceKind::meta, std::move(name), &trace) {}
  void launch(std::function<void()>) override {
    LT_CHECK(false, "expected no launch on a meta stream, got one on {}", name());
  }
  Event do_record() override {
    Event e;
    e.meta_time = clock;
    return e;
  }
  void do_wait(const Event& event) override {
    if (event.meta_time > clock) {
      add_wait(event.axes, event.meta_time - clock);
      clock = event.meta_time;
    }
  }
  void synchronize() override {}
  void enter_layer(std::string_view layer) override { meta()->set_layer(layer); }
};

}  // namespace

std::unique_ptr<Stream> make_meta_stream(std::string name, MetaTrace& trace) {
  return std::make_unique<MetaStream>(std::move(name), trace);
}

}  // namespace ltrain
