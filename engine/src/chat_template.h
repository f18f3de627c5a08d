// The subset of Jinja that chat templates in GGUF files use; anything else is an error that names it.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace assay {

struct ChatMessage { std::string role; std::string content; };

class ChatTemplate {
public:
    // Throws std::runtime_error ("line 3: the filter 'tojson' is not supported") at parse time where it can.
    static std::unique_ptr<ChatTemplate> parse(std::string_view source);
    virtual ~ChatTemplate() = default;
    // Throws std::runtime_error for what it cannot evaluate, and for raise_exception(...) with its text.
    virtual std::string render(const std::vector<ChatMessage>& messages, bool add_generation_prompt,
                               std::string_view bos_token, std::string_view eos_token) const = 0;
};

}  // namespace assay
