// Byte-level byte pair encoding ("gpt2" in GGUF).
//
// Text is cut at special tokens, then into words, and each word is merged on its own. Merging works on bytes; the
// printable alphabet in which the file writes them is undone once, at creation. Bytes that are no valid UTF-8 travel
// through like any others. Bytes for which the vocabulary has no token are left out, as the original tokenizers do
// (SmolLM2 lacks 21, among them 0x04 and those that no UTF-8 text holds).
#include "tokenizer.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <queue>
#include <stdexcept>
#include <unordered_map>
#include <utility>

#include "pretokenizer.h"
#include "unicode.h"

namespace assay {
namespace {

enum TokenType : int32_t { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();

[[noreturn]] void fail(const std::string& text) { throw std::runtime_error("tokenizer: " + text); }

// The alphabet of byte-level BPE: printable Latin-1 stands for itself, the other bytes follow from U+0100 in order.
std::array<int16_t, 0x144> make_byte_alphabet() {
    std::array<int16_t, 0x144> byte_of{};
    byte_of.fill(-1);
    char32_t next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
        const bool is_printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
        const char32_t code = is_printable ? static_cast<char32_t>(byte) : next++;
        byte_of[code] = static_cast<int16_t>(byte);
    }
    return byte_of;
}

// The bytes that a vocabulary text stands for; nothing when it holds a character outside the alphabet.
std::optional<std::string> decode_alphabet(std::string_view text) {
    static const auto byte_of = make_byte_alphabet();
    std::string bytes;
    for (size_t at = 0; at < text.size();) {
        const CodePoint point = decode_utf8(text, at);
        if (point.code >= byte_of.size() || byte_of[point.code] < 0) return std::nullopt;
        bytes.push_back(static_cast<char>(byte_of[point.code]));
        at += point.size;
    }
    return bytes;
}

struct Merge {
    uint32_t rank = kNone;
    uint32_t result = kNone;
};

// Pair of symbols to merge: open addressing, filled once. A node-based map takes several times the memory.
class MergeTable {
public:
    void reserve(size_t count) {
        size_t capacity = 16;
        while (capacity < count * 2) capacity *= 2;
        slots_.assign(capacity, Slot{kFree, {}});
    }
    void insert(uint32_t left, uint32_t right, Merge merge) {
        Slot& slot = slots_[find_slot(key_of(left, right))];
        // A pair that is listed twice keeps its first, better rank.
        if (slot.key == kFree) slot = {key_of(left, right), merge};
    }
    Merge find(uint32_t left, uint32_t right) const { return slots_[find_slot(key_of(left, right))].merge; }

private:
    struct Slot {
        uint64_t key;
        Merge merge;
    };
    static constexpr uint64_t kFree = std::numeric_limits<uint64_t>::max();

    static uint64_t key_of(uint32_t left, uint32_t right) { return (static_cast<uint64_t>(left) << 32) | right; }
    size_t find_slot(uint64_t key) const {
        const size_t mask = slots_.size() - 1;
        size_t at = static_cast<size_t>((key * 0x9E3779B97F4A7C15U) >> 20) & mask;
        while (slots_[at].key != key && slots_[at].key != kFree) at = (at + 1) & mask;
        return at;
    }

    std::vector<Slot> slots_;
};

class BpeTokenizer final : public Tokenizer {
public:
    explicit BpeTokenizer(const VocabularySource& source, Pretokenizer pretokenizer);

    std::vector<int32_t> encode(std::string_view text, bool add_special, bool parse_special) const override;
    std::string_view bytes(int32_t token, bool render_special) const override;
    bool is_end(int32_t token) const override {
        return std::binary_search(end_tokens_.begin(), end_tokens_.end(), token);
    }
    int32_t size() const override { return static_cast<int32_t>(types_.size()); }
    int32_t bos() const override { return bos_; }
    int32_t eos() const override { return eos_; }
    bool add_bos() const override { return add_bos_; }

private:
    // A symbol is a byte string that can stand in a word: a token's id, or a number from size() on for a byte or a merge
    // result that the vocabulary does not list.
    struct Link {
        uint32_t symbol;  // kNone once merged into its left neighbour
        uint32_t previous;
        uint32_t next;
    };
    struct Candidate {
        uint32_t rank;
        uint32_t left;
        uint32_t left_symbol;
        uint32_t right_symbol;
        uint32_t result;
        // The best candidate is the lowest rank, then the leftmost.
        bool operator<(const Candidate& other) const {
            return rank != other.rank ? rank > other.rank : left > other.left;
        }
    };
    struct Scratch {
        std::vector<Link> links;
        std::vector<Candidate> heap;
    };
    struct Special {
        std::string_view text;
        int32_t token;
        bool needs_parse;  // control and unknown tokens; user-defined ones are always recognised
    };
    struct Found {
        size_t at;
        uint32_t special;
    };

    std::vector<Found> find_specials(std::string_view text, bool parse_special) const;
    void encode_text(std::string_view text, Scratch& scratch, std::vector<int32_t>& tokens) const;
    void encode_word(std::string_view word, Scratch& scratch, std::vector<int32_t>& tokens) const;
    void push_candidate(const std::vector<Link>& links, uint32_t left, std::vector<Candidate>& heap) const;
    void emit(uint32_t symbol, std::vector<int32_t>& tokens) const;

    std::string storage_;                // bytes of all tokens, one after the other
    std::vector<uint32_t> offsets_;      // size() + 1
    std::vector<uint8_t> types_;
    std::array<uint32_t, 256> byte_symbols_{};
    std::vector<std::string> unlisted_;  // bytes of the symbols from size() on
    MergeTable merges_;
    std::unordered_map<std::string_view, int32_t> words_;  // only when whole words skip merging
    std::vector<Special> specials_;      // longest text first, then by id
    std::array<std::vector<uint32_t>, 256> specials_by_byte_;  // indexes into specials_, by first byte
    std::vector<int32_t> end_tokens_;    // ascending
    Pretokenizer pretokenizer_;
    int32_t bos_;
    int32_t eos_;
    bool add_bos_;
};

bool is_special(int32_t type) { return type == kControl || type == kUserDefined || type == kUnknown; }

template <size_t N>
bool is_one_of(std::string_view text, const std::string_view (&texts)[N]) {
    return std::find(std::begin(texts), std::end(texts), text) != std::end(texts);
}

// Tokens that end a reply whatever the file's ids say. The list is upstream's for this kind of vocabulary, so that both
// engines stop at the same place; it has the padding and separator tokens of fill-in-the-middle models too.
bool is_end_text(std::string_view text) {
    constexpr std::string_view kTexts[] = {
        "<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|eom_id|>", "<EOT>", "_<EOT>",
        "[EOT]", "[EOS]", "</s>", "<|end_of_text|>", "<end_of_utterance>",
        "<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]",
        "<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>", "<|file_sep|>",
    };
    return is_one_of(text, kTexts);
}

bool is_fim_text(std::string_view text) {
    constexpr std::string_view kTexts[] = {
        "<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<PRE>", "<|code_prefix|>",
        "<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<SUF>", "<|code_suffix|>",
        "<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<MID>", "<|code_middle|>",
    };
    return is_one_of(text, kTexts);
}

BpeTokenizer::BpeTokenizer(const VocabularySource& source, Pretokenizer pretokenizer)
    : pretokenizer_(pretokenizer), bos_(source.bos), eos_(source.eos), add_bos_(source.add_bos) {
    const size_t n_tokens = source.tokens.size();
    if (n_tokens == 0) fail("the vocabulary has no tokens");
    if (n_tokens > static_cast<size_t>(std::numeric_limits<int32_t>::max())) fail("the vocabulary has too many tokens");
    if (!source.types.empty() && source.types.size() != n_tokens) {
        fail("the vocabulary has " + std::to_string(source.types.size()) + " token types for " +
             std::to_string(n_tokens) + " tokens");
    }
    const std::pair<const char*, int32_t> ids[] = {
        {"bos", source.bos}, {"eos", source.eos}, {"eot", source.eot}, {"unk", source.unk}, {"pad", source.pad}};
    for (const auto& [name, id] : ids) {
        if (id < -1 || id >= static_cast<int64_t>(n_tokens)) {
            fail(std::string("the ") + name + " token id is " + std::to_string(id) + ", but the vocabulary has " +
                 std::to_string(n_tokens) + " tokens");
        }
    }
    if (add_bos_ && bos_ < 0) fail("the vocabulary asks for a bos token in front and names none");

    // 1. The bytes of every token, and which byte strings are symbols.
    std::unordered_map<std::string, uint32_t> symbols;
    symbols.reserve(n_tokens + 256);
    types_.reserve(n_tokens);
    offsets_.reserve(n_tokens + 1);
    offsets_.push_back(0);
    for (size_t i = 0; i < n_tokens; ++i) {
        const std::string& text = source.tokens[i];
        int32_t type = source.types.empty() ? static_cast<int32_t>(kNormal) : source.types[i];
        if (type < kNormal || type > kByte) {
            fail("token " + std::to_string(i) + " has the type " + std::to_string(type) + ", expected 1 to 6");
        }
        // Some files mark these as ordinary or user-defined; text from a user must not produce them.
        if (is_end_text(text) || is_fim_text(text)) type = kControl;
        types_.push_back(static_cast<uint8_t>(type));
        std::optional<std::string> decoded;
        if (!is_special(type)) decoded = decode_alphabet(text);
        // Special tokens stand in the file as themselves, and so does a text that the alphabet cannot have written.
        const std::string& token_bytes = decoded ? *decoded : text;
        storage_ += token_bytes;
        if (storage_.size() > std::numeric_limits<uint32_t>::max()) fail("the vocabulary's texts exceed 4 GiB");
        offsets_.push_back(static_cast<uint32_t>(storage_.size()));
        if (decoded && !decoded->empty()) symbols[*decoded] = static_cast<uint32_t>(i);
    }
    const auto symbol_of = [&](const std::string& text) {
        const auto [entry, is_new] = symbols.try_emplace(text, static_cast<uint32_t>(n_tokens + unlisted_.size()));
        if (is_new) unlisted_.push_back(text);
        return entry->second;
    };

    // 2. Bytes and merges.
    for (size_t byte = 0; byte < 256; ++byte) {
        byte_symbols_[byte] = symbol_of(std::string(1, static_cast<char>(byte)));
    }
    merges_.reserve(source.merges.size());
    for (size_t rank = 0; rank < source.merges.size(); ++rank) {
        const std::string& line = source.merges[rank];
        const size_t space = line.find(' ', 1);
        if (space == std::string::npos || space + 1 == line.size()) {
            fail("merge " + std::to_string(rank) + " is '" + line + "', expected two texts with a space between");
        }
        const auto left = decode_alphabet(std::string_view(line).substr(0, space));
        const auto right = decode_alphabet(std::string_view(line).substr(space + 1));
        if (!left || !right) continue;  // no text can hold these symbols, so that the merge never applies
        const uint32_t left_symbol = symbol_of(*left);
        const uint32_t right_symbol = symbol_of(*right);
        merges_.insert(left_symbol, right_symbol, {static_cast<uint32_t>(rank), symbol_of(*left + *right)});
    }

    // 3. Whole words, special tokens, ends of a reply.
    for (size_t i = 0; i < n_tokens; ++i) {
        const auto token = static_cast<int32_t>(i);
        const std::string_view text = bytes(token, true);
        if (text.empty()) continue;
        if (is_special(types_[i])) {
            specials_.push_back({text, token, types_[i] != kUserDefined});
            if (is_end_text(text)) end_tokens_.push_back(token);
        } else if (pretokenizer_.ignores_merges) {
            words_[text] = token;
        }
    }
    std::stable_sort(specials_.begin(), specials_.end(),
                     [](const Special& a, const Special& b) { return a.text.size() > b.text.size(); });
    for (uint32_t i = 0; i < specials_.size(); ++i) {
        specials_by_byte_[static_cast<uint8_t>(specials_[i].text[0])].push_back(i);
    }
    for (const int32_t token : {source.eos, source.eot}) {
        if (token >= 0) end_tokens_.push_back(token);
    }
    std::sort(end_tokens_.begin(), end_tokens_.end());
    end_tokens_.erase(std::unique(end_tokens_.begin(), end_tokens_.end()), end_tokens_.end());
}

std::string_view BpeTokenizer::bytes(int32_t token, bool render_special) const {
    if (token < 0 || token >= size()) return {};
    const auto i = static_cast<size_t>(token);
    if (!render_special && (types_[i] == kControl || types_[i] == kUnknown)) return {};
    return std::string_view(storage_).substr(offsets_[i], offsets_[i + 1] - offsets_[i]);
}

std::vector<int32_t> BpeTokenizer::encode(std::string_view text, bool add_special, bool parse_special) const {
    if (text.size() >= kNone) fail("the text exceeds 4 GiB");
    std::vector<int32_t> tokens;
    Scratch scratch;
    if (add_special && add_bos_) tokens.push_back(bos_);
    size_t at = 0;
    for (const Found& found : find_specials(text, parse_special)) {
        encode_text(text.substr(at, found.at - at), scratch, tokens);
        tokens.push_back(specials_[found.special].token);
        at = found.at + specials_[found.special].text.size();
    }
    encode_text(text.substr(at), scratch, tokens);
    return tokens;
}

// Longer special tokens win over shorter ones anywhere in the text, and equal ones from left to right, as if the whole
// text were searched for each token in turn.
std::vector<BpeTokenizer::Found> BpeTokenizer::find_specials(std::string_view text, bool parse_special) const {
    std::vector<Found> found;
    for (size_t at = 0; at < text.size(); ++at) {
        for (const uint32_t index : specials_by_byte_[static_cast<uint8_t>(text[at])]) {
            const Special& special = specials_[index];
            if (special.needs_parse && !parse_special) continue;
            if (text.compare(at, special.text.size(), special.text) == 0) found.push_back({at, index});
        }
    }
    if (found.size() < 2) return found;
    std::stable_sort(found.begin(), found.end(), [](const Found& a, const Found& b) { return a.special < b.special; });
    // What is taken so far is at least as long as the next candidate, so that an overlap covers one of its two ends.
    std::vector<bool> is_taken(text.size(), false);
    std::vector<Found> kept;
    for (const Found& candidate : found) {
        const size_t end = candidate.at + specials_[candidate.special].text.size();
        if (is_taken[candidate.at] || is_taken[end - 1]) continue;
        std::fill(is_taken.begin() + static_cast<ptrdiff_t>(candidate.at),
                  is_taken.begin() + static_cast<ptrdiff_t>(end), true);
        kept.push_back(candidate);
    }
    std::sort(kept.begin(), kept.end(), [](const Found& a, const Found& b) { return a.at < b.at; });
    return kept;
}

void BpeTokenizer::encode_text(std::string_view text, Scratch& scratch, std::vector<int32_t>& tokens) const {
    WordSplitter words(pretokenizer_.rule, text);
    for (std::string_view word; words.next(word);) encode_word(word, scratch, tokens);
}

void BpeTokenizer::push_candidate(const std::vector<Link>& links, uint32_t left, std::vector<Candidate>& heap) const {
    const uint32_t right = left == kNone ? kNone : links[left].next;
    if (right == kNone) return;
    const Merge merge = merges_.find(links[left].symbol, links[right].symbol);
    if (merge.rank == kNone) return;
    heap.push_back({merge.rank, left, links[left].symbol, links[right].symbol, merge.result});
    std::push_heap(heap.begin(), heap.end());
}

// A linked list of symbols and a heap of possible merges: n log n for a word of n bytes. A candidate whose symbols have
// changed meanwhile is stale and dropped when it comes up.
void BpeTokenizer::encode_word(std::string_view word, Scratch& scratch, std::vector<int32_t>& tokens) const {
    if (pretokenizer_.ignores_merges) {
        const auto whole = words_.find(word);
        if (whole != words_.end()) {
            tokens.push_back(whole->second);
            return;
        }
    }
    auto& links = scratch.links;
    auto& heap = scratch.heap;
    links.clear();
    heap.clear();
    const auto n = static_cast<uint32_t>(word.size());
    for (uint32_t i = 0; i < n; ++i) {
        links.push_back({byte_symbols_[static_cast<uint8_t>(word[i])], i == 0 ? kNone : i - 1, i + 1 == n ? kNone : i + 1});
    }
    for (uint32_t i = 0; i + 1 < n; ++i) push_candidate(links, i, heap);
    while (!heap.empty()) {
        std::pop_heap(heap.begin(), heap.end());
        const Candidate best = heap.back();
        heap.pop_back();
        Link& left = links[best.left];
        if (left.symbol != best.left_symbol || left.next == kNone) continue;
        Link& right = links[left.next];
        if (right.symbol != best.right_symbol) continue;
        left.symbol = best.result;
        right.symbol = kNone;
        left.next = right.next;
        if (left.next != kNone) links[left.next].previous = best.left;
        push_candidate(links, left.previous, heap);
        push_candidate(links, best.left, heap);
    }
    for (uint32_t i = 0; i != kNone; i = links[i].next) emit(links[i].symbol, tokens);
}

void BpeTokenizer::emit(uint32_t symbol, std::vector<int32_t>& tokens) const {
    const auto n_tokens = static_cast<uint32_t>(types_.size());
    if (symbol < n_tokens) {
        tokens.push_back(static_cast<int32_t>(symbol));
        return;
    }
    const std::string& unlisted = unlisted_[symbol - n_tokens];
    for (const char byte : unlisted) {
        const uint32_t byte_symbol = byte_symbols_[static_cast<uint8_t>(byte)];
        if (byte_symbol < n_tokens) tokens.push_back(static_cast<int32_t>(byte_symbol));
    }
}

}  // namespace

std::unique_ptr<Tokenizer> Tokenizer::create(VocabularySource source) {
    if (source.model != "gpt2") {
        fail("the vocabulary model '" + source.model + "' (tokenizer.ggml.model) is not supported, expected 'gpt2'");
    }
    const auto pretokenizer = find_pretokenizer(source.pre);
    if (!pretokenizer) {
        fail("the pre-tokenizer '" + source.pre + "' (tokenizer.ggml.pre) is not supported, expected one of: " +
             pretokenizer_names());
    }
    return std::make_unique<BpeTokenizer>(source, *pretokenizer);
}

}  // namespace assay
