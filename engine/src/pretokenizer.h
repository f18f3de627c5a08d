// Splits text into the words that byte-level BPE merges in isolation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace assay {

// The published patterns, matched leftmost with the alternatives tried in order:
//   gpt2:      's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
//   smollm:    every \p{N} on its own, then gpt2 on what lies between
//   llama_bpe: (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*
//              |\s*[\r\n]+|\s+(?!\S)|\s+
//   qwen2:     llama_bpe with \p{N} in place of \p{N}{1,3}
//   qwen35:    qwen2 with [\p{L}\p{M}] in place of \p{L}, save in the character before a word
enum class PretokenRule : uint8_t { smollm, gpt2, qwen2, qwen35, llama_bpe };

struct Pretokenizer {
    PretokenRule rule;
    bool ignores_merges;  // a word that is a token as a whole is taken without merging
    bool adds_bos;        // when the file does not say (tokenizer.ggml.add_bos_token)
};

// The rule for a value of tokenizer.ggml.pre; nothing for a name that we do not know.
std::optional<Pretokenizer> find_pretokenizer(std::string_view name);
// Every known name, comma separated, for error texts.
std::string pretokenizer_names();

// Yields the words of a text in order. They are views into the text and cover each of its bytes exactly once.
class WordSplitter {
public:
    WordSplitter(PretokenRule rule, std::string_view text) : text_(text), rule_(rule) {}
    bool next(std::string_view& word);

private:
    std::string_view text_;
    size_t at_ = 0;
    size_t section_end_ = 0;  // smollm: end of the current stretch without numbers
    PretokenRule rule_;
};

}  // namespace assay
