#include "runtime/tokenizer/formats/sentencepiece_model.h"

#include <cmath>
#include <unordered_map>

#include "base/error.h"
#include "base/printable.h"
#include "runtime/files/protobuf.h"

namespace ltrain::data {
namespace {

// Limits far above real models, and small enough to make a hostile file cheap.
constexpr size_t kMaxPieces = size_t{1} << 20, kMaxPieceBytes = 512, kMaxBytes = size_t{8} << 20;

SentencePiece read_piece(ProtobufFields f) {
  SentencePiece piece;
  while (f.next()) {
    if (f.number() == 1) {
      piece.text = f.text();
    } else if (f.number() == 2) {
      piece.score = f.real();
    } else if (f.number() == 3) {
      const uint64_t type = f.integer();
      if (type < 1 || type > 6) f.fail_at("no type of a piece");
      piece.type = static_cast<PieceType>(type);
    }
  }
  return piece;
}

void read_trainer(ProtobufFields f, SentencepieceModel& m, const std::string& name) {
  while (f.next()) {
    switch (f.number()) {
      case 3: {
        const uint64_t algorithm = f.integer();
        if (algorithm != 1 && algorithm != 2)
          fail(ExitCode::data, "{}: trainer_spec.model_type {}: not supported; UNIGRAM (1) and BPE (2) are",
               name, algorithm);
        m.algorithm = static_cast<SentencepieceModel::Algorithm>(algorithm);
        break;
      }
      case 24:
        if (f.truth())
          fail(ExitCode::data, "{}: trainer_spec.treat_whitespace_as_suffix: not supported", name);
        break;
      case 35:
        m.byte_fallback = f.truth();
        break;
      case 44:
        m.unk_surface = f.text();
        break;
      case 46:
        m.bos_piece = f.text();
        break;
      case 47:
        m.eos_piece = f.text();
        break;
    }
  }
}

void read_normalizer(ProtobufFields f, SentencepieceModel& m) {
  while (f.next()) {
    switch (f.number()) {
      case 2:
        m.charsmap = f.text();
        break;
      case 3:
        m.add_dummy_prefix = f.truth();
        break;
      case 4:
        m.remove_extra_whitespaces = f.truth();
        break;
      case 5:
        m.escape_whitespaces = f.truth();
        break;
    }
  }
}

void check_denormalizer(ProtobufFields f, const std::string& name) {
  while (f.next())
    if (f.number() == 2 && !f.text().empty())
      fail(ExitCode::data, "{}: denormalizer_spec.precompiled_charsmap: not supported", name);
}

/// Value of "<0x41>", or -1.
int byte_of(std::string_view piece) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  if (piece.size() != 6 || !piece.starts_with("<0x") || piece[5] != '>') return -1;
  const size_t high = kDigits.find(piece[3]), low = kDigits.find(piece[4]);
  return high == kDigits.npos || low == kDigits.npos ? -1 : static_cast<int>(high * 16 + low);
}

void check_pieces(SentencepieceModel& m, const std::string& name) {
  if (m.pieces.empty()) fail(ExitCode::data, "{}: has no pieces; not a SentencePiece model", name);
  // Reserved pieces and text pieces have separate names.
  std::unordered_map<std::string_view, size_t> seen[2];
  size_t bytes = 0;
  if (m.byte_fallback) m.byte_pieces.assign(256, -1);
  for (size_t id = 0; id < m.pieces.size(); ++id) {
    const SentencePiece& p = m.pieces[id];
    const auto at = [&] { return fmt::format("{}: piece {} \"{}\"", name, id, printable(p.text, 60)); };
    if (p.text.empty()) fail(ExitCode::data, "{}: has no text", at());
    if (p.text.size() > kMaxPieceBytes || (bytes += p.text.size()) > kMaxBytes)
      fail(ExitCode::data, "{}: {} bytes; a piece has at most {}, all together {}", at(), p.text.size(),
           kMaxPieceBytes, kMaxBytes);
    if (!std::isfinite(p.score)) fail(ExitCode::data, "{}: its score is no number", at());
    const bool reserved =
        p.type == PieceType::unknown || p.type == PieceType::control || p.type == PieceType::byte;
    if (const auto [it, fresh] = seen[reserved].emplace(p.text, id); !fresh)
      fail(ExitCode::data, "{}: again; piece {} has this text", at(), it->second);
    if (p.type == PieceType::unknown) {
      if (m.unk >= 0) fail(ExitCode::data, "{}: is the unknown piece, and so is piece {}", at(), m.unk);
      m.unk = static_cast<int32_t>(id);
    }
    if (p.type == PieceType::unused && m.algorithm == SentencepieceModel::Algorithm::bpe)
      fail(ExitCode::data, "{}: type UNUSED is not supported in a BPE model", at());
    if (p.type != PieceType::byte) continue;
    const int byte = byte_of(p.text);
    if (byte < 0) fail(ExitCode::data, "{}: is of type BYTE, but not <0x00> to <0xFF>", at());
    if (!m.byte_fallback)
      fail(ExitCode::data, "{}: is of type BYTE, but trainer_spec.byte_fallback is not set", at());
    m.byte_pieces[static_cast<size_t>(byte)] = static_cast<int32_t>(id);
  }
  if (m.unk < 0 && !m.byte_fallback) fail(ExitCode::data, "{}: no piece is of type UNKNOWN", name);
  for (size_t b = 0; b < m.byte_pieces.size(); ++b)
    if (m.byte_pieces[b] < 0)
      fail(ExitCode::data, "{}: trainer_spec.byte_fallback is set, but no piece is <0x{:02X}>", name, b);
}

}  // namespace

SentencepieceModel read_sentencepiece_model(std::string_view file, const std::string& name) {
  // Llama-3 has a rank file under the same name.
  const size_t line = file.find('\n');
  if (line > 0 && line < 64 &&
      file.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
                             "0123456789+/= \r") == line)
    fail(ExitCode::data,
         "{}: is a tiktoken rank file, not a SentencePiece model; ltrain tokenizer import makes a "
         "tokenizer.json of "
         "it",
         name);
  SentencepieceModel m;
  ProtobufFields f(file, name, "a SentencePiece model");
  while (f.next()) {
    switch (f.number()) {
      case 1:
        if (m.pieces.size() == kMaxPieces) fail(ExitCode::data, "{}: more than {} pieces", name, kMaxPieces);
        m.pieces.push_back(read_piece(f.message()));
        break;
      case 2:
        read_trainer(f.message(), m, name);
        break;
      case 3:
        read_normalizer(f.message(), m);
        break;
      case 5:
        check_denormalizer(f.message(), name);
        break;
    }
  }
  check_pieces(m, name);
  return m;
}

}  // namespace ltrain::data
