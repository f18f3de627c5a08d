// operator_suites: every operator that the engine's graphs use, against double precision, on the ggml beside it.
//
// Needs no model. Exit code 0 when nothing failed, 1 when something did, 2 for a usage error, 77 when nothing could be run
// (no GPU).
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "failure.h"
#include "json_text.h"
#include "operators/suites.h"
#include "operators/verdict.h"
#include "outlet.h"
#include "probe.h"

namespace {

using namespace assay::operators;

constexpr const char* kUsage =
    "operator_suites [--device cpu|gpu] [--threads N] [--json | --control | --list] [OPERATOR ...]\n"
    "Prints a line a case (PASS, FAIL or NOT_RUN; operator; case; the error closest to its tolerance, and that tolerance)\n"
    "and a summary. --json prints one line of JSON, --list names operators and the reasons of their tolerances.\n"
    "--control changes one number of the inputs of every case behind the reference's back: a case that does not see it FAILs.\n";
constexpr const char* kName = "operator_suites";
constexpr int kNotRun = 77;

struct Options {
    bool is_gpu = false;
    bool is_json = false;
    bool is_control = false;
    bool is_list = false;
    int threads = 2;
    std::set<std::string> wanted;
};

[[noreturn]] void refuse(const std::string& text) {
    std::fprintf(stderr, "operator_suites: %s\n%s", text.c_str(), kUsage);
    std::exit(2);
}

Options parse(int argc, char** argv, const std::vector<Operator>& all) {
    Options options;
    for (int i = 1; i < argc; ++i) {
        const std::string word = argv[i];
        const bool has_next = i + 1 < argc;
        if (word == "--help") {
            std::fputs(kUsage, stdout);
            std::exit(assay::written(kName, 0));
        } else if (word == "--json") {
            options.is_json = true;
        } else if (word == "--control") {
            options.is_control = true;
        } else if (word == "--list") {
            options.is_list = true;
        } else if (word == "--device") {
            const std::string device = has_next ? argv[++i] : "";
            if (device != "cpu" && device != "gpu") refuse("--device is '" + device + "', cpu or gpu is needed");
            options.is_gpu = device == "gpu";
        } else if (word == "--threads") {
            const std::string_view number = has_next ? argv[++i] : "";
            const char* end = number.data() + number.size();
            const auto [rest, problem] = std::from_chars(number.data(), end, options.threads);
            const bool is_number = problem == std::errc() && rest == end;
            if (!is_number || options.threads < 1 || options.threads > 256) refuse("--threads wants a number from 1 to 256");
        } else {
            bool is_known = false;
            for (const Operator& one : all) is_known = is_known || one.name == word;
            if (!is_known) refuse("no operator is called '" + word + "'");
            options.wanted.insert(word);
        }
    }
    return options;
}

assay::BackendHandle start(ggml_backend_dev_t device, int threads) {
    assay::BackendHandle backend(ggml_backend_dev_init(device, nullptr));
    if (!backend) throw assay::Failure(ASSAY_MEMORY, "cannot start the back end: " + assay::take_ggml_error());
    const auto set_threads =
        assay::devices().cpu_function<ggml_backend_set_n_threads_t>("ggml_backend_set_n_threads");
    if (device == assay::devices().cpu && set_threads != nullptr) set_threads(backend.get(), threads);
    return backend;
}

struct Line {
    std::string name;  // of the operator
    std::string text;  // of the case
    Result result;
    bool has_host = false;
    Result on_host;  // with a GPU: the same case on the CPU
};

class Run {
public:
    Run(const Options& options, assay::BackendHandle host, assay::BackendHandle gpu)
        : options_(options), host_(std::move(host)), gpu_(std::move(gpu)) {}

    void one(const Operator& op, const Case& one) {
        const Place host{host_.get(), false, nullptr};
        if (!gpu_) {
            add({op.name, one.name, judge(one, host), false, {}});
            if (one.has_weights) each_layout(op, one);
            return;
        }
        // Weights of a session lie in a buffer of their own.
        ggml_backend_buffer_type_t weights = one.has_weights ? ggml_backend_get_default_buffer_type(gpu_.get()) : nullptr;
        Line line{op.name, one.name, judge(one, {gpu_.get(), true, weights}), false, {}};
        if (!options_.is_control) {
            line.has_host = true;
            line.on_host = run(one, host);
        }
        add(line);
    }
    int finish() const;
    std::string device() const { return ggml_backend_name(gpu_ ? gpu_.get() : host_.get()); }

private:
    // Weights lie in the first of the CPU's own layouts that has their type and works on this host, as in a session.
    void each_layout(const Operator& op, const Case& one) {
        for (ggml_backend_buffer_type_t type : assay::devices().cpu_extra) {
            const Result result = judge(one, {host_.get(), false, type});
            if (result.verdict == Verdict::not_run) continue;
            add({op.name, one.name + ", weights in " + ggml_backend_buft_name(type), result, false, {}});
        }
    }
    Result judge(const Case& one, const Place& place) const {
        return options_.is_control ? control(one, place) : run(one, place);
    }
    void add(const Line& line) {
        lines_.push_back(line);
        if (options_.is_json) return;
        const Result& r = line.result;
        std::printf("%-8s %-15s %-52s", text_of(r.verdict), line.name.c_str(), line.text.c_str());
        if (r.verdict != Verdict::not_run) std::printf(" error %.2e tolerance %.2e", r.error, r.tolerance);
        if (line.has_host) std::printf(" (cpu %s %.2e)", text_of(line.on_host.verdict), line.on_host.error);
        std::printf("%s%s\n", r.reason.empty() ? "" : " ", r.reason.c_str());
        std::fflush(stdout);
    }

    const Options& options_;
    assay::BackendHandle host_;
    assay::BackendHandle gpu_;
    std::vector<Line> lines_;
};

void write_result(assay::JsonText& json, const Result& result) {
    json.field("verdict", text_of(result.verdict));
    if (result.verdict != Verdict::not_run) {
        // JSON has no infinity; 1e999 would be read as one by some and refused by others.
        json.field("error", std::min(result.error, 1e300));
        json.field("tolerance", std::min(result.tolerance, 1e300));
    }
    if (!result.reason.empty()) json.field("reason", result.reason);
}

int Run::finish() const {
    size_t n_failed = 0;
    size_t n_not_run = 0;
    std::set<std::string> operators;
    for (const Line& line : lines_) {
        n_failed += line.result.verdict == Verdict::fail || (line.has_host && line.on_host.verdict == Verdict::fail);
        n_not_run += line.result.verdict == Verdict::not_run;
        operators.insert(line.name);
    }
    const bool is_not_run = n_not_run == lines_.size();
    if (options_.is_json) {
        assay::JsonText json;
        json.open('{');
        json.field("format", "assay-operator-suites/1");
        json.field("device", device());
        json.field("control", options_.is_control);
        json.field("operators", operators.size());
        json.field("failed", n_failed);
        json.field("not_run", n_not_run);
        json.key("cases");
        json.open('[');
        for (const Line& line : lines_) {
            json.open('{');
            json.field("operator", line.name);
            json.field("case", line.text);
            write_result(json, line.result);
            if (line.has_host) {
                json.key("cpu");
                json.open('{');
                write_result(json, line.on_host);
                json.close('}');
            }
            json.close('}');
        }
        json.close(']');
        json.close('}');
        std::printf("%s\n", json.text().c_str());
    } else {
        const char* verdict = n_failed > 0 ? "FAIL" : is_not_run ? "NOT_RUN" : "PASS";
        std::printf("%s: %zu operators, %zu cases on %s, %zu failed, %zu not run\n", verdict, operators.size(), lines_.size(),
                    device().c_str(), n_failed, n_not_run);
    }
    if (n_failed > 0) return 1;
    return is_not_run ? kNotRun : 0;
}

int no_gpu(const Options& options) {
    const char* reason = "the ggml beside this program has no GPU back end, or this host no GPU";
    if (options.is_json) {
        assay::JsonText json;
        json.open('{');
        json.field("format", "assay-operator-suites/1");
        json.field("verdict", "NOT_RUN");
        json.field("reason", reason);
        json.close('}');
        std::printf("%s\n", json.text().c_str());
    } else {
        std::printf("NOT_RUN: %s\n", reason);
    }
    return kNotRun;
}

}  // namespace

int main(int argc, char** argv) {
    const std::vector<Operator> all = all_operators();
    const Options options = parse(argc, argv, all);
    if (options.is_list) {
        for (const Operator& op : all) std::printf("%-15s %3zu cases; %s\n", op.name.c_str(), op.cases.size(), op.reason.c_str());
        return assay::written(kName, 0);
    }
    try {
        ggml_backend_dev_t accelerator = assay::devices().accelerator;
        if (options.is_gpu && accelerator == nullptr) return assay::written(kName, no_gpu(options));
        Run run(options, start(assay::devices().cpu, options.threads),
                options.is_gpu ? start(accelerator, options.threads) : assay::BackendHandle());
        for (const Operator& op : all) {
            if (!options.wanted.empty() && !options.wanted.contains(op.name)) continue;
            for (const Case& one : op.cases) run.one(op, one);
        }
        return assay::written(kName, run.finish());
    } catch (const std::exception& error) {
        std::fprintf(stderr, "operator_suites: %s\n", error.what());
        return 1;
    }
}
