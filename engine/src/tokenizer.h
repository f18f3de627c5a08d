// Text to token ids and back, from the vocabulary in a GGUF file.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace assay {

// What the file says about its vocabulary (gguf `tokenizer.ggml.*`), already extracted by the loader.
struct VocabularySource {
    std::string model;                  // tokenizer.ggml.model: "gpt2"
    std::string pre;                    // tokenizer.ggml.pre: "smollm", "gpt2", "qwen2", "llama-bpe", ...
    std::vector<std::string> tokens;    // as stored (byte-level alphabet)
    std::vector<int32_t> types;         // 1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte
    std::vector<std::string> merges;    // "left right"
    int32_t bos = -1, eos = -1, eot = -1, unk = -1, pad = -1;
    bool add_bos = false;               // tokenizer.ggml.add_bos_token, or the pre-tokenizer's default
};

class Tokenizer {
public:
    // Throws std::runtime_error (one line: what, found, expected) for an unknown model or pre name or a broken vocabulary.
    static std::unique_ptr<Tokenizer> create(VocabularySource source);
    virtual ~Tokenizer() = default;

    virtual std::vector<int32_t> encode(std::string_view text, bool add_special, bool parse_special) const = 0;
    // Exact bytes; empty for control tokens unless render_special. Stable storage.
    virtual std::string_view bytes(int32_t token, bool render_special) const = 0;
    virtual bool is_end(int32_t token) const = 0;
    virtual int32_t size() const = 0;
    virtual int32_t bos() const = 0;
    virtual int32_t eos() const = 0;
    virtual bool add_bos() const = 0;
};

}  // namespace assay
