// Files of token ids alone: those of llm.c and nanoGPT.
#pragma once
#include <memory>

#include "runtime/records/encodings/byte_stream.h"
#include "runtime/records/record_source.h"

namespace ltrain::records {

bool is_llmc(std::string_view head);

/// llm.c: a header of 256 i32, then ids in u16 (GPT-2) or u32 (Llama 3). Each document begins with its token
/// of the end (GPT-2) or the begin (Llama 3) of a text, which is left out.
std::unique_ptr<RecordSource> open_llmc(std::unique_ptr<ByteStream> stream, std::string name,
                                        const Selection& selection);

/// nanoGPT: ids in u16 without a header. Documents end with GPT-2's token 50256, which is left out.
std::unique_ptr<RecordSource> open_nanogpt(std::unique_ptr<ByteStream> stream, std::string name,
                                           const Selection& selection);

}  // namespace ltrain::records
