// engine-server: loads one model and serves it.
//
// The address is bound first, so that /health answers 503 while the model loads. Then one line on standard
// output says that requests are served. Exit codes: 0 after SIGINT or SIGTERM, 1 when the model or the address
// cannot be used, 2 for settings that cannot work.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unistd.h>
#include <vector>

#include "errors.h"
#include "http.h"
#include "json_writer.h"
#include "log.h"
#include "loaded_model.h"
#include "memory.h"
#include "routes.h"
#include "scheduler.h"
#include "settings.h"

namespace assay::server {
namespace {

constexpr std::chrono::milliseconds stop_grace{1700};  // within the 2 s that a caller waits
constexpr std::chrono::milliseconds close_grace{400};

// What a signal must reach, which may not exist yet.
class StopSwitch {
public:
    void request() {
        const std::lock_guard lock(mutex_);
        is_requested_ = true;
        if (scheduler_ != nullptr) scheduler_->stop();
        else std::_Exit(0);  // still loading: there is nothing to finish
    }
    void attach(Scheduler* scheduler) {
        const std::lock_guard lock(mutex_);
        scheduler_ = scheduler;
        if (is_requested_ && scheduler != nullptr) scheduler->stop();
    }

private:
    std::mutex mutex_;
    Scheduler* scheduler_ = nullptr;
    bool is_requested_ = false;
};

// A key on the command line would show in the process list.
void hide_key(int argc, char** argv) {
    const auto blank = [](char* text) { std::memset(text, '*', std::strlen(text)); };
    for (int i = 1; i < argc; ++i) {
        if (std::strcmp(argv[i], "--api-key") == 0 && i + 1 < argc) blank(argv[i + 1]);
        else if (std::strncmp(argv[i], "--api-key=", 10) == 0) blank(argv[i] + 10);
    }
}

assay_model_settings model_settings(const ServerSettings& settings) {
    assay_model_settings result = assay_model_defaults();
    result.use_mmap = settings.use_mmap;
    result.n_gpu_layers = settings.n_gpu_layers;
    return result;
}

assay_session_settings session_settings(const ServerSettings& settings, uint32_t n_ctx) {
    assay_session_settings result = assay_session_defaults();
    result.n_ctx = n_ctx;
    result.n_seq = settings.n_slots;
    result.n_ubatch = settings.n_ubatch;
    result.n_threads = settings.n_threads;
    result.n_threads_batch = settings.n_threads_batch;
    result.kv_type = settings.kv_type;
    result.kv_unified = settings.kv_unified;
    result.flash_attention = settings.flash_attention;
    result.n_draft = settings.n_draft;
    result.draft_kv_type = settings.draft_kv_type;
    result.n_draft_vocab = settings.n_draft_vocab;
    result.ple_cache_bytes = uint64_t{settings.ple_cache_mib} << 20U;
    return result;
}

void announce(const std::string& host, uint16_t port) {
    JsonWriter out;
    out.open_object().key("event").text("listening").key("host").text(host).key("port").integer(port);
    out.key("pid").integer(getpid()).close_object();
    std::printf("%s\n", out.view().c_str());
    std::fflush(stdout);
}

// Settings that the engine refuses are the caller's to change; all else is a failure of this start.
int exit_code_of(const EngineFailure& failure) {
    return failure.status == ASSAY_INVALID || failure.status == ASSAY_UNSUPPORTED ? 2 : 1;
}

// The flags that decide about the session, for a message of the engine that knows none of them.
EngineFailure with_flags(const EngineFailure& failure, const ServerSettings& settings, uint32_t n_ctx) {
    return {failure.status, std::string(failure.what()) + " (--ctx-size " +
                                (n_ctx > 0 ? std::to_string(n_ctx) : "as the model has it") + ", --parallel " +
                                std::to_string(settings.n_slots) + ", --ubatch-size " + std::to_string(settings.n_ubatch) + ", --kv-type " +
                                name_of_kv_type(settings.kv_type) + (settings.kv_unified ? ", --kv-unified" : "") + ", --drafts " +
                                std::to_string(settings.n_draft) + ", --draft-vocab " + std::to_string(settings.n_draft_vocab) +
                                ", --ple-cache-mib " + std::to_string(settings.ple_cache_mib) + ")"};
}

// What the session will take; throws UsageError where it does not fit. Before this no weight is read.
assay_memory_plan plan(const ServerSettings& settings) {
    const AvailableMemory available = available_memory();
    const auto refuse_if = [](const std::optional<std::string>& problem) {
        if (problem) throw UsageError(*problem);
    };
    refuse_if(misfit_of_cells(settings.n_ctx, available, settings));
    assay_memory_plan plan{};
    try {
        plan = plan_memory(settings.model, model_settings(settings), session_settings(settings, settings.n_ctx));
    } catch (const EngineFailure& failure) {
        // The descriptions of the graphs alone.
        if (failure.status != ASSAY_MEMORY) throw;
        throw UsageError(with_flags(failure, settings, settings.n_ctx).what() + std::string(": lower --ubatch-size or --ctx-size"));
    }
    log_line("info", "memory_planned",
             {{"weight_bytes", static_cast<int64_t>(plan.weight_bytes)}, {"cache_bytes", static_cast<int64_t>(plan.cache_bytes)},
              {"compute_bytes", static_cast<int64_t>(plan.compute_bytes)}, {"device_bytes", static_cast<int64_t>(plan.device_bytes)},
              {"file_bytes", static_cast<int64_t>(plan.file_bytes)}, {"available_bytes", static_cast<int64_t>(available.host_bytes)}});
    refuse_if(misfit(plan, available, settings));
    return plan;
}

int serve(const ServerSettings& settings) {
    StopSwitch stop;
    Routes routes(settings);
    http::Server server(
        http::Limits{}, [&](const http::Request& head) { return routes.check(head); },
        [&](const http::Request& request, std::shared_ptr<http::Exchange> exchange) { routes.handle(request, exchange); });
    uint16_t port = 0;
    try {
        port = server.listen(settings.host, settings.port);
    } catch (const std::exception& error) {
        log_line("error", "listen_failed", {{"message", std::string(error.what())}});
        return 1;
    }
    server.on_signal([&] { stop.request(); }, stop_grace, [] { std::_Exit(0); });
    server.start();

    assay_memory_plan memory{};
    std::unique_ptr<Model> model;
    std::unique_ptr<Session> session;
    try {
        memory = plan(settings);
        model = std::make_unique<Model>(settings.model, model_settings(settings));
        session = std::make_unique<Session>(*model, session_settings(settings, memory.n_ctx));
    } catch (const UsageError& error) {
        log_line("error", "does_not_fit", {{"message", std::string(error.what())}});
        return 2;
    } catch (const EngineFailure& failure) {
        // A file that cannot be used has nothing to do with the flags.
        const std::string text = failure.status == ASSAY_FILE ? failure.what() : with_flags(failure, settings, std::max(memory.n_ctx, settings.n_ctx)).what();
        log_line("error", "not_started", {{"message", text}});
        return exit_code_of(failure);
    } catch (const std::exception& error) {
        log_line("error", "not_started", {{"message", std::string(error.what())}});
        return 1;
    }
    const uint32_t n_ctx = memory.n_ctx;
    const auto n_ctx_train = static_cast<uint32_t>(model->n_ctx_train());
    if (n_ctx_train > 0 && n_ctx > n_ctx_train) {
        log_line("warning", "context_beyond_training", {{"n_ctx", int64_t{n_ctx}}, {"n_ctx_train", int64_t{n_ctx_train}}});
    }
    const Session& facts = *session;
    Scheduler::Limits limits;
    limits.n_slots = settings.n_slots;
    limits.n_ctx = n_ctx;
    limits.n_ubatch = settings.n_ubatch;
    limits.kv_unified = settings.kv_unified;
    limits.n_draft = settings.n_draft;
    limits.n_embd = model->image_width();
    Scheduler scheduler(*model, std::move(session), limits);
    routes.open(*model, scheduler, facts, memory);
    stop.attach(&scheduler);
    log_line("info", "ready", {{"port", int64_t{port}}, {"n_ctx", int64_t{n_ctx}}, {"slots", int64_t{settings.n_slots}}});
    announce(settings.host, port);
    scheduler.serve();
    server.close(close_grace);
    log_line("info", "stopped");
    return 0;
}

int start_program(int argc, char** argv) {
    std::signal(SIGPIPE, SIG_IGN);
    ServerSettings settings;
    try {
        settings = parse_settings(std::vector<std::string>(argv + 1, argv + argc));
    } catch (const UsageError& error) {
        hide_key(argc, argv);
        log_line("error", "usage", {{"message", std::string(error.what())}});
        return 2;
    }
    hide_key(argc, argv);
    set_log_format(settings.log_format);
    if (settings.is_help) {
        std::fputs(usage_text().c_str(), stdout);
        return 0;
    }
    if (settings.is_version) {
        std::printf("%s\n", assay_build_info());
        return 0;
    }
    return serve(settings);
}

}  // namespace
}  // namespace assay::server

int main(int argc, char** argv) {
    try {
        return assay::server::start_program(argc, argv);
    } catch (const std::exception& error) {
        assay::server::log_line("error", "failed", {{"message", std::string(error.what())}});
        return 1;
    }
}
