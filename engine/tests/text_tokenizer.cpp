// The tokenizer on vocabularies made here: every byte comes back, limits hold, broken vocabularies are refused.
#include <chrono>
#include <iostream>
#include <random>

#include "pretokenizer.h"
#include "text_check.h"
#include "tokenizer.h"
#include "unicode.h"

namespace {

using assay::Tokenizer;
using assay::VocabularySource;

// The alphabet of byte-level BPE, as the file format defines it.
std::string alphabet(const std::string& bytes) {
    std::string text;
    for (const char c : bytes) {
        const auto byte = static_cast<unsigned char>(c);
        const auto is_plain = [](int b) { return (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE; };
        char32_t code = byte;
        if (!is_plain(byte)) {
            code = 0x100;
            for (int b = 0; b < byte; ++b) code += is_plain(b) ? 0 : 1;
        }
        assay::append_utf8(text, code);
    }
    return text;
}

VocabularySource byte_vocabulary(const std::string& pre) {
    VocabularySource source;
    source.model = "gpt2";
    source.pre = pre;
    for (int byte = 0; byte < 256; ++byte) {
        source.tokens.push_back(alphabet(std::string(1, static_cast<char>(byte))));
        source.types.push_back(1);
    }
    return source;
}

void add_merge(VocabularySource& source, const std::string& left, const std::string& right) {
    source.merges.push_back(alphabet(left) + " " + alphabet(right));
    source.tokens.push_back(alphabet(left + right));
    source.types.push_back(1);
}

int32_t add_special(VocabularySource& source, const std::string& text, int32_t type) {
    source.tokens.push_back(text);
    source.types.push_back(type);
    return static_cast<int32_t>(source.tokens.size()) - 1;
}

std::string decode(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
    std::string text;
    for (const int32_t id : ids) text += tokenizer.bytes(id, true);
    return text;
}

std::string random_bytes(std::mt19937& random, size_t size) {
    constexpr std::string_view kPieces[] = {" ", "\n", "'s", "12", "abc", "\xC3\xA9", "\xF0\x9F\x98\x80", "\xE4\xBD", "\xFF"};
    std::string text;
    while (text.size() < size) {
        if (random() % 2 == 0) {
            text.push_back(static_cast<char>(random() % 256));
        } else {
            text += kPieces[random() % std::size(kPieces)];
        }
    }
    return text;
}

void every_byte_string_comes_back_from_its_tokens() {
    std::mt19937 random(7);
    for (const std::string pre : {"smollm", "gpt-2", "qwen2", "llama-bpe"}) {
        VocabularySource source = byte_vocabulary(pre);
        for (const auto& [left, right] : {std::pair{"a", "b"}, {"ab", "c"}, {" ", "a"}, {"\xC3", "\xA9"}, {"\n", "\n"}}) {
            add_merge(source, left, right);
        }
        add_special(source, "<|x|>", 3);
        add_special(source, "<tool>", 4);
        const auto tokenizer = Tokenizer::create(source);
        for (int i = 0; i < 500; ++i) {
            const std::string text = random_bytes(random, random() % 60);
            CHECK(decode(*tokenizer, tokenizer->encode(text, false, i % 2 == 0)) == text);
        }
    }
}

void the_words_of_a_text_cover_it_without_gaps() {
    std::mt19937 random(8);
    for (const auto rule : {assay::PretokenRule::smollm, assay::PretokenRule::gpt2, assay::PretokenRule::qwen2,
                            assay::PretokenRule::qwen35, assay::PretokenRule::llama_bpe}) {
        for (int i = 0; i < 500; ++i) {
            const std::string text = random_bytes(random, random() % 80);
            std::string joined;
            bool has_empty = false;
            assay::WordSplitter words(rule, text);
            for (std::string_view word; words.next(word);) {
                has_empty = has_empty || word.empty();
                joined += word;
            }
            CHECK(joined == text && !has_empty);
        }
    }
}

void marks_are_letters_in_qwen35_only() {
    const auto words_of = [](assay::PretokenRule rule, std::string_view text) {
        std::vector<std::string> words;
        assay::WordSplitter splitter(rule, text);
        for (std::string_view word; splitter.next(word);) words.emplace_back(word);
        return words;
    };
    using Words = std::vector<std::string>;
    // e and a combining acute accent, a Devanagari word with vowel signs, and an accent after a space.
    const std::string text = "cafe\u0301s \u0939\u093F\u0928 \u0301x";
    CHECK(words_of(assay::PretokenRule::qwen35, text) ==
          (Words{"cafe\u0301s", " \u0939\u093F\u0928", " \u0301x"}));
    CHECK(words_of(assay::PretokenRule::qwen2, text) ==
          (Words{"cafe", "\u0301s", " \u0939", "\u093F\u0928", " \u0301", "x"}));
}

void merges_apply_by_rank_and_then_from_the_left() {
    VocabularySource source = byte_vocabulary("gpt-2");
    add_merge(source, "b", "c");  // 256
    add_merge(source, "a", "b");  // 257
    add_merge(source, "a", "a");  // 258
    const auto tokenizer = Tokenizer::create(source);
    CHECK((tokenizer->encode("abc", false, false) == std::vector<int32_t>{'a', 256}));
    CHECK((tokenizer->encode("ab", false, false) == std::vector<int32_t>{257}));
    CHECK((tokenizer->encode("aaa", false, false) == std::vector<int32_t>{258, 'a'}));
}

void a_merge_result_outside_the_vocabulary_falls_back_to_bytes() {
    VocabularySource source = byte_vocabulary("gpt-2");
    source.merges.push_back("x y");
    const auto tokenizer = Tokenizer::create(source);
    CHECK((tokenizer->encode("xyz", false, false) == std::vector<int32_t>{'x', 'y', 'z'}));
}

void special_tokens_are_found_longest_first() {
    VocabularySource source = byte_vocabulary("gpt-2");
    const int32_t control = add_special(source, "<|im|>", 3);
    const int32_t longer = add_special(source, "<|im|>x", 3);
    const int32_t user = add_special(source, "<tool>", 4);
    const int32_t inner = add_special(source, "ool>y", 4);
    const auto tokenizer = Tokenizer::create(source);
    CHECK((tokenizer->encode("<|im|><|im|>x", false, true) == std::vector<int32_t>{control, longer}));
    CHECK_EQUAL(tokenizer->encode("<|im|>", false, false).size(), size_t{6});
    CHECK((tokenizer->encode("<tool>", false, false) == std::vector<int32_t>{user}));
    // The longer one wins even where a shorter one begins before it.
    CHECK((tokenizer->encode("<tool>y", false, false) == std::vector<int32_t>{user, 'y'}));
    CHECK((tokenizer->encode("tool>y", false, false) == std::vector<int32_t>{'t', inner}));
    CHECK_EQUAL(tokenizer->bytes(control, false), "");
    CHECK_EQUAL(tokenizer->bytes(control, true), "<|im|>");
    CHECK_EQUAL(tokenizer->bytes(user, false), "<tool>");
    CHECK_EQUAL(tokenizer->bytes(-1, true), "");
    CHECK_EQUAL(tokenizer->bytes(1 << 20, true), "");
}

void bos_is_added_and_ends_are_known() {
    VocabularySource source = byte_vocabulary("llama-bpe");
    source.bos = add_special(source, "<|begin_of_text|>", 3);
    source.eos = add_special(source, "<|end_of_text|>", 3);
    const int32_t turn = add_special(source, "<|eot_id|>", 4);
    source.add_bos = true;
    const auto tokenizer = Tokenizer::create(source);
    CHECK((tokenizer->encode("a", true, false) == std::vector<int32_t>{source.bos, 'a'}));
    CHECK((tokenizer->encode("a", false, false) == std::vector<int32_t>{'a'}));
    CHECK(tokenizer->encode("", true, true).size() == 1);
    CHECK(tokenizer->is_end(source.eos) && tokenizer->is_end(turn) && !tokenizer->is_end(source.bos));
    // Text from outside must not end a reply, whatever type the file gives the token.
    CHECK_EQUAL(tokenizer->encode("<|eot_id|>", false, false).size(), size_t{10});
    CHECK(assay::find_pretokenizer("llama-bpe")->adds_bos && !assay::find_pretokenizer("smollm")->adds_bos);
}

void whole_words_skip_merging_where_the_rule_says_so() {
    for (const bool skips : {true, false}) {
        VocabularySource source = byte_vocabulary(skips ? "llama-bpe" : "dbrx");
        add_merge(source, "a", "b");
        source.tokens.push_back("abc");
        source.types.push_back(1);
        const auto tokenizer = Tokenizer::create(source);
        CHECK((tokenizer->encode("abc", false, false) ==
               (skips ? std::vector<int32_t>{257} : std::vector<int32_t>{256, 'c'})));
    }
}

void broken_vocabularies_are_refused_by_name() {
    const auto create = [](auto change) {
        VocabularySource source = byte_vocabulary("gpt-2");
        change(source);
        return Tokenizer::create(source);
    };
    CHECK_ERROR(create([](auto& s) { s.model = "llama"; }), "'llama' (tokenizer.ggml.model) is not supported");
    CHECK_ERROR(create([](auto& s) { s.pre = "default"; }), "expected one of: smollm");
    CHECK_ERROR(create([](auto& s) { s.tokens.clear(); s.types.clear(); }), "no tokens");
    CHECK_ERROR(create([](auto& s) { s.types.pop_back(); }), "255 token types for 256 tokens");
    CHECK_ERROR(create([](auto& s) { s.types[3] = 9; }), "token 3 has the type 9");
    CHECK_ERROR(create([](auto& s) { s.eos = 256; }), "eos token id is 256");
    CHECK_ERROR(create([](auto& s) { s.unk = -2; }), "unk token id is -2");
    CHECK_ERROR(create([](auto& s) { s.add_bos = true; }), "bos");
    CHECK_ERROR(create([](auto& s) { s.merges = {"ab"}; }), "merge 0 is 'ab'");
    CHECK_ERROR(create([](auto& s) { s.merges = {""}; }), "merge 0");
    CHECK(create([](auto& s) { s.merges = {"\xE4\xBD\xA0 x"}; })->size() == 256);
}

void a_megabyte_takes_no_quadratic_time() {
    VocabularySource source = byte_vocabulary("smollm");
    std::string run = " ";
    for (int i = 0; i < 6; ++i, run += run) add_merge(source, run, run);
    add_merge(source, "a", "a");
    add_merge(source, "aa", "aa");
    add_special(source, "<|im_start|>", 3);
    const auto tokenizer = Tokenizer::create(source);
    for (const std::string piece : {"a", " ", "\n", "1", "<|", "<|im_start|>", "it's ", "\xFF", "\xC3\xA9"}) {
        std::string text;
        while (text.size() < (size_t{1} << 20)) text += piece;
        const auto start = std::chrono::steady_clock::now();
        const auto ids = tokenizer->encode(text, false, true);
        const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
        CHECK(decode(*tokenizer, ids) == text);
        // A quadratic pass over a million symbols takes minutes; this leaves room for a slow host and sanitizers.
        CHECK(seconds.count() < 30);
    }
}

void utf8_is_cut_only_at_whole_characters() {
    CHECK_EQUAL(assay::complete_utf8("a\xC3"), size_t{1});
    CHECK_EQUAL(assay::complete_utf8("a\xC3\xA9"), size_t{3});
    CHECK_EQUAL(assay::complete_utf8("\xF0\x9F\x98"), size_t{0});
    CHECK_EQUAL(assay::complete_utf8("ab\xF0\x9F"), size_t{2});
    CHECK_EQUAL(assay::complete_utf8("\xF0\x9F\x98\x80"), size_t{4});
    CHECK_EQUAL(assay::complete_utf8("\xE0\x80"), size_t{2});  // can never become valid
    CHECK_EQUAL(assay::complete_utf8("\xFF"), size_t{1});
    CHECK_EQUAL(assay::complete_utf8(""), size_t{0});
    for (char32_t code = 0; code < 0x110000; code += code < 0x900 ? 1 : 97) {
        if (code >= 0xD800 && code < 0xE000) continue;
        std::string text;
        assay::append_utf8(text, code);
        const assay::CodePoint point = assay::decode_utf8(text, 0);
        CHECK(point.code == code && point.size == text.size());
        for (size_t cut = 1; cut < text.size(); ++cut) {
            CHECK(assay::complete_utf8(std::string_view(text).substr(0, cut)) == 0);
            CHECK(assay::decode_utf8(std::string_view(text).substr(0, cut), 0).size == 1);
        }
    }
    for (const std::string bad : {"\xC0\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xE0\x9F\xBF", "\x80"}) {
        CHECK(assay::decode_utf8(bad, 0).code == 0xFFFD && assay::decode_utf8(bad, 0).size == 1);
    }
}

void unicode_classes_follow_the_database() {
    using assay::CharClass;
    CHECK_EQUAL(assay::unicode_version(), "15.1.0");
    for (const char32_t letter : {U'a', U'Z', U'\u00AA', U'\u017F', U'\u4E00', U'\u9FFF', U'\U00020000', U'\uAC00'}) {
        CHECK(assay::char_class(letter) == CharClass::letter);
    }
    for (const char32_t number : {U'0', U'\u00B2', U'\u00BD', U'\u0664', U'\u2167', U'\U0001D7D9', U'\U00011F50'}) {
        CHECK(assay::char_class(number) == CharClass::number);
    }
    for (const char32_t space : {U' ', U'\t', U'\v', U'\u0085', U'\u00A0', U'\u1680', U'\u2028', U'\u3000'}) {
        CHECK(assay::char_class(space) == CharClass::space);
    }
    for (const char32_t mark : {U'\u0301', U'\u0903', U'\u20DD', U'\U000E0100'}) {
        CHECK(assay::char_class(mark) == CharClass::mark);
    }
    // The last two are unassigned in 15.1, a letter and a digit from 16.0 on.
    for (const char32_t other : {U'_', U'\u200B', U'\uFEFF', U'\uFFFD', U'\U0001F600', U'\U00013460', U'\U00010D40'}) {
        CHECK(assay::char_class(other) == CharClass::other);
    }
    CHECK_EQUAL(assay::upper_utf8("stra\u00DFe \u00E9 \uFB01"), "STRASSE \u00C9 FI");
    CHECK_EQUAL(assay::lower_utf8("\u00C0B \u0130"), "\u00E0b i\u0307");
    CHECK_ERROR(assay::lower_utf8("\u03A3"), "sigma");
}

}  // namespace

int main() {
    every_byte_string_comes_back_from_its_tokens();
    the_words_of_a_text_cover_it_without_gaps();
    marks_are_letters_in_qwen35_only();
    merges_apply_by_rank_and_then_from_the_left();
    a_merge_result_outside_the_vocabulary_falls_back_to_bytes();
    special_tokens_are_found_longest_first();
    bos_is_added_and_ends_are_known();
    whole_words_skip_merging_where_the_rule_says_so();
    broken_vocabularies_are_refused_by_name();
    a_megabyte_takes_no_quadratic_time();
    utf8_is_cut_only_at_whole_characters();
    unicode_classes_follow_the_database();
    return check::finish();
}
