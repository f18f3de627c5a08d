// The routes of the server: which request means what, and who may ask.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "chat_template.h"
#include "http.h"
#include "loaded_model.h"
#include "render.h"
#include "requests.h"
#include "scheduler.h"
#include "settings.h"

namespace assay::server {

class Routes {
public:
    explicit Routes(const ServerSettings& settings) : settings_(settings) {}

    // From now on requests are served; until then they get 503 "Loading model". The scheduler and the model
    // must outlive the server's threads.
    void open(const Model& model, Scheduler& scheduler, const Session& session, const assay_memory_plan& plan);

    // Connection thread: answers what needs no body, and refuses what may not or cannot be served.
    std::optional<http::Reply> check(const http::Request& head) const;
    // Handler thread.
    void handle(const http::Request& request, const std::shared_ptr<http::Exchange>& exchange);

private:
    // What exists once the model is loaded.
    struct Ready {
        const Model& model;
        Scheduler& scheduler;
        std::unique_ptr<ChatTemplate> chat_template;
        RequestContext context;
        std::string build;   // one line that names the build
        std::string fixed_props;
        std::string models;
    };

    bool is_authorized(const http::Request& head) const;
    http::Reply get(const std::string& path, const Ready& ready) const;
    // pages.cpp
    std::string fixed_props(const Ready& ready, const Session& session, const assay_memory_plan& plan) const;
    std::string props(const Ready& ready) const;
    std::string models(const Ready& ready) const;
    std::string slots(const Ready& ready) const;
    std::string metrics(const Ready& ready) const;

    void generate(Dialect dialect, GenerationRequest request, const std::shared_ptr<http::Exchange>& exchange);
    std::string tokenize(const TokenizeRequest& request) const;
    void act_on_slot(const http::Request& request, const std::shared_ptr<http::Exchange>& exchange);
    void save_slot(int32_t id, const std::string& name, const std::shared_ptr<http::Exchange>& exchange);
    void restore_slot(int32_t id, const std::string& name, const std::shared_ptr<http::Exchange>& exchange);
    void erase_slot(int32_t id, const std::shared_ptr<http::Exchange>& exchange);

    const ServerSettings settings_;
    std::unique_ptr<Ready> ready_;
    std::atomic<bool> is_ready_{false};
};

}  // namespace assay::server
