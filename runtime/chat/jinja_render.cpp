#include <algorithm>

#include "base/printable.h"
#include "runtime/chat/jinja.h"
#include "runtime/chat/jinja_filters.h"
#include "runtime/chat/jinja_parser.h"

namespace ltrain::chat {

/// Variables of a block. Assignments stay in it; lookups go on in the blocks around it.
struct Scope final : Kept {
  std::shared_ptr<Scope> parent;
  std::vector<std::pair<TextPtr, Value>> variables;

  explicit Scope(std::shared_ptr<Scope> p) : parent(std::move(p)) {}
  void clear() override { variables.clear(); }

  const Value* find(const TextPtr& name) const {
    for (const Scope* scope = this; scope; scope = scope->parent.get())
      for (const auto& [key, value] : scope->variables)
        if (key == name) return &value;  // names of one template are interned
    return nullptr;
  }
  void set(const TextPtr& name, Value value) {
    for (auto& [key, old] : variables)
      if (key == name) {
        old = std::move(value);
        return;
      }
    variables.emplace_back(name, std::move(value));
  }
};

namespace {

using ScopePtr = std::shared_ptr<Scope>;

class Renderer {
 public:
  enum class Flow : uint8_t { normal, leave, next };

  Renderer(Session& session, const std::vector<std::pair<std::string, Value>>& variables)
      : s_(session), variables_(variables) {}

  Flow run(const Block& block, const ScopePtr& scope, TextBuilder& out) {
    for (const StmtPtr& statement : block)
      if (const Flow flow = run(*statement, scope, out); flow != Flow::normal) return flow;
    return Flow::normal;
  }

 private:
  ScopePtr inner(const ScopePtr& scope) {
    s_.allocate(sizeof(Scope));
    return std::make_shared<Scope>(scope);
  }

  Flow run(const Stmt& st, const ScopePtr& scope, TextBuilder& out) {
    s_.step();
    s_.line = st.line;
    switch (st.kind) {
      case StmtKind::data:
        out.add(*st.text);
        return Flow::normal;
      case StmtKind::print:
        for (const ExprPtr& e : st.values) add_text(s_, eval(*e, scope), out);
        return Flow::normal;
      case StmtKind::set:
        assign(*st.target, eval(*st.values[0], scope), scope);
        return Flow::normal;
      case StmtKind::leave:
        return Flow::leave;
      case StmtKind::next:
        return Flow::next;
      case StmtKind::macro:
        scope->set(st.text, function(st, scope));
        return Flow::normal;
      default:
        break;
    }
    const Deeper deeper(s_);
    switch (st.kind) {
      case StmtKind::branch:
        return run_branch(st, scope, out);
      case StmtKind::loop:
        return run_loop(st, scope, out);
      case StmtKind::set_block:
        return captured(st, scope);
      case StmtKind::filter_block: {
        TextBuilder text(s_);
        const Flow flow = run(st.body, inner(scope), text);
        add_text(s_, filtered(*st.filters, text.finish(), scope), out);
        return flow;
      }
      case StmtKind::with: {
        const ScopePtr own = inner(scope);
        for (size_t i = 0; i < st.targets.size(); ++i)
          assign(*st.targets[i], eval(*st.values[i], scope), own);
        return run(st.body, own, out);
      }
      case StmtKind::generation: {
        const uint32_t around = out.generation;
        if (around == 0) out.generation = ++s_.generations;
        run(st.body, inner(scope), out);
        out.generation = around;
        return Flow::normal;
      }
      case StmtKind::call_block: {
        const Value caller = function(st, scope);
        add_text(s_, call(*st.values[0], scope, &caller), out);
        return Flow::normal;
      }
      default:
        LT_CHECK(false, "expected a known statement, got {}", static_cast<int>(st.kind));
    }
  }

  Flow captured(const Stmt& st, const ScopePtr& scope) {
    TextBuilder text(s_);
    const Flow flow = run(st.body, inner(scope), text);
    Value value = text.finish();
    if (st.filters) value = filtered(*st.filters, value, scope);
    if (flow == Flow::normal) assign(*st.target, std::move(value), scope);
    return flow;
  }

  Flow run_branch(const Stmt& st, const ScopePtr& scope, TextBuilder& out) {
    if (truth(eval(*st.values[0], scope))) return run(st.body, scope, out);
    for (const StmtPtr& other : st.elifs) {
      s_.line = other->line;
      if (truth(eval(*other->values[0], scope))) return run(other->body, scope, out);
    }
    return run(st.other, scope, out);
  }

  SequencePtr source_of(const Value& value) {
    if (const auto* s = value.get_if<SequencePtr>()) return *s;
    return make_sequence(s_, iterate(s_, value)).as<SequencePtr>();
  }

  Flow run_loop(const Stmt& st, const ScopePtr& scope, TextBuilder& out) {
    auto loop = std::make_shared<Loop>();
    s_.allocate(sizeof(Loop));
    loop->source = source_of(eval(*st.values[0], scope));
    struct AtEnd {
      Loop& loop;
      ~AtEnd() { loop.end(); }
    } at_end{*loop};
    if (st.values[1])
      loop->keep = [&](const Value& item) {
        const ScopePtr own = inner(scope);
        assign(*st.target, item, own);
        return truth(eval(*st.values[1], own));
      };
    bool any = false;
    while (loop->next(s_)) {
      any = true;
      const ScopePtr own = inner(scope);
      own->variables.reserve(4);
      own->set(st.text, loop);
      assign(*st.target, loop->current, own);
      if (run(st.body, own, out) == Flow::leave) break;
    }
    return any ? Flow::normal : run(st.other, inner(scope), out);
  }

  void assign(const Expr& target, Value value, const ScopePtr& scope) {
    if (target.kind == ExprKind::name) return scope->set(target.text, std::move(value));
    if (target.kind == ExprKind::space_attribute) {
      const Value space = lookup(target.text, scope);
      if (!space.is<SpacePtr>())
        s_.fail("set {}.{}: expected a namespace, got {}", target.text->bytes, target.attribute->bytes,
                type_name(space));
      const std::string& name = target.attribute->bytes;
      if (name.starts_with('_')) s_.fail("namespace: the name \"{}\" begins with _", printable(name, 40));
      Space& to = *space.as<SpacePtr>();
      if (Value* old = to.find(name))
        *old = std::move(value);
      else
        to.items.emplace_back(name, std::move(value));
      return;
    }
    if (value.undefined()) fail_undefined(s_, value.as<Undefined>());
    const std::vector<Value> items = iterate(s_, value);
    if (items.size() != target.parts.size())
      s_.fail("expected {} values for {} names, got {}", target.parts.size(), target.parts.size(),
              items.size());
    for (size_t i = 0; i < items.size(); ++i) assign(*target.parts[i], items[i], scope);
  }

  Value function(const Stmt& st, const ScopePtr& scope) {
    s_.allocate(sizeof(Callable) + 64);
    s_.keep(scope);
    auto made = std::make_shared<Callable>();
    made->macro = &st;
    made->scope = scope;
    made->name = st.text;
    return CallablePtr(std::move(made));
  }

  Value lookup(const TextPtr& name, const ScopePtr& scope) {
    if (const Value* found = scope->find(name)) return *found;
    for (const auto& [key, value] : variables_)
      if (key == name->bytes) return value;
    if (const GlobalRow* row = find_global(name->bytes)) {
      auto made = std::make_shared<Callable>();
      made->global = row;
      made->name = name;
      return CallablePtr(std::move(made));
    }
    return Undefined{Undefined::Of::name, name};
  }

  std::vector<Value> eval_all(const std::vector<ExprPtr>& parts, const ScopePtr& scope) {
    std::vector<Value> values;
    values.reserve(parts.size());
    for (const ExprPtr& part : parts) values.push_back(eval(*part, scope));
    return values;
  }

  Value optional(const ExprPtr& e, const ScopePtr& scope) { return e ? eval(*e, scope) : Value(None{}); }

  Value eval(const Expr& e, const ScopePtr& scope) {
    const Deeper deeper(s_);
    s_.step();
    s_.line = e.line;
    switch (e.kind) {
      case ExprKind::constant:
        return e.value;
      case ExprKind::name:
        return lookup(e.text, scope);
      case ExprKind::list:
        return make_sequence(s_, eval_all(e.parts, scope));
      case ExprKind::tuple:
        return make_sequence(s_, eval_all(e.parts, scope), Sequence::Kind::tuple);
      case ExprKind::attribute:
        return get_attribute(s_, eval(*e.parts[0], scope), e.text);
      case ExprKind::call:
        return call(e, scope, nullptr);
      case ExprKind::filter:
        return filtered(e, {}, scope);
      case ExprKind::logic_not:
        return !truth(eval(*e.parts[0], scope));
      case ExprKind::logic_and:
      case ExprKind::logic_or: {
        Value left = eval(*e.parts[0], scope);
        return truth(left) == (e.kind == ExprKind::logic_or) ? left : eval(*e.parts[1], scope);
      }
      default:
        return eval_more(e, scope);
    }
  }

  Value eval_more(const Expr& e, const ScopePtr& scope) {
    switch (e.kind) {
      case ExprKind::dict: {
        std::vector<std::pair<Value, Value>> items;
        for (size_t i = 0; i < e.parts.size(); i += 2) {
          Value key = eval(*e.parts[i], scope);
          items.emplace_back(std::move(key), eval(*e.parts[i + 1], scope));
        }
        return make_dict(s_, std::move(items));
      }
      case ExprKind::item: {
        const Value of = eval(*e.parts[0], scope);
        return get_item(s_, of, eval(*e.parts[1], scope));
      }
      case ExprKind::slice: {
        const Value of = eval(*e.parts[0], scope), start = optional(e.parts[1], scope),
                    stop = optional(e.parts[2], scope);
        return get_slice(s_, of, start, stop, optional(e.parts[3], scope));
      }
      case ExprKind::test: {
        const Value of = eval(*e.parts[0], scope);
        return apply_test(s_, *e.test, of, arguments(e.arguments, scope));
      }
      case ExprKind::negate:
        return negated(s_, eval(*e.parts[0], scope));
      case ExprKind::plus: {
        const Value v = eval(*e.parts[0], scope);
        return v.integral() ? Value(v.integer()) : arithmetic(s_, "-", v, int64_t{0});
      }
      case ExprKind::binary: {
        const Value left = eval(*e.parts[0], scope), right = eval(*e.parts[1], scope);
        s_.line = e.line;
        return arithmetic(s_, e.ops[0], left, right);
      }
      case ExprKind::concat: {
        TextBuilder out(s_);
        for (const ExprPtr& part : e.parts) add_text(s_, eval(*part, scope), out);
        return out.finish();
      }
      case ExprKind::comparison:
        return compare_all(e, scope);
      case ExprKind::choice:
        if (truth(eval(*e.parts[1], scope))) return eval(*e.parts[0], scope);
        if (e.parts[2]) return eval(*e.parts[2], scope);
        return Undefined{Undefined::Of::hint,
                         make_text(s_, "an inline if without else, whose condition is false")};
      default:
        LT_CHECK(false, "expected a known expression, got {}", static_cast<int>(e.kind));
    }
  }

  Value compare_all(const Expr& e, const ScopePtr& scope) {
    Value left = eval(*e.parts[0], scope);
    for (size_t i = 0; i < e.ops.size(); ++i) {
      Value right = eval(*e.parts[i + 1], scope);
      s_.line = e.line;
      if (!compared(s_, e.ops[i], left, right)) return false;
      left = std::move(right);
    }
    return true;
  }

  Args arguments(const Arguments& a, const ScopePtr& scope) {
    Args args;
    args.positional = eval_all(a.positional, scope);
    for (const auto& [name, e] : a.named) args.named.emplace_back(name, eval(*e, scope));
    if (a.all_positional)
      for (Value& v : iterate(s_, eval(*a.all_positional, scope))) args.positional.push_back(std::move(v));
    if (a.all_named) {
      const Value all = eval(*a.all_named, scope);
      if (!all.dict()) s_.fail("**: expected a mapping, got {}", type_name(all));
      for (const auto& [key, value] : all.as<DictPtr>()->items)
        args.named.emplace_back(text_of(s_, key, "**")->bytes, value);
    }
    return args;
  }

  /// Applies a chain of filters; its innermost input is `input` where the source has none.
  Value filtered(const Expr& e, const Value& input, const ScopePtr& scope) {
    const Deeper deeper(s_);
    const ExprPtr& part = e.parts[0];
    const Value of = !part                            ? input
                     : part->kind == ExprKind::filter ? filtered(*part, input, scope)
                                                      : eval(*part, scope);
    Args args = arguments(e.arguments, scope);
    s_.line = e.line;
    return apply_filter(s_, *e.filter, of, std::move(args));
  }

  Value call(const Expr& e, const ScopePtr& scope, const Value* caller) {
    const Deeper deeper(s_);
    const Value function = eval(*e.parts[0], scope);
    Args args = arguments(e.arguments, scope);
    if (caller) args.named.emplace_back("caller", *caller);
    s_.line = e.line;
    if (function.undefined()) fail_undefined(s_, function.as<Undefined>());
    if (!function.is<CallablePtr>())
      s_.fail("expected a function or macro to call, got {}", type_name(function));
    const Callable& callable = *function.as<CallablePtr>();
    if (!callable.macro) return call_callable(s_, callable, std::move(args));
    Value result = call_macro(callable, std::move(args));
    s_.line = e.line;
    return result;
  }

  Value call_macro(const Callable& callable, Args args) {
    const Stmt& macro = *callable.macro;
    const std::string& name = macro.text->bytes;
    const ScopePtr own = inner(callable.scope);
    const size_t count = macro.parameters.size(), without = count - macro.defaults.size();
    for (size_t i = 0; i < count; ++i) {
      const TextPtr& parameter = macro.parameters[i];
      if (i < args.positional.size()) {
        own->set(parameter, args.positional[i]);
        continue;
      }
      const auto it = std::find_if(args.named.begin(), args.named.end(),
                                   [&](const auto& n) { return n.first == parameter->bytes; });
      if (it != args.named.end()) {
        own->set(parameter, it->second);
        args.named.erase(it);
      } else if (i >= without) {
        own->set(parameter, eval(*macro.defaults[i - without], own));
      } else {
        own->set(parameter,
                 Undefined{Undefined::Of::hint,
                           make_text(s_, fmt::format("the parameter {} was not given", parameter->bytes))});
      }
    }
    take_rest(macro, args, *own);
    if (!args.named.empty())
      s_.fail("macro {}: no parameter \"{}\"", printable(name, 40), printable(args.named[0].first, 40));
    if (args.positional.size() > count && !macro.positional_name)
      s_.fail("macro {}: expected at most {} arguments, got {}", printable(name, 40), count,
              args.positional.size());
    TextBuilder out(s_);
    run(macro.body, own, out);
    return out.finish();
  }

  /// Sets caller, kwargs and varargs, if the macro uses them.
  void take_rest(const Stmt& macro, Args& args, Scope& own) {
    const auto caller =
        std::find_if(args.named.begin(), args.named.end(), [](const auto& n) { return n.first == "caller"; });
    if (macro.caller_name) {
      const bool given = caller != args.named.end();
      own.set(
          macro.caller_name,
          given ? caller->second : Value(Undefined{Undefined::Of::hint, make_text(s_, "no caller defined")}));
      if (given) args.named.erase(caller);
    }
    if (macro.named_name) {
      std::vector<std::pair<Value, Value>> items;
      for (auto& [key, value] : args.named) items.emplace_back(make_text(s_, key), value);
      args.named.clear();
      own.set(macro.named_name, make_dict(s_, std::move(items)));
    }
    if (macro.positional_name) {
      const size_t from = std::min(macro.parameters.size(), args.positional.size());
      own.set(macro.positional_name,
              make_sequence(
                  s_, {args.positional.begin() + static_cast<std::ptrdiff_t>(from), args.positional.end()},
                  Sequence::Kind::tuple));
    }
  }

  Session& s_;
  const std::vector<std::pair<std::string, Value>>& variables_;
};

}  // namespace

JinjaTemplate::JinjaTemplate(std::string_view source, std::string name, const JinjaLimits& limits)
    : name_(printable(name, 200)), limits_(limits) {
  if (source.size() > limits.template_bytes)
    fail(ExitCode::data, "{}: a template of {} bytes; expected at most {}", name_, source.size(),
         limits.template_bytes);
  parsed_ = parse_jinja(source, name_);
}

bool JinjaTemplate::has_generation() const { return parsed_->generation; }

Rendered JinjaTemplate::render(const std::vector<JinjaVariable>& variables, const std::string& date) const {
  check_template_date(date);
  Session session(name_, limits_);
  session.date = date;
  std::vector<std::pair<std::string, Value>> values;
  for (const JinjaVariable& v : variables)
    values.emplace_back(v.name, v.source == JinjaVariable::Source::messages
                                    ? messages_from_json(session, v.value)
                                    : from_json(session, v.value, v.source == JinjaVariable::Source::data));
  TextBuilder out(session);
  const auto root = std::make_shared<Scope>(nullptr);
  session.keep(root);
  Renderer(session, values).run(parsed_->body, root, out);
  Text text = out.take();
  Rendered done;
  size_t begin = 0;
  for (const Run& run : text.runs) {
    done.spans.push_back({begin, run.end, run.origin.data, run.origin.generation});
    begin = run.end;
  }
  done.text = std::move(text.bytes);
  return done;
}

}  // namespace ltrain::chat
