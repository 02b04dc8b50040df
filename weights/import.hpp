// weights/import.hpp - other people's files into the flat checkpoint that transformer.hpp reads
//
// A reader turns a file into a Source: the configuration, a list of tensors that can be read row by row as f32, and the
// vocabulary. The writer turns a Source into a checkpoint, some rows at a time, so that a large model needs little
// memory. Quirks die in the readers: fused or transposed matrices, other row orders, 1 + w norms, scale
// constants. This is host code: it allocates, and reports what is wrong by throwing Error with one sentence.
#ifndef TRANSFORMER_WEIGHTS_IMPORT_HPP
#define TRANSFORMER_WEIGHTS_IMPORT_HPP

#include "../transformer.hpp"
#include "files.hpp"                // Error, and what readers need of the host
#include "vocabulary.hpp"

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace weights {

using transformer::Config;
using transformer::DType;
using transformer::Role;

struct TensorSource {
    uint32_t stack = 0;             // 0: main, 1: the encoder of an encoder-decoder
    uint32_t layer = 0;             // 0: the stack itself, i + 1: block i
    uint8_t role = 0;               // Role, + role_bias for a bias or shift
    uint32_t rows = 0, cols = 0, count = 1;
    DType stored = DType::f32;      // the precision of the source, kept when no type is asked for
    uint64_t identity = 0;          // tensors of the same identity (not 0) are written once: tied heads, shared layers
    // n rows of matrix `matrix` from `first` on, as f32 (n, cols); by several threads at once, like read_tile.
    std::function<void(uint32_t matrix, uint32_t first, uint32_t n, float* out)> read;
    // Optional, for a quantised `stored`: the 16-row tile itself, so that the source's scales are kept to the bit.
    std::function<void(uint32_t matrix, uint32_t tile, unsigned char* out)> read_tile;
};

struct Source {
    std::string kind;                                          // "llama2.c v0", "Hugging Face LlamaForCausalLM" ...
    Config main, encoder;
    std::vector<TensorSource> tensors;
    VocabularySource vocabulary;
};

// What tensors become: keep their precision, or one type for all matrices. Norms, biases and tables are always f32;
// with a 4-bit type the embedding and head become q8_0.
struct WriteOptions {
    bool convert = false;
    DType type = DType::f32;
    uint32_t threads = 0;           // 0: as many as there are processors
    std::function<void(uint64_t done, uint64_t total)> progress; // bytes; from any of the threads, one at a time
};

// Readers. `tokenizer`: a tokenizer file, or "" to look beside the model. What a path is, is read from its bytes.
inline Source read_source(const std::string& path, const std::string& tokenizer);
inline Source read_huggingface(const std::string& folder, const std::string& tokenizer);
inline Source read_llama2c(const std::string& path, const std::string& tokenizer);

// The writer. An exception out of `progress` stops it; write_to_file then leaves nothing behind.
inline AlignedBytes write_to_memory(const Source& source, const WriteOptions& options);
// temporary name, then renamed
inline void write_to_file(const Source& source, const WriteOptions& options, const std::string& path);

}  // namespace weights

#include "checkpoint.hpp"
#include "llama2c.hpp"
#include "tokenizers.hpp"
#if defined(__has_include)
#if __has_include("huggingface.hpp")
#include "huggingface.hpp"
#include "gguf.hpp"
#define TRANSFORMER_HAS_HUGGINGFACE 1
#endif
#endif

namespace weights {

#ifndef TRANSFORMER_HAS_HUGGINGFACE
inline Source read_huggingface(const std::string& folder, const std::string&)
{
    throw Error(folder + ": is a folder, and Hugging Face folders are not built into this program");
}
#endif

inline Source read_source(const std::string& path, const std::string& tokenizer)
{
    if (is_directory(path)) return read_huggingface(path, tokenizer);
#ifdef TRANSFORMER_HAS_HUGGINGFACE
    if (const File file = map_file(path); file->size >= 4 && std::memcmp(file->data, "GGUF", 4) == 0)
        return read_gguf(path, tokenizer);
#endif
    return read_llama2c(path, tokenizer);
}

}  // namespace weights
#endif
