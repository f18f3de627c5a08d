// Compares splits, ids and rendered templates with the golden files. Argument: their folder. Environment:
// ASSAY_TEST_MODEL, the SmolLM2 file, for the ids under its vocabulary; without it those cases are skipped by name.
#include <cstdlib>
#include <iostream>

#include "chat_template.h"
#include "engine.h"
#include "pretokenizer.h"
#include "text_check.h"
#include "text_json.h"
#include "tokenizer.h"

namespace {

using check::Json;

constexpr const char* kRules[] = {"smollm", "gpt-2", "qwen2", "llama-bpe"};

std::string join(const std::vector<int32_t>& numbers) {
    std::string text;
    for (const int32_t number : numbers) text += std::to_string(number) + " ";
    return text;
}

void check_splits(const Json& golden) {
    for (const Json& item : golden.at("cases").array) {
        const std::string& text = item.at("text").string;
        for (const char* rule : kRules) {
            std::vector<int32_t> sizes;
            assay::WordSplitter words(assay::find_pretokenizer(rule)->rule, text);
            for (std::string_view word; words.next(word);) sizes.push_back(static_cast<int32_t>(word.size()));
            CHECK_EQUAL(std::string(rule) + " " + text + ": " + join(sizes),
                        std::string(rule) + " " + text + ": " + join(item.at(rule).integers()));
        }
    }
}

void check_tiny(const Json& golden) {
    for (const char* rule : kRules) {
        assay::VocabularySource source;
        source.model = "gpt2";
        source.pre = rule;
        source.tokens = golden.at("tokens").strings();
        source.types = golden.at("types").integers();
        source.merges = golden.at("merges").strings();
        const auto tokenizer = assay::Tokenizer::create(source);
        for (const Json& item : golden.at("cases").array) {
            const std::string& text = item.at("text").string;
            const auto ids = tokenizer->encode(text, false, item.at("parse_special").boolean);
            CHECK_EQUAL(std::string(rule) + " " + text + ": " + join(ids),
                        std::string(rule) + " " + text + ": " + join(item.at(rule).integers()));
            std::string back;
            for (const int32_t id : ids) back += tokenizer->bytes(id, true);
            CHECK_EQUAL(back, text);
        }
    }
}

void check_smollm2(const Json& golden, const char* model_path) {
    char error[512] = "";
    const assay_model_settings settings = assay_model_defaults();
    assay_model* model = nullptr;
    CHECK_EQUAL(assay_model_load(model_path, &settings, &model, error, sizeof error), static_cast<int>(ASSAY_OK));
    CHECK_EQUAL(std::string(error), "");
    if (model == nullptr) return;
    for (const Json& item : golden.at("cases").array) {
        const std::string& text = item.at("text").string;
        std::vector<int32_t> ids(text.size() + 8);
        size_t n = ids.size();
        CHECK_EQUAL(assay_tokenize(model, text.data(), text.size(), false, item.at("parse_special").boolean, ids.data(),
                                   &n, error, sizeof error),
                    static_cast<int>(ASSAY_OK));
        ids.resize(n);
        CHECK_EQUAL(text + ": " + join(ids), text + ": " + join(item.at("ids").integers()));
    }
    assay_model_free(model);
}

void check_chat(const Json& golden) {
    for (const Json& item : golden.at("cases").array) {
        const std::string& name = item.at("template").string;
        const Json* named = golden.at("templates").find(name);
        std::vector<assay::ChatMessage> messages;
        for (const Json& message : golden.at("conversations").at(item.at("conversation").string).array) {
            messages.push_back({message.at("role").string, message.at("content").string});
        }
        std::string output;
        const std::string error = check::error_of([&] {
            output = assay::ChatTemplate::parse(named != nullptr ? named->string : name)
                         ->render(messages, item.at("add_generation_prompt").boolean, "<s>", "</s>");
        });
        const std::string where = "[" + name + "] ";
        if (const Json* expected = item.find("output")) {
            CHECK_EQUAL(where + output + error, where + expected->string);
        } else if (const Json* raised = item.find("raises")) {
            CHECK_EQUAL(where + error, where + raised->string);
        } else {
            CHECK_EQUAL(where + error.substr(0, 5), where + "line ");
        }
    }
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 2) {
        std::fprintf(stderr, "text_golden: skipped, no folder of golden files was given\n");
        return 77;
    }
    const std::string folder = std::string(argv[1]) + "/";
    try {
        check_splits(check::read_json(folder + "pretokenizer_splits.json"));
        check_tiny(check::read_json(folder + "tokenizer_tiny.json"));
        check_chat(check::read_json(folder + "chat_template_cases.json"));
        const Json smollm2 = check::read_json(folder + "tokenizer_smollm2.json");
        if (const char* model = std::getenv("ASSAY_TEST_MODEL")) {
            check_smollm2(smollm2, model);
        } else {
            std::printf("%zu cases of tokenizer_smollm2.json skipped: ASSAY_TEST_MODEL names no model file\n",
                        smollm2.at("cases").array.size());
        }
    } catch (const std::exception& error) {
        std::fprintf(stderr, "text_golden: %s\n", error.what());
        return 1;
    }
    return check::finish();
}
