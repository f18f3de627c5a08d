#include "settings.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <functional>
#include <limits>
#include <optional>
#include <string_view>
#include <thread>

#include "errors.h"

namespace assay::server {
namespace {

// `where` is the flag or the environment variable that gave the text.
using Apply = std::function<void(ServerSettings&, const std::string& where, const std::string& text)>;

struct Flag {
    std::string_view name;
    std::string_view environment;
    std::string_view value;  // placeholder, empty for a switch
    std::string_view help;
    Apply apply;
};

template <typename T>
T whole(const std::string& where, const std::string& text, T low, T high) {
    T number{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc() || end != text.data() + text.size() || number < low || number > high) {
        throw UsageError(where + ": expected an integer from " + std::to_string(low) + " to " + std::to_string(high) + ", got '" + text + "'");
    }
    return number;
}

template <typename T>
Apply integer(T ServerSettings::*field, T low, T high) {
    return [=](ServerSettings& settings, const std::string& where, const std::string& text) {
        settings.*field = whole<T>(where, text, low, high);
    };
}

Apply text(std::string ServerSettings::*field) {
    return [=](ServerSettings& settings, const std::string& where, const std::string& value) {
        if (value.empty()) throw UsageError(where + ": must not be empty");
        settings.*field = value;
    };
}

Apply toggle(bool ServerSettings::*field, bool value) {
    return [=](ServerSettings& settings, const std::string&, const std::string&) { settings.*field = value; };
}

Apply kv_type(int32_t ServerSettings::*field) {
    return [=](ServerSettings& settings, const std::string& where, const std::string& value) {
        if (value == "f32") settings.*field = ASSAY_KV_F32;
        else if (value == "f16") settings.*field = ASSAY_KV_F16;
        else if (value == "q8_0") settings.*field = ASSAY_KV_Q8_0;
        else throw UsageError(where + ": expected f32, f16 or q8_0, got '" + value + "'");
    };
}

constexpr uint32_t most_drafts = 6;
constexpr uint32_t usual_drafts = 3;  // what ENABLE_MTP=1 means

// The flag counts; the environment's switch says only whether.
void set_drafts(ServerSettings& settings, const std::string& where, const std::string& value) {
    if (where.starts_with("--")) settings.n_draft = whole<uint32_t>(where, value, 0, most_drafts);
    else settings.n_draft = whole<uint32_t>(where, value, 0, 1) * usual_drafts;
}

void set_log_format(ServerSettings& settings, const std::string& where, const std::string& value) {
    if (value == "json") settings.log_format = LogFormat::json;
    else if (value == "text") settings.log_format = LogFormat::text;
    else throw UsageError(where + ": expected json or text, got '" + value + "'");
}

void set_seed(ServerSettings& settings, const std::string& where, const std::string& value) {
    const auto seed = whole<int64_t>(where, value, -1, 0xFFFFFFFF);
    settings.seed = seed < 0 ? 0xFFFFFFFF : static_cast<uint32_t>(seed);
}

const std::vector<Flag>& flags() {
    using S = ServerSettings;
    static const std::vector<Flag> all{
        {"--model", "", "FILE", "the GGUF file to serve (required)", text(&S::model)},
        {"--host", "", "ADDRESS", "address to listen on (127.0.0.1)", text(&S::host)},
        {"--port", "", "N", "port; 0 picks a free one (8080)", integer<uint16_t>(&S::port, 0, 65535)},
        {"--ctx-size", "CTX_SIZE", "TOKENS", "cells of each slot, or of all slots together with --kv-unified (the model's, at most 4096)",
         integer<uint32_t>(&S::n_ctx, 8, 1U << 24U)},
        {"--parallel", "PARALLEL_SLOTS", "N", "slots: requests in work at the same time (1)", integer<uint32_t>(&S::n_slots, 1, 256)},
        {"--ubatch-size", "UBATCH_SIZE", "TOKENS", "most tokens of one graph evaluation, to 8192 (512)", integer<uint32_t>(&S::n_ubatch, 1, 8192)},
        {"--threads", "THREADS", "N", "threads of generation (one for each usable processor)", integer<uint32_t>(&S::n_threads, 1, 512)},
        {"--threads-batch", "", "N", "threads of prefill (as --threads)", integer<uint32_t>(&S::n_threads_batch, 1, 512)},
        {"--kv-type", "", "TYPE", "type of the cache: f32, f16 or q8_0 (f16)", kv_type(&S::kv_type)},
        {"--kv-unified", "", "", "one pool of cells for all slots", toggle(&S::kv_unified, true)},
        {"--drafts", "ENABLE_MTP", "N", "most tokens drafted at a time by the model's draft block, 0 to 6, with one slot; ENABLE_MTP=1 means 3 (0)",
         set_drafts},
        {"--draft-kv-type", "", "TYPE", "type of the drafts' cache: f32, f16 or q8_0 (f16)", kv_type(&S::draft_kv_type)},
        {"--draft-vocab", "", "N", "drafts are among the first N ids of the vocabulary; 0: among all (0)",
         integer<uint32_t>(&S::n_draft_vocab, 0, 1U << 30U)},
        {"--ple-cache-mib", "PLE_CACHE_MIB", "MIB", "decoded pages of the n-gram table that stay in memory (64)",
         integer<uint32_t>(&S::ple_cache_mib, 1, 1U << 20U)},
        {"--no-flash-attention", "", "", "attention in separate operators instead of one fused", toggle(&S::flash_attention, false)},
        {"--no-mmap", "", "", "read the weights instead of mapping the file", toggle(&S::use_mmap, false)},
        {"--n-gpu-layers", "", "N", "layers on the first accelerator (0)", integer<int32_t>(&S::n_gpu_layers, 0, 100000)},
        {"--api-key", "API_KEY", "KEY", "ask clients for this key; never printed", text(&S::api_key)},
        {"--alias", "", "NAME", "name of the model in answers (the file's name)", text(&S::alias)},
        {"--slot-save-path", "", "FOLDER", "where slots are saved and restored", text(&S::slot_save_path)},
        {"--test-images", "", "", "serve /test/image-completion, for tests; only on a loopback address", toggle(&S::test_images, true)},
        {"--log-format", "", "FORMAT", "json or text, on standard error (json)", set_log_format},
        {"--seed", "", "N", "seed of requests that name none; -1 draws one for each (-1)", set_seed},
        {"--help", "", "", "show this text", toggle(&S::is_help, true)},
        {"--version", "", "", "show what this build is made of", toggle(&S::is_version, true)},
    };
    return all;
}

void read_environment(ServerSettings& settings) {
    for (const Flag& flag : flags()) {
        if (flag.environment.empty()) continue;
        const std::string name(flag.environment);
        const char* value = std::getenv(name.c_str());
        if (value == nullptr || *value == '\0') continue;
        // The text of a bad key must not be shown; an empty one is absent.
        flag.apply(settings, "environment " + name, value);
    }
}

void check(const ServerSettings& settings) {
    if (settings.model.empty()) throw UsageError("--model: a GGUF file is required");
    if (settings.n_ubatch < settings.n_slots) {
        throw UsageError("--ubatch-size: " + std::to_string(settings.n_ubatch) + " tokens cannot hold one token of each of the " +
                         std::to_string(settings.n_slots) + " slots (--parallel)");
    }
    if (settings.n_draft > 0 && settings.n_slots > 1) {
        throw UsageError("--drafts: " + std::to_string(settings.n_draft) + " drafts at a time need one slot, and there are " +
                         std::to_string(settings.n_slots) + "; use ENABLE_MTP=0 PARALLEL_SLOTS=" + std::to_string(settings.n_slots) +
                         " (--drafts 0 --parallel " + std::to_string(settings.n_slots) + "), or PARALLEL_SLOTS=1 (--parallel 1)");
    }
    if (settings.n_draft > 0 && settings.n_ubatch <= settings.n_draft) {
        throw UsageError("--ubatch-size: " + std::to_string(settings.n_ubatch) + " tokens do not hold " + std::to_string(settings.n_draft) +
                         " drafts (--drafts) and the token before them");
    }
    if (settings.test_images && settings.host != "localhost" && settings.host != "::1" && !settings.host.starts_with("127.")) {
        throw UsageError("--test-images: this route is for tests on this host; use --host 127.0.0.1, not " + settings.host);
    }
    if (settings.slot_save_path.empty()) return;
    struct stat status {};
    if (stat(settings.slot_save_path.c_str(), &status) != 0 || !S_ISDIR(status.st_mode) ||
        access(settings.slot_save_path.c_str(), W_OK | X_OK) != 0) {
        throw UsageError("--slot-save-path: '" + settings.slot_save_path + "' is not a folder that can be written to");
    }
}

}  // namespace

ServerSettings parse_settings(const std::vector<std::string>& arguments) {
    ServerSettings settings;
    read_environment(settings);
    for (size_t i = 0; i < arguments.size(); ++i) {
        std::string name = arguments[i];
        std::optional<std::string> value;
        if (const size_t equals = name.find('='); equals != std::string::npos && name.starts_with("--")) {
            value = name.substr(equals + 1);
            name.resize(equals);
        }
        const auto flag = std::find_if(flags().begin(), flags().end(), [&](const Flag& f) { return f.name == name; });
        if (flag == flags().end()) {
            std::string known;
            for (const Flag& f : flags()) known += (known.empty() ? "" : ", ") + std::string(f.name);
            throw UsageError("unknown flag '" + name + "'; valid flags: " + known);
        }
        if (flag->value.empty()) {
            if (value) throw UsageError(name + ": takes no value");
            value.emplace();
        } else if (!value) {
            if (i + 1 == arguments.size()) throw UsageError(name + ": needs a value (" + std::string(flag->value) + ")");
            value = arguments[++i];
        }
        flag->apply(settings, name, *value);
    }
    if (settings.is_help || settings.is_version) return settings;
    check(settings);
    if (settings.n_threads == 0) settings.n_threads = std::max(1U, std::thread::hardware_concurrency());
    if (settings.n_threads_batch == 0) settings.n_threads_batch = settings.n_threads;
    if (settings.alias.empty()) settings.alias = settings.model.substr(settings.model.rfind('/') + 1);
    return settings;
}

std::string usage_text() {
    std::string help = "engine-server: serves one GGUF model with llama-server's and OpenAI's routes.\n\n";
    for (const Flag& flag : flags()) {
        std::string left = "  " + std::string(flag.name) + (flag.value.empty() ? "" : " ") + std::string(flag.value);
        left.resize(std::max<size_t>(left.size() + 2, 28), ' ');
        help += left + std::string(flag.help);
        if (!flag.environment.empty()) help += " [" + std::string(flag.environment) + "]";
        help += "\n";
    }
    help += "\nExample: engine-server --model model.gguf --port 0 --parallel 4 --ctx-size 2048\n";
    return help;
}

std::string name_of_kv_type(int32_t kv_type) {
    if (kv_type == ASSAY_KV_F32) return "f32";
    return kv_type == ASSAY_KV_Q8_0 ? "q8_0" : "f16";
}

}  // namespace assay::server
