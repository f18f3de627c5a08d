// engine-bench: prefill and generation rates of the engine library alone.
//
// What is timed. Prefill: one assay_decode call with all prompt tokens (the library cuts it into ubatches),
// logits asked for the last token only; the clock starts before the call and stops after it returns, when the
// logits are readable. Generation: n assay_decode calls of one token each, with its logits; the clock starts
// before the first call and stops after the last returns. Both begin with `--depth` synthetic cells and nothing
// else in the sequence, and both are run once untimed before the repeats.
// What is not timed: loading, tokenizing, sampling (the tokens are a fixed pseudo-random sequence), filling the
// synthetic cells, and HTTP. Rates are tokens divided by seconds of std::chrono::steady_clock; the median of the
// repeats is printed beside every single one.
#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "engine.h"
#include "json_text.h"
#include "outlet.h"

namespace {

struct Options {
    std::string model;
    uint32_t n_prompt = 512;
    uint32_t n_generate = 128;
    uint32_t n_threads = 2;
    uint32_t n_threads_batch = 0;  // 0: as n_threads
    uint32_t n_repeat = 5;
    uint32_t n_ubatch = 512;
    uint32_t depth = 0;
    uint32_t n_gpu_layers = 0;
    std::string kv_type = "f16";
    bool flash_attention = true;
    bool use_mmap = true;
    bool json = false;
};

constexpr const char* kUsage =
    "engine-bench --model FILE [--prompt 512] [--generate 128] [--threads 2] [--threads-batch N] [--repeat 5]\n"
    "             [--ubatch-size 512] [--depth 0] [--kv-type f32|f16|q8_0] [--n-gpu-layers 0] [--no-flash-attention]\n"
    "             [--no-mmap] [--json]\n"
    "Rates of prefill and generation without tokenizing, sampling and HTTP; medians over the repeats.\n";

struct UsageError {
    std::string text;
};

uint32_t parse_count(const std::string& flag, const std::string& text, uint32_t smallest) {
    uint32_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{} || end != text.data() + text.size() || value < smallest || value > (1U << 28)) {
        throw UsageError{flag + " is '" + text + "', a whole number from " + std::to_string(smallest) + " is needed"};
    }
    return value;
}

Options parse_options(int argc, char** argv) {
    Options options;
    for (int i = 1; i < argc; ++i) {
        const std::string flag = argv[i];
        const auto value = [&]() -> std::string {
            if (i + 1 >= argc) throw UsageError{flag + " needs a value"};
            return argv[++i];
        };
        if (flag == "--model")
            options.model = value();
        else if (flag == "--prompt")
            options.n_prompt = parse_count(flag, value(), 0);
        else if (flag == "--generate")
            options.n_generate = parse_count(flag, value(), 0);
        else if (flag == "--threads")
            options.n_threads = parse_count(flag, value(), 1);
        else if (flag == "--threads-batch")
            options.n_threads_batch = parse_count(flag, value(), 1);
        else if (flag == "--repeat")
            options.n_repeat = parse_count(flag, value(), 1);
        else if (flag == "--ubatch-size")
            options.n_ubatch = parse_count(flag, value(), 1);
        else if (flag == "--depth")
            options.depth = parse_count(flag, value(), 0);
        else if (flag == "--n-gpu-layers")
            options.n_gpu_layers = parse_count(flag, value(), 0);
        else if (flag == "--kv-type")
            options.kv_type = value();
        else if (flag == "--no-flash-attention")
            options.flash_attention = false;
        else if (flag == "--no-mmap")
            options.use_mmap = false;
        else if (flag == "--json")
            options.json = true;
        else if (flag == "--help" || flag == "-h") {
            std::fputs(kUsage, stdout);
            std::exit(assay::written("engine-bench", 0));
        } else
            throw UsageError{"unknown flag '" + flag + "'"};
    }
    if (options.model.empty()) throw UsageError{"--model is needed"};
    if (options.n_threads_batch == 0) options.n_threads_batch = options.n_threads;
    if (options.n_prompt == 0 && options.n_generate == 0) throw UsageError{"--prompt and --generate are both 0"};
    return options;
}

int32_t kv_type_of(const std::string& name) {
    if (name == "f32") return ASSAY_KV_F32;
    if (name == "f16") return ASSAY_KV_F16;
    if (name == "q8_0") return ASSAY_KV_Q8_0;
    throw UsageError{"--kv-type is '" + name + "'; f32, f16 or q8_0 is needed"};
}

struct EngineError {
    std::string text;
};

void must(int status, const char* error) {
    if (status != ASSAY_OK) throw EngineError{error};
}

class Bench {
public:
    explicit Bench(const Options& options) : options_(options) {
        char error[512];
        assay_model_settings model_settings = assay_model_defaults();
        model_settings.use_mmap = options.use_mmap;
        model_settings.n_gpu_layers = static_cast<int32_t>(options.n_gpu_layers);
        assay_model* model = nullptr;
        must(assay_model_load(options.model.c_str(), &model_settings, &model, error, sizeof error), error);
        model_.reset(model);
        assay_session_settings settings = assay_session_defaults();
        settings.n_ctx = options.depth + std::max(options.n_prompt, options.n_generate);
        settings.n_ubatch = std::min(options.n_ubatch, 8192U);
        settings.n_threads = options.n_threads;
        settings.n_threads_batch = options.n_threads_batch;
        settings.kv_type = kv_type_of(options.kv_type);
        settings.flash_attention = options.flash_attention;
        assay_session* session = nullptr;
        must(assay_session_new(model, &settings, &session, error, sizeof error), error);
        session_.reset(session);
        // Numerical Recipes' linear congruential generator: the same tokens everywhere.
        uint32_t state = 12345;
        const auto n_vocab = static_cast<uint32_t>(assay_model_n_vocab(model));
        for (uint32_t i = 0; i < std::max(options.n_prompt, options.n_generate); ++i) {
            state = state * 1664525U + 1013904223U;
            tokens_.push_back(static_cast<assay_token>((state >> 8) % n_vocab));
        }
    }

    double prefill_seconds() {
        start_sequence();
        const auto start = std::chrono::steady_clock::now();
        decode(0, options_.n_prompt);
        return seconds_since(start);
    }

    double generation_seconds() {
        start_sequence();
        const auto start = std::chrono::steady_clock::now();
        for (uint32_t i = 0; i < options_.n_generate; ++i) decode(i, 1);
        return seconds_since(start);
    }

    assay_work work() {
        assay_work work{};
        work.struct_size = sizeof work;
        assay_work_read(session_.get(), &work);
        return work;
    }
    void reset_work() { assay_work_reset(session_.get()); }
    const char* model_info() const { return assay_model_info(model_.get()); }
    uint64_t cache_bytes() const { return assay_session_cache_bytes(session_.get()); }
    uint64_t compute_bytes() const { return assay_session_compute_bytes(session_.get()); }

private:
    static double seconds_since(std::chrono::steady_clock::time_point start) {
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    }

    void start_sequence() {
        char error[512];
        must(assay_seq_remove(session_.get(), 0, 0, -1, error, sizeof error), error);
        if (options_.depth > 0) must(assay_fill_zero(session_.get(), 0, options_.depth, error, sizeof error), error);
        positions_.resize(tokens_.size());
        for (size_t i = 0; i < positions_.size(); ++i) positions_[i] = static_cast<int32_t>(options_.depth + i);
        sequences_.assign(tokens_.size(), 0);
        logits_.assign(tokens_.size(), 0);
    }

    void decode(uint32_t first, uint32_t n) {
        char error[512];
        logits_[first + n - 1] = 1;
        const assay_batch batch{n, tokens_.data() + first, positions_.data() + first, sequences_.data() + first,
                                logits_.data() + first};
        must(assay_decode(session_.get(), &batch, nullptr, error, sizeof error), error);
        if (assay_logits(session_.get(), n - 1) == nullptr) throw EngineError{"the engine gave no logits"};
    }

    struct FreeModel {
        void operator()(assay_model* model) const { assay_model_free(model); }
    };
    struct FreeSession {
        void operator()(assay_session* session) const { assay_session_free(session); }
    };

    Options options_;
    std::unique_ptr<assay_model, FreeModel> model_;
    std::unique_ptr<assay_session, FreeSession> session_;
    std::vector<assay_token> tokens_;
    std::vector<int32_t> positions_;
    std::vector<int32_t> sequences_;
    std::vector<uint8_t> logits_;
};

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    const size_t n = values.size();
    return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

// Largest resident set of this process in bytes, from the kernel; 0 where it does not say.
uint64_t peak_resident_bytes() {
    FILE* file = std::fopen("/proc/self/status", "r");
    if (file == nullptr) return 0;
    char line[256];
    unsigned long long kib = 0;
    while (std::fgets(line, sizeof line, file) != nullptr) {
        if (std::sscanf(line, "VmHWM: %llu kB", &kib) == 1) break;
    }
    std::fclose(file);
    return kib * 1024;
}

struct Phase {
    const char* name;
    uint32_t n_tokens;
    std::vector<double> rates;
    assay_work work{};
};

void run_phase(Bench& bench, const Options& options, Phase& phase, double (Bench::*seconds)()) {
    if (phase.n_tokens == 0) return;
    (bench.*seconds)();
    for (uint32_t i = 0; i < options.n_repeat; ++i) {
        bench.reset_work();
        phase.rates.push_back(phase.n_tokens / (bench.*seconds)());
        phase.work = bench.work();
    }
}

void print_text(const Phase& phase) {
    if (phase.rates.empty()) return;
    std::printf("%-10s %6u tokens  median %9.2f tokens/s  [", phase.name, phase.n_tokens, median(phase.rates));
    for (size_t i = 0; i < phase.rates.size(); ++i) std::printf("%s%.2f", i == 0 ? "" : " ", phase.rates[i]);
    std::printf("]  graphs %llu (reused %llu)  GFLOP %.3f\n", static_cast<unsigned long long>(phase.work.n_graphs),
                static_cast<unsigned long long>(phase.work.n_graph_reuses),
                static_cast<double>(phase.work.n_flops) * 1e-9);
}

void print_json(assay::JsonText& json, const Phase& phase) {
    if (phase.rates.empty()) return;
    json.key(phase.name);
    json.open('{');
    json.field("n_tokens", phase.n_tokens);
    json.field("median_tokens_per_second", median(phase.rates));
    json.key("tokens_per_second");
    json.open('[');
    for (const double rate : phase.rates) json.value(rate);
    json.close(']');
    json.key("work");
    json.open('{');
    json.field("n_graphs", phase.work.n_graphs);
    json.field("n_graph_reuses", phase.work.n_graph_reuses);
    json.field("n_graph_nodes", phase.work.n_graph_nodes);
    json.field("n_flops", phase.work.n_flops);
    json.field("n_weight_bytes_read", phase.work.n_weight_bytes_read);
    json.field("n_cells_visited", phase.work.n_cells_visited);
    json.field("n_mapping_steps", phase.work.n_mapping_steps);
    json.field("n_allocations", phase.work.n_allocations);
    json.field("n_tokens_evaluated", phase.work.n_tokens_evaluated);
    json.close('}');
    json.close('}');
}

int run(const Options& options) {
    Bench bench(options);
    Phase prefill{"prefill", options.n_prompt, {}};
    Phase generation{"generation", options.n_generate, {}};
    run_phase(bench, options, prefill, &Bench::prefill_seconds);
    run_phase(bench, options, generation, &Bench::generation_seconds);
    if (options.json) {
        assay::JsonText json;
        json.open('{');
        json.field("n_threads", options.n_threads);
        json.field("n_threads_batch", options.n_threads_batch);
        json.field("n_ubatch", options.n_ubatch);
        json.field("depth", options.depth);
        json.field("kv_type", options.kv_type.c_str());
        json.field("flash_attention", options.flash_attention);
        print_json(json, prefill);
        print_json(json, generation);
        json.field("cache_bytes", bench.cache_bytes());
        json.field("compute_bytes", bench.compute_bytes());
        json.field("peak_resident_bytes", peak_resident_bytes());
        json.close('}');
        // Both are complete JSON objects already.
        std::printf("{\"bench\":%s,\"model\":%s,\"build\":%s}\n", json.text().c_str(), bench.model_info(),
                    assay_build_info());
    } else {
        print_text(prefill);
        print_text(generation);
        std::printf("memory     cache %.1f MiB, compute %.1f MiB, peak resident %.1f MiB\n",
                    static_cast<double>(bench.cache_bytes()) / 1048576,
                    static_cast<double>(bench.compute_bytes()) / 1048576,
                    static_cast<double>(peak_resident_bytes()) / 1048576);
    }
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    try {
        return assay::written("engine-bench", run(parse_options(argc, argv)));
    } catch (const UsageError& error) {
        std::fprintf(stderr, "engine-bench: %s\n%s", error.text.c_str(), kUsage);
        return 2;
    } catch (const EngineError& error) {
        std::fprintf(stderr, "engine-bench: %s\n", error.text.c_str());
        return 5;
    } catch (const std::exception& error) {
        std::fprintf(stderr, "engine-bench: %s\n", error.what());
        return 5;
    }
}
