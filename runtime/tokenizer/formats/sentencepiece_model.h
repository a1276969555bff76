// Contents of a SentencePiece model file (tokenizer.model).
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ltrain::data {

enum class PieceType : uint8_t { normal = 1, unknown, control, user_defined, unused, byte };

struct SentencePiece {
  std::string text;
  float score = 0;
  PieceType type = PieceType::normal;
};

struct SentencepieceModel {
  enum class Algorithm : uint8_t { unigram = 1, bpe = 2 };
  std::vector<SentencePiece> pieces;  ///< index: id
  Algorithm algorithm = Algorithm::unigram;
  bool byte_fallback = false;
  std::string bos_piece = "<s>", eos_piece = "</s>", unk_surface = " \xE2\x81\x87 ";
  // The normalizer.
  std::string charsmap;  ///< precompiled; "": none
  bool add_dummy_prefix = true, remove_extra_whitespaces = true, escape_whitespaces = true;
  // Results of the checks.
  int32_t unk = -1;
  std::vector<int32_t> byte_pieces;  ///< ids of <0x00> to <0xFF>; empty without byte_fallback
};

/// Parses the bytes of a model file. `name`: for messages. Throws Error (data) with the damaged or
/// unsupported part.
SentencepieceModel read_sentencepiece_model(std::string_view file, const std::string& name);

}  // namespace ltrain::data
