#include "runtime/records/parquet_schema.h"

#include <array>

namespace ltrain::records::parquet {
namespace {

constexpr int kMostGroupDepth = 64;

Form form_of(const SchemaElement& e) {
  switch (*e.type) {
    case Physical::boolean:
      return Form::boolean;
    case Physical::int32:
    case Physical::int64:
      if (e.logical == Logical::decimal) return Form::decimal_integer;
      return e.logical == Logical::integer && !e.is_signed ? Form::unsigned_integer : Form::integer;
    case Physical::int96:
      return Form::timestamp96;
    case Physical::float32:
      return Form::float32;
    case Physical::float64:
      return Form::float64;
    case Physical::bytes:
    case Physical::fixed:
      break;
  }
  if (e.logical == Logical::decimal) return Form::decimal_bytes;
  if (e.logical == Logical::float16 && e.type_length == 2) return Form::float16;
  return Form::text;
}

int width_of(const SchemaElement& e) {
  constexpr std::array kWidths{1, 4, 8, 12, 4, 8, 0};
  if (*e.type != Physical::fixed) return kWidths.at(static_cast<size_t>(*e.type));
  if (e.type_length <= 0) damaged("the schema has a value of {} bytes, expected 1 or more", e.type_length);
  return e.type_length;
}

/// Turns elements, depth first, into nodes.
class Builder {
 public:
  explicit Builder(const std::vector<SchemaElement>& elements) : elements_(elements) {}

  Schema build() {
    const SchemaElement& root = take();
    if (root.type) damaged("the root of the schema is a leaf");
    for (int i = 0; i < root.children; ++i) schema_.fields.push_back(field(0, 0, 0));
    if (next_ != elements_.size())
      damaged("the schema has {} elements, and its root contains {}", elements_.size(), next_);
    return std::move(schema_);
  }

 private:
  const SchemaElement& take() {
    if (next_ == elements_.size()) damaged("the schema ends before all children of its groups");
    return elements_[next_++];
  }
  /// The element after the one that was taken last, or null.
  const SchemaElement* peek(size_t skipped = 0) const {
    return next_ + skipped < elements_.size() ? &elements_[next_ + skipped] : nullptr;
  }

  /// Takes one element and everything below it.
  Node field(int def, int rep, int depth) {
    const SchemaElement& e = take();
    if (depth > kMostGroupDepth) damaged("the schema is nested deeper than {} levels", kMostGroupDepth);
    if (e.repetition != Repetition::repeated) {
      const bool nullable = e.repetition == Repetition::optional;
      return body(e, def, nullable, rep, depth);
    }
    Node list = begin(e, Node::Kind::list, def, false, rep);  // repeated without an annotation
    list.children.push_back(body(e, def + 1, false, rep + 1, depth));
    return end(std::move(list));
  }

  Node begin(const SchemaElement& e, Node::Kind kind, int def, bool nullable, int rep) const {
    Node node;
    node.name = e.name;
    node.kind = kind;
    node.nullable = nullable;
    node.parent_def = def;
    node.def = def + (nullable ? 1 : 0);
    node.rep = rep + 1;
    node.element_def = node.def + 1;
    node.leaf_begin = static_cast<int>(schema_.leaves.size());
    return node;
  }
  Node end(Node node) const {
    node.leaf_end = static_cast<int>(schema_.leaves.size());
    if (node.leaf_begin == node.leaf_end) damaged("the schema has a group without columns");
    return node;
  }

  /// An element that was taken, without its own repetition, and everything below it.
  Node body(const SchemaElement& e, int def, bool nullable, int rep, int depth) {
    if (e.type) return leaf(e, def, nullable, rep);
    const SchemaElement* child = e.children == 1 ? peek() : nullptr;
    if (child && child->repetition == Repetition::repeated) {
      if (e.logical == Logical::list) return list(e, def, nullable, rep, depth);
      if (e.logical == Logical::map && !child->type && child->children == 2)
        return map(e, def, nullable, rep, depth);
      if (e.logical == Logical::map && !child->type && child->children == 1)  // a set: keys without values
        return list(e, def, nullable, rep, depth);
    }
    Node node = begin(e, Node::Kind::structure, def, nullable, rep);
    for (int i = 0; i < e.children; ++i) node.children.push_back(field(node.def, rep, depth + 1));
    return end(std::move(node));
  }

  Node leaf(const SchemaElement& e, int def, bool nullable, int rep) {
    if (e.children != 0) damaged("the schema has a leaf with {} children", e.children);
    Node node = begin(e, Node::Kind::leaf, def, nullable, rep);
    Leaf made;
    made.type = *e.type;
    made.form = form_of(e);
    made.logical = e.logical;
    made.width = width_of(e);
    made.scale = e.scale;
    made.precision = e.precision;
    made.bits = e.bits;
    made.max_def = node.def;
    made.max_rep = rep;
    if (e.logical == Logical::decimal && (made.scale < 0 || made.scale > 1000))
      damaged("the schema has a decimal of scale {}, expected 0 to 1000", made.scale);
    schema_.leaves.push_back(made);
    return end(std::move(node));
  }

  /// Three levels, or the two of old writers, where the repeated element is the list's element.
  Node list(const SchemaElement& e, int def, bool nullable, int rep, int depth) {
    Node node = begin(e, Node::Kind::list, def, nullable, rep);
    const SchemaElement& repeated = take();
    const SchemaElement* child = peek();
    const bool two_levels = repeated.type || repeated.children != 1 || repeated.name == "array" ||
                            repeated.name.ends_with("_tuple") ||
                            (child && child->repetition == Repetition::repeated);
    node.children.push_back(two_levels ? body(repeated, node.element_def, false, node.rep, depth + 1)
                                       : field(node.element_def, node.rep, depth + 1));
    return end(std::move(node));
  }

  Node map(const SchemaElement& e, int def, bool nullable, int rep, int depth) {
    Node node = begin(e, Node::Kind::map, def, nullable, rep);
    take();
    for (int i = 0; i < 2; ++i) node.children.push_back(field(node.element_def, node.rep, depth + 1));
    return end(std::move(node));
  }

  const std::vector<SchemaElement>& elements_;
  size_t next_ = 0;
  Schema schema_;
};

std::string leaf_name(const Leaf& leaf) {
  switch (leaf.form) {
    case Form::boolean:
      return "bool";
    case Form::float16:
      return "float16";
    case Form::float32:
      return "float32";
    case Form::float64:
      return "float64";
    case Form::text:
      if (leaf.logical == Logical::json) return "json";
      return leaf.logical == Logical::string || leaf.logical == Logical::enumeration ? "string" : "binary";
    case Form::decimal_integer:
    case Form::decimal_bytes:
      return fmt::format("decimal({}, {})", leaf.precision, leaf.scale);
    case Form::timestamp96:
      return "timestamp";
    case Form::integer:
    case Form::unsigned_integer:
      break;
  }
  if (leaf.logical == Logical::null) return "null";
  if (leaf.logical == Logical::date) return "date";
  if (leaf.logical == Logical::time) return "time";
  if (leaf.logical == Logical::timestamp) return "timestamp";
  const int bits = leaf.logical == Logical::integer ? leaf.bits : leaf.width * 8;
  return fmt::format("{}int{}", leaf.form == Form::unsigned_integer ? "u" : "", bits);
}

}  // namespace

Schema make_schema(const std::vector<SchemaElement>& elements) { return Builder(elements).build(); }

std::string type_name(const Schema& schema, const Node& node) {
  switch (node.kind) {
    case Node::Kind::leaf:
      return leaf_name(schema.leaves.at(static_cast<size_t>(node.leaf_begin)));
    case Node::Kind::list:
      return fmt::format("list<{}>", type_name(schema, node.children[0]));
    case Node::Kind::map:
      return fmt::format("map<{}, {}>", type_name(schema, node.children[0]),
                         type_name(schema, node.children[1]));
    case Node::Kind::structure:
      break;
  }
  std::string inner;
  for (const Node& child : node.children) {
    if (inner.size() > 1000) return fmt::format("struct<{}, ...>", inner);
    inner += fmt::format("{}{}: {}", inner.empty() ? "" : ", ", child.name.substr(0, 100),
                         type_name(schema, child));
  }
  return fmt::format("struct<{}>", inner);
}

}  // namespace ltrain::records::parquet
