// CRC-32C (Castagnoli), the checksum of TFRecord and TensorBoard files.
#pragma once
#include <cstddef>
#include <cstdint>

namespace ltrain {

uint32_t crc32c(const void* data, size_t size);
/// TFRecord's masked form: rotated right by 15 bits, plus a constant.
uint32_t masked_crc32c(const void* data, size_t size);

}  // namespace ltrain
