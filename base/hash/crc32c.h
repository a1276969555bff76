// CRC-32C (Castagnoli), the checksum of TFRecord and TensorBoard files, and of object stores.
#pragma once
#include <cstddef>
#include <cstdint>

namespace ltrain {

/// `before`: the value of the bytes before these; 0: none.
uint32_t crc32c(const void* data, size_t size, uint32_t before = 0);
/// TFRecord's masked form: rotated right by 15 bits, plus a constant.
uint32_t masked_crc32c(const void* data, size_t size);

}  // namespace ltrain
