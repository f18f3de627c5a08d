// Chat templates in terms of the template language in jinja_*.
//
// The environment is the one of Hugging Face's tokenizers: trim_blocks and lstrip_blocks on, `messages`,
// `add_generation_prompt`, `bos_token` and `eos_token`, with `tools` and `documents` none. Undefined there and here:
// `strftime_now`, so that a template which asks whether it is defined takes its own fixed date.
#include "chat_template.h"

#include <utility>

#include "jinja_evaluator.h"

namespace assay {
namespace {

// Far above what real templates need, low enough for a second and some tens of MiB.
constexpr int64_t kStepsBase = 5'000'000;
constexpr int64_t kStepsPerInputByte = 16;
constexpr int64_t kBytesBase = int64_t{16} << 20;
constexpr int64_t kBytesPerInputByte = 16;

class ParsedTemplate final : public ChatTemplate {
public:
    explicit ParsedTemplate(std::string_view source) : body_(jinja::parse(source)) {}

    std::string render(const std::vector<ChatMessage>& messages, bool add_generation_prompt,
                       std::string_view bos_token, std::string_view eos_token) const override {
        int64_t input_bytes = 0;
        for (const ChatMessage& message : messages) {
            input_bytes += static_cast<int64_t>(message.role.size() + message.content.size() + sizeof(ChatMessage));
        }
        jinja::Budget budget(kStepsBase + input_bytes * kStepsPerInputByte,
                             kBytesBase + input_bytes * kBytesPerInputByte);
        const auto text = [&budget](std::string_view value) {
            return jinja::make_string(budget, std::string(value));
        };
        std::vector<jinja::Value> list;
        for (const ChatMessage& message : messages) {
            list.push_back(jinja::make_dict(budget, {{"role", text(message.role)}, {"content", text(message.content)}}));
        }
        jinja::Variables variables;
        variables.emplace_back("messages", jinja::make_list(budget, std::move(list)));
        variables.emplace_back("add_generation_prompt", add_generation_prompt);
        variables.emplace_back("bos_token", text(bos_token));
        variables.emplace_back("eos_token", text(eos_token));
        variables.emplace_back("tools", jinja::None{});
        variables.emplace_back("documents", jinja::None{});
        return jinja::evaluate(body_, budget, std::move(variables));
    }

private:
    jinja::Body body_;
};

}  // namespace

std::unique_ptr<ChatTemplate> ChatTemplate::parse(std::string_view source) {
    return std::make_unique<ParsedTemplate>(source);
}

}  // namespace assay
